// Source above, target below, as a translator reads: each target word hangs from the words it came from.

import { clamp, shown } from "./dom.js";
import { widthOf } from "./pen.js";
import { eachLook, largest } from "./weights.js";

const FAINT = 0.06; // links weaker than this part of the row's strongest are left out

export function alignmentView(app) {
  let plan = {};
  function line(list, names, y, { size, gap }, least) {
    let x = 0;
    const words = new Map();
    for (const index of list) {
      const text = shown(names[index]).slice(0, 40);
      const width = Math.max(widthOf(text, { size }), least(index));
      words.set(index, { text, x, y, width, middle: x + width / 2 });
      x += width + gap;
    }
    return { words, width: Math.max(0, x - gap) };
  }

  // The source word that a target word looks at most.
  function gloss(matrix, query) {
    const row = matrix.row(query);
    let best = app.columns()[0];
    for (const key of app.columns()) if (Math.abs(row[key]) > Math.abs(row[best])) best = key;
    return { text: shown(app.keyNames()[best]).slice(0, 40), weight: matrix.text(query, best) };
  }

  function layout(room, matrix) {
    const apart = clamp(room.height - 260, 160, 380);
    const top = Math.max(80, (room.height - apart - 60) / 2);
    const glosses = new Map(matrix ? app.rows().map((query) => [query, gloss(matrix, query)]) : []);
    const least = (query) => Math.max(...["text", "weight"].map((part) => widthOf(glosses.get(query)?.[part] ?? "", { size: 12 })));
    const lines = (style) => [
      line(app.columns(), app.keyNames(), top, style, () => 0),
      line(app.rows(), app.queryNames(), top + apart, style, least),
    ];
    const spare = (room.width - 80) / Math.max(...lines({ size: 17, gap: 22 }).map((one) => one.width));
    const size = 17 * clamp(spare, 1, 1.6); // short sentences are written large
    const [source, target] = lines({ size, gap: 22 * clamp(spare, 1, 7) });
    const width = Math.max(source.width, target.width) + 80;
    const left = Math.max(0, room.width - width) / 2 + 40;
    for (const { words, width: own } of [source, target]) {
      const shift = left + (width - 80 - own) / 2;
      for (const word of words.values()) (word.x += shift), (word.middle += shift);
    }
    return { key: source.words, query: target.words, glosses, matrix, top, apart, size, width, height: top + apart + 110 };
  }

  return {
    label: "Alignment: the source sentence above, the target below, joined by their attention.",
    keys: "left and right pick a word, up and down change the sentence, Escape lets go.",
    hint: () => "Hover a word to see only its links. Below each target word stands the source word it looks at most.",
    size(room) {
      const matrix = app.matrices.current();
      const id = [app.viewKey(), room.width, room.height].join(" ");
      if (plan.id !== id || plan.matrix !== matrix) plan = { id, ...layout(room, matrix) };
      return plan;
    },
    draw(pen, box) {
      const { matrix } = plan;
      if (!matrix) return void app.waiting(pen, box);
      const [picked, most] = [app.active(), app.layer().shares ? 1 : matrix.top];
      const [all, shades] = [[], Array.from({ length: 8 }, () => [])];
      const near = ({ x, width }) => x + width > box.x - 200 && x < box.x + box.width + 200;
      eachLook(matrix, picked, (query, key, weight) => {
        const [from, to, size] = [plan.key.get(key), plan.query.get(query), Math.abs(weight)];
        if (from && to && size && size >= FAINT * matrix.tops[query] && (near(to) || near(from))) all.push({ from, to, size });
      });
      for (const { from, to, size } of largest(all, app.stage.isMoving())) {
        shades[clamp(Math.ceil((8 * size) / most) - 1, 0, 7)].push(from.middle, from.y + 18, to.middle, to.y - 18);
      }
      shades.forEach((ends, shade) => {
        pen.lines(ends, { color: app.inks.accent, alpha: 0.1 + 0.11 * shade, thick: 1 + shade * 0.55, bend: "y" });
      });
      const write = (side, words, names) => words.forEach((word, index) => {
        if (!near(word)) return;
        const own = picked?.side === side && picked.index === index;
        if (own || app.isFound(names[index])) pen.rect(word.x - 7, word.y - 15, word.width + 14, 30, app.marked(own));
        const [query, key] = side === "key" ? [picked?.index, index] : [index, picked?.index];
        const across = picked && picked.side !== side;
        const alpha = across ? 0.3 + 0.7 * clamp((2 * Math.abs(matrix.row(query)[key])) / most, 0, 1) : 1;
        const look = { size: plan.size, align: "center", color: app.inks.ink, alpha, weight: own ? 600 : 400 };
        pen.text(word.text, word.middle, word.y, look);
      });
      write("key", plan.key, app.keyNames());
      write("query", plan.query, app.queryNames());
      for (const [query, { text, weight }] of plan.glosses) {
        const word = plan.query.get(query);
        if (!near(word)) continue;
        pen.text(text, word.middle, word.y + 30, { size: 12, align: "center", color: app.inks.accent });
        pen.text(weight, word.middle, word.y + 48, { ...app.type.note, size: 11, align: "center" });
      }
      const titled = (text, y) => pen.text(text, box.x + box.width / 2, y, { ...app.type.note, align: "center" });
      titled("Source", plan.top - 44);
      titled("Target, and the source word each looks at most", plan.top + plan.apart + 84);
    },
    hit(x, y) {
      const on = (word) => x >= word.x - 8 && x <= word.x + word.width + 8 && Math.abs(y - word.y) < 18;
      for (const side of ["key", "query"]) {
        for (const [index, word] of plan[side]) if (on(word)) return { side, index };
      }
      return null;
    },
    hover: app.hover,
    tip: app.tip,
    press: app.toggle,
    move: (across, down) => app.walk(across, down && (down < 0 ? "key" : "query")),
    reveal({ side, index }) {
      const word = plan[side].get(index);
      if (word) app.stage.reveal(word.x, word.y - 30, word.width, 100);
    },
  };
}

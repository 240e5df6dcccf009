// Source above, target below, as a translator reads: each target word hangs from the words it came from.

import { clamp, shown } from "./dom.js";
import { widthOf } from "./pen.js";
import { strongest } from "./weights.js";

const FAINT = 0.06; // links weaker than this part of the row's strongest are left out

export function alignmentView(app) {
  let plan = null;

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

  function gloss(matrix, query) {
    const [key] = strongest(matrix.row(query), 1, app.columns());
    return { text: shown(app.keyNames()[key]).slice(0, 40), weight: matrix.row(query)[key] };
  }

  return {
    label: "Alignment: the source sentence above, the target below, joined by their attention.",
    keys: "left and right pick a word, up and down change the sentence, Escape lets go.",
    hint: () => "Hover a word to see only its links. Below each target word stands the source word it looks at most.",
    size(room) {
      const matrix = app.matrices.current();
      const apart = clamp(room.height - 260, 160, 380);
      const top = Math.max(80, (room.height - apart - 60) / 2);
      const least = (query) => (matrix ? widthOf(gloss(matrix, query).text, { size: 12 }) : 0);
      const lines = (style) => [
        line(app.columns(), app.keyNames(), top, style, () => 0),
        line(app.rows(), app.queryNames(), top + apart, style, least),
      ];
      const spare = (room.width - 80) / Math.max(...lines({ size: 17, gap: 22 }).map((one) => one.width));
      const size = 17 * clamp(spare, 1, 1.6); // short sentences are written large
      const [source, target] = lines({ size, gap: 22 * clamp(spare, 1, 4) });
      const width = Math.max(source.width, target.width) + 80;
      const left = Math.max(0, room.width - width) / 2 + 40;
      for (const { words, width: own } of [source, target]) {
        const shift = left + (width - 80 - own) / 2;
        for (const word of words.values()) (word.x += shift), (word.middle += shift);
      }
      plan = { key: source.words, query: target.words, matrix, top, apart, size };
      return { width, height: top + apart + 110 };
    },
    draw(pen, box) {
      const { matrix } = plan;
      if (!matrix) return void app.waiting(pen, box);
      const picked = app.active();
      const shades = Array.from({ length: 8 }, () => []);
      const near = ({ x, width }) => x + width > box.x - 200 && x < box.x + box.width + 200;
      for (const [query, word] of plan.query) {
        if (picked?.side === "query" && picked.index !== query) continue;
        const row = matrix.row(query);
        const top = row.reduce((most, weight) => Math.max(most, weight), 0);
        for (const [key, from] of plan.key) {
          if (row[key] < FAINT * top || !row[key] || (picked?.side === "key" && picked.index !== key)) continue;
          if (!near(word) && !near(from)) continue;
          const shade = clamp(Math.ceil(row[key] * 8) - 1, 0, 7);
          shades[shade].push(from.middle, from.y + 18, word.middle, word.y - 18);
        }
      }
      shades.forEach((ends, shade) => {
        pen.lines(ends, { colour: app.inks.accent, alpha: 0.1 + 0.11 * shade, thick: 1 + shade * 0.55, bend: "y" });
      });
      const write = (side, words, names) => words.forEach((word, index) => {
        if (!near(word)) return;
        const own = picked?.side === side && picked.index === index;
        if (own || app.isFound(names[index])) pen.rect(word.x - 7, word.y - 15, word.width + 14, 30, app.marked(own));
        let alpha = 1;
        if (picked && picked.side !== side) {
          const weight = side === "key" ? matrix.row(picked.index)[index] : matrix.row(index)[picked.index];
          alpha = 0.3 + 0.7 * clamp(weight * 2, 0, 1);
        }
        const look = { size: plan.size, align: "center", colour: app.inks.ink, alpha, weight: own ? 600 : 400 };
        pen.text(word.text, word.middle, word.y, look);
      });
      write("key", plan.key, app.keyNames());
      write("query", plan.query, app.queryNames());
      for (const [query, word] of plan.query) {
        if (!near(word)) continue;
        const { text, weight } = gloss(matrix, query);
        pen.text(text, word.middle, word.y + 30, { size: 12, align: "center", colour: app.inks.accent });
        pen.text(weight.toFixed(2), word.middle, word.y + 48, { ...app.type.note, size: 11, align: "center" });
      }
      const [middle, style] = [box.x + box.width / 2, { ...app.type.note, align: "center" }];
      pen.text("Source", middle, plan.top - 44, style);
      pen.text("Target, and the source word each looks at most", middle, plan.top + plan.apart + 84, style);
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

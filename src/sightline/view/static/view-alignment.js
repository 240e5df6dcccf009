// Source above, target below, as a translator reads: each target word hangs from the words it came from.

import { clamp, number, shown } from "./dom.js";
import { widthOf } from "./pen.js";
import { strongest } from "./weights.js";

const FAINT = 0.06; // links weaker than this part of the row's strongest are left out
const WORD = { size: 17 };

export function alignmentView(app) {
  let hovered = null;
  let plan = null;

  const active = () => hovered ?? (app.state.token === null ? null : { side: "query", index: app.state.token });

  function line(list, names, y, least) {
    let x = 0;
    const words = new Map();
    for (const index of list) {
      const text = shown(names[index]).slice(0, 40);
      const width = Math.max(widthOf(text, WORD), least(index));
      words.set(index, { text, x, y, width, middle: x + width / 2 });
      x += width + 22;
    }
    return { words, width: Math.max(0, x - 22) };
  }

  function gloss(matrix, query) {
    const [key] = strongest(matrix.row(query), 1, app.columns());
    return { text: shown(app.keyNames()[key]).slice(0, 40), weight: matrix.row(query)[key] };
  }

  return {
    label: "Alignment: the source sentence above, the target below, joined by their attention.",
    keys: "left and right walk the target, Escape lets go.",
    hint: () => "Hover a word to see only its links. Below each target word stands the source word it looks at most.",
    needs: () => [app.state.layer],
    size(room) {
      const matrix = app.matrices.current();
      const names = app.keyNames();
      const apart = clamp(room.height - 260, 160, 260);
      const top = Math.max(80, (room.height - apart - 60) / 2);
      const source = line(app.columns(), names, top, () => 0);
      const target = line(app.rows(), app.queryNames(), top + apart, (query) => (matrix ? widthOf(gloss(matrix, query).text, { size: 12 }) : 0));
      const width = Math.max(source.width, target.width) + 80;
      const left = Math.max(0, room.width - width) / 2 + 40;
      for (const [{ words, width: own }] of [[source], [target]]) {
        const shift = left + (width - 80 - own) / 2;
        for (const word of words.values()) (word.x += shift), (word.middle += shift);
      }
      plan = { source: source.words, target: target.words, matrix, top, apart };
      return { width, height: top + apart + 110 };
    },
    draw(pen, box) {
      const { matrix } = plan;
      if (!matrix) return app.waiting(pen, box);
      const picked = active();
      const shades = Array.from({ length: 8 }, () => []);
      const near = ({ x, width }) => x + width > box.x - 200 && x < box.x + box.width + 200;
      for (const [query, word] of plan.target) {
        if (picked?.side === "query" && picked.index !== query) continue;
        const row = matrix.row(query);
        const top = row.reduce((most, weight) => Math.max(most, weight), 0);
        for (const [key, from] of plan.source) {
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
        const look = { ...WORD, align: "center", colour: app.inks.ink, alpha, weight: own ? 600 : 400 };
        pen.text(word.text, word.middle, word.y, look);
      });
      write("key", plan.source, app.keyNames());
      write("query", plan.target, app.queryNames());
      for (const [query, word] of plan.target) {
        if (!near(word)) continue;
        const { text, weight } = gloss(matrix, query);
        pen.text(text, word.middle, word.y + 30, { size: 12, align: "center", colour: app.inks.accent });
        pen.text(weight.toFixed(2), word.middle, word.y + 48, { ...app.type.note, size: 11, align: "center" });
      }
      const [middle, style] = [box.x + box.width / 2, { ...app.type.note, align: "center" }];
      pen.text("Source", middle, plan.top - 44, style);
      pen.text("Target, and the source word each looks at most", middle, plan.top + plan.apart + 84, style);
      return undefined;
    },
    hit(x, y) {
      const on = (word) => x >= word.x - 8 && x <= word.x + word.width + 8 && Math.abs(y - word.y) < 18;
      const inside = (words) => [...words].find(([, word]) => on(word))?.[0];
      const key = plan && inside(plan.source);
      if (key !== undefined && key !== null) return { side: "key", index: key };
      const query = plan && inside(plan.target);
      return query === undefined || query === null ? null : { side: "query", index: query };
    },
    hover(spot) {
      hovered = spot;
      app.point(spot?.side === "query" ? spot.index : null, spot?.side === "key" ? spot.index : null);
    },
    tip({ side, index }) {
      const { matrix } = plan;
      if (!matrix || side !== "query") return [];
      const row = matrix.row(index);
      const best = strongest(row, 3, app.columns());
      return [shown(app.queryNames()[index]), ...best.map((key) => `${number(row[key])}  ${shown(app.keyNames()[key])}`)];
    },
    press: ({ side, index }) => side === "query" && app.set({ token: app.state.token === index ? null : index }),
    move(across, down) {
      const rows = app.rows();
      app.set({ token: rows[clamp(rows.indexOf(app.state.token) + (across || down), 0, rows.length - 1)] });
      this.reveal(app.state.token);
    },
    reveal(index) {
      const word = plan?.target.get(index);
      if (word) app.stage.reveal(word.x, word.y - 30, word.width, 100);
    },
  };
}

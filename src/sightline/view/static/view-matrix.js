// The numbers: rows look, columns are looked at.

import { heat, inkOn } from "./colors.js";
import { fit, widthOf } from "./pen.js";
import { clamp, number, shown } from "./dom.js";

const READABLE = 9; // pixels: the smallest letters in a cell
const LABEL = { size: 12 };

export function matrixView(app) {
  let [plan, picture] = [null, {}];
  let focus = null; // the cell under the pointer

  const cell = () => focus ?? { query: app.state.token, key: app.state.key };
  const longest = (names, list) =>
    Math.max(8, ...list.slice(0, 400).map((index) => widthOf(shown(names[index]).slice(0, 24), LABEL)));

  function labels(pen, box, matrix) {
    const { left, top, side, columns, rows, x0 } = plan;
    const now = cell();
    pen.rect(box.x, box.y, box.width, top, { fill: app.inks.panel });
    pen.rect(box.x, box.y, x0 + left, box.height, { fill: app.inks.panel });
    const every = Math.ceil(13 / side);
    const style = (own, name) => ({
      size: clamp(side * 0.7, 9, 12), weight: own || app.isFound(name) ? 700 : 400,
      color: own ? app.inks.accent : app.inks.ink, alpha: 0.9,
    });
    const mark = (list, names, offset, start, length, drawOne, own) => list.forEach((index, i) => {
      const at = offset + i * side;
      if (at + side < start || at > start + length) return;
      if (i % every && index !== own && !app.isFound(names[index])) return;
      drawOne(shown(names[index]), at + side / 2, style(index === own, names[index]));
    });
    mark(columns, app.keyNames(), x0 + left, box.x + x0 + left - side / 2, box.width, (name, x, look) =>
      plan.upright
        ? pen.text(fit(name, side - 6, look), x, box.y + top - 12, { ...look, align: "center" })
        : pen.text(fit(name, top - 18, look), Math.max(x, box.x + x0 + left + 6), box.y + top - 9, { ...look, turn: -90 }), now.key);
    mark(rows, app.queryNames(), top, box.y + top - side / 2, box.height, (name, y, look) =>
      pen.text(fit(name, left - 16, look), box.x + x0 + left - 9, Math.max(y, box.y + top + 6), { ...look, align: "right" }), now.query);
    pen.rect(box.x, box.y, x0 + left, top, { fill: app.inks.panel });
    pen.text(`max ${number(matrix.top, matrix.top)}`, box.x + x0 + left - 9, box.y + top - 12, { ...app.type.note, size: 11, align: "right" });
  }

  // The labels lie over the drawing, so a cell is in sight only beside and below them.
  const reveal = (i, j) => app.stage.reveal(plan.x0 + j * plan.side, i * plan.side, plan.left + plan.side, plan.top + plan.side, 4);

  return {
    label: "Matrix: rows look, columns are looked at.",
    keys: "arrows go from cell to cell and read the weight, + and − zoom, Escape lets go.",
    hint: () => "Rows look, columns are looked at: the stronger a cell, the more. Hover one to read its number.",
    size(room) {
      const [rows, columns] = [app.rows(), app.columns()];
      const left = clamp(longest(app.queryNames(), rows) + 24, 92, 170);
      const wide = longest(app.keyNames(), columns) + 10;
      const fits = Math.min((room.width - left - 24) / columns.length, (room.height - 100) / rows.length);
      const side = clamp(clamp(fits, 3, 110) * app.state.zoom, 1, 240);
      const upright = wide < side;
      const top = upright ? 34 : clamp(wide + 16, 34, 150);
      const x0 = Math.max(0, (room.width - left - columns.length * side - 16) / 2);
      plan = { left, top, side, rows, columns, x0, upright };
      return { width: x0 + left + columns.length * side + 16, height: top + rows.length * side + 16 };
    },
    draw(pen, box) {
      const matrix = app.matrices.current();
      if (!matrix) return void app.waiting(pen, box);
      const { left, top, side, rows, columns, x0 } = plan;
      const id = [app.viewKey(), app.mode].join(" ");
      if (picture.id !== id || picture.matrix !== matrix) {
        const wide = Array.from(matrix.tops, (top) => widthOf(number(app.layer().signed ? -top : top, top), { size: 100 }) / 100);
        const drawn = heat(matrix, app.mode, app.layer().signed, rows, columns);
        picture = { id, matrix, drawn, wide: wide.reduce((most, one) => Math.max(most, one)) };
      }
      const size = Math.min(16, (side - 5) / picture.wide); // all numbers or none, and each of them whole
      const [x, y] = [x0 + left, top];
      pen.image(picture.drawn, x, y, columns.length * side, rows.length * side);
      pen.rect(x - 0.5, y - 0.5, columns.length * side + 1, rows.length * side + 1, { stroke: app.inks.line });
      if (size >= READABLE) {
        rows.forEach((query, i) => {
          if (y + (i + 1) * side < box.y || y + i * side > box.y + box.height) return;
          columns.forEach((key, j) => {
            const at = x + j * side;
            if (at + side < box.x || at > box.x + box.width) return;
            const weight = matrix.data[query * matrix.keys + key];
            pen.text(matrix.text(query, key).replace(/^<.*/, "≈0"), at + side / 2, y + (i + 0.5) * side, {
              size, align: "center", alpha: Math.abs(weight) < matrix.top / 100 ? 0.6 : 1,
              color: inkOn(weight, matrix.top, app.mode, app.layer().signed),
            });
          });
        });
      }
      const now = cell();
      const [i, j] = [rows.indexOf(now.query), columns.indexOf(now.key)];
      const mark = { stroke: app.inks.mark, thick: 2.5, radius: 2 };
      if (i >= 0) pen.rect(x, y + i * side, columns.length * side, side, { fill: app.inks.accent, alpha: 0.1 });
      if (j >= 0) pen.rect(x + j * side, y, side, rows.length * side, { fill: app.inks.accent, alpha: 0.1 });
      if (i >= 0 && j >= 0) pen.rect(x + j * side - 1, y + i * side - 1, side + 2, side + 2, mark);
      labels(pen, box, matrix);
    },
    hit(x, y, box) {
      if (x < box.x + plan.x0 + plan.left || y < box.y + plan.top) return null;
      const key = plan.columns[Math.floor((x - plan.x0 - plan.left) / plan.side)];
      const query = plan.rows[Math.floor((y - plan.top) / plan.side)];
      return key === undefined || query === undefined ? null : { query, key };
    },
    scale: () => ({ x: plan.x0 + plan.left, y: plan.top, unit: plan.side }),
    hover(spot) {
      focus = spot;
      app.point(spot?.query ?? null, spot?.key ?? null);
    },
    tip({ query, key }) {
      const matrix = app.matrices.current();
      if (!matrix) return [];
      return [matrix.text(query, key), `${app.name("query", query)} → ${app.name("key", key)}`, app.where()];
    },
    press: ({ query, key }) => app.set({ token: query, key }),
    move(across, down) {
      const [{ rows, columns }, now] = [plan, cell()];
      const inside = now.query !== null && now.key !== null;
      const next = (list, value, step) => list[clamp(list.indexOf(value) + (inside ? step : 0), 0, list.length - 1)];
      const [query, key] = [next(rows, now.query, down), next(columns, now.key, across)];
      focus = null;
      app.set({ token: query, key });
      reveal(rows.indexOf(query), columns.indexOf(key));
    },
    reveal({ side, index }) {
      const [query, key] = side === "key" ? [app.state.token, index] : [index, app.state.key];
      reveal(Math.max(0, plan.rows.indexOf(query)), Math.max(0, plan.columns.indexOf(key)));
    },
    escape() {
      if (app.state.from !== "grid") return false;
      app.set({ view: "grid", from: null, heads: null, token: null, key: null });
      return true;
    },
  };
}

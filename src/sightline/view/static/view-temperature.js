// One token's looks before and after its scores are divided by a temperature, and what that does to the entropy.

import { clamp, number, shown } from "./dom.js";
import { fit } from "./pen.js";
import { entropy } from "./weights.js";

const TOP = 216;
const CURVE = Array.from({ length: 49 }, (_, i) => 0.1 * 100 ** (i / 48)); // 0.1 to 10

export function temperatureView(app) {
  let [plan, opening] = [null, {}];

  // The token that was picked, else the one with most to tell: its entropy lies nearest to half of what it could be, so
  // both a lower and a higher temperature change it.
  function query() {
    if (app.state.token !== null) return app.state.token;
    const id = ["example", "layer", "heads", "combine", "hide"].map((name) => app.state[name]).join(" ");
    const rowAt = (row) => app.matrices.rowAt(app.state.layer, row, 1);
    if (opening.id !== id && rowAt(0)) {
      const far = app.rows().map((row) => Math.abs(entropy(rowAt(row)) - Math.log2(app.columns().length) / 2));
      opening = { id, row: app.rows()[far.indexOf(Math.min(...far))] };
    }
    return opening.id === id ? opening.row : app.rows()[0];
  }

  function panel(pen, row, reach) {
    const { left, width } = plan;
    const most = Math.log2(Math.max(1, reach)); // were all that it may look at looked at alike
    const bits = entropy(row);
    const recorded = entropy(app.matrices.rowAt(app.state.layer, query(), 1));
    const name = fit(shown(app.queryNames()[query()]), width * 0.4);
    pen.text(`“${name}” at temperature ${app.state.temperature.toFixed(2)}`, left, 28, app.type.title);
    pen.text(bits.toFixed(2), left, 84, { size: 44, weight: 600, color: app.inks.accent });
    pen.text("bits of entropy", left, 120, { size: 13, color: app.inks.ink });
    pen.text(`recorded ${recorded.toFixed(2)}, at most ${most.toFixed(2)}`, left, 142, app.type.note);
    pen.text(`as if it looked at ${(2 ** bits).toFixed(1)} of ${reach} evenly`, left, 162, app.type.note);
    const [x, y, w, h] = [left + Math.max(220, width * 0.42), 60, Math.min(width * 0.56, width - 240), 96];
    if (w < 120) return;
    const across = (t) => x + (clamp(Math.log(t / 0.1) / Math.log(100), 0, 1)) * w;
    const up = (value) => y + h - (value / Math.max(most, 1e-9)) * h;
    pen.lines([x, y + h, x + w, y + h, x, y, x + w, y], { color: app.inks.line });
    pen.lines([across(1), y, across(1), y + h], { color: app.inks.line });
    const values = CURVE.map((t) => entropy(app.matrices.rowAt(app.state.layer, query(), t)));
    const curve = CURVE.slice(1).flatMap((t, i) => [across(CURVE[i]), up(values[i]), across(t), up(values[i + 1])]);
    pen.lines(curve, { color: app.inks.accent, thick: 2.5 });
    const dot = { fill: app.inks.accent, stroke: app.inks.panel, thick: 2, radius: 5 };
    pen.rect(across(app.state.temperature) - 5, up(bits) - 5, 10, 10, dot);
    const style = { ...app.type.note, size: 11 };
    for (const t of [0.1, 1, 10]) pen.text(String(t), across(t), y + h + 14, { ...style, align: "center" });
    pen.text("sharper", x + w * 0.06, y + h + 14, { ...style });
    pen.text("flatter", x + w * 0.94, y + h + 14, { ...style, align: "right" });
    pen.text(`${most.toFixed(1)} bits`, x + w, y - 10, { ...style, align: "right" });
  }

  return {
    label: "Temperature: the weights of one token, re-sharpened.",
    keys: "up and down pick the token, left and right turn the temperature.",
    query,
    hint: () => "The scores, cosine or dot, are divided by the temperature before the softmax. Pale bars are the weights as recorded. "
      + "Until you pick a token, one is shown whose looks are neither sharp nor even.",
    size(room) {
      const [width, columns] = [Math.min(room.width - 48, 1200), app.columns()];
      plan = { width, left: (room.width - width) / 2, columns, row: clamp((room.height - TOP - 16) / columns.length, 24, 56) };
      return { width: 0, height: TOP + columns.length * plan.row + 16 };
    },
    draw(pen, box) {
      const row = app.matrices.rowAt(app.state.layer, query(), app.state.temperature);
      if (!row) return void app.waiting(pen, box);
      const before = app.matrices.rowAt(app.state.layer, query(), 1);
      const { left, width, columns, row: high } = plan;
      const [start, room] = [left + 150, width - 150 - 70];
      const top = Math.max(...row, ...before) || 1;
      const first = Math.max(0, Math.floor((box.y - TOP) / high));
      columns.slice(first, first + Math.ceil(box.height / high) + 1).forEach((key, i) => {
        const y = TOP + (first + i + 0.5) * high;
        const name = app.keyNames()[key];
        if (app.isFound(name)) pen.rect(left, y - high / 2 + 1, width, high - 2, { fill: app.inks.mark, alpha: 0.4, radius: 5 });
        pen.text(fit(shown(name), 132), start - 12, y, { color: app.inks.ink, align: "right" });
        const long = (weight) => weight && Math.max(1, (room * weight) / top);
        const bar = (weight, thick, look) => pen.rect(start, y - thick / 2, long(weight), thick, { ...look, radius: 3 });
        bar(before[key], high * 0.66, { fill: app.inks.muted, alpha: 0.22 });
        bar(row[key], high * 0.4, { fill: app.inks.accent });
        pen.text(number(row[key], Math.max(...row)), left + width, y, { size: 12, color: app.inks.ink, align: "right" });
      });
      panel(pen, row, before.reduce((count, weight) => count + (weight > 0), 0));
    },
    hit(x, y) {
      const key = plan.columns[Math.floor((y - TOP) / plan.row)];
      return y < TOP || key === undefined || x < plan.left || x > plan.left + plan.width ? null : { key, quiet: true };
    },
    hover: (spot) => app.point(spot && query(), spot?.key ?? null),
    tip({ key }) {
      const [now, before] = [app.state.temperature, 1].map((t) => app.matrices.rowAt(app.state.layer, query(), t));
      const text = (row) => number(row[key], Math.max(...row));
      return now ? [text(now), `recorded ${text(before)}`, `${app.name("query", query())} → ${app.name("key", key)}`] : [];
    },
    reveal: ({ side, index }) => side === "key" && app.stage.reveal(0, TOP + plan.columns.indexOf(index) * plan.row, 1, plan.row),
    move(across, down) {
      const rows = app.rows();
      const steps = Math.round(Math.log(app.state.temperature) / Math.log(1.1)) + across; // so that the way back meets 1
      if (across) app.set({ temperature: clamp(+(1.1 ** steps).toFixed(3), 0.1, 10) });
      if (down) app.set({ token: rows[clamp(rows.indexOf(query()) + down, 0, rows.length - 1)] });
    },
  };
}

// One token's looks before and after its scores are divided by a temperature, and what that does to the entropy.

import { clamp, number, shown } from "./dom.js";
import { fit } from "./pen.js";
import { entropy } from "./weights.js";

const TOP = 216;
const ROW = 24;
const CURVE = Array.from({ length: 49 }, (_, i) => 0.1 * 100 ** (i / 48)); // 0.1 to 10

export function temperatureView(app) {
  let plan = null;
  let curve = { id: null };

  const query = () => app.state.token ?? app.rows().find((row) => !app.side("query").special.includes(row)) ?? app.rows()[0] ?? 0;

  function bitsOverTemperatures() {
    const id = [app.viewKey(), query()].join(" ");
    if (curve.id !== id) curve = { id, bits: CURVE.map((t) => entropy(app.matrices.rowAt(app.state.layer, query(), t))) };
    return curve.bits;
  }

  function panel(pen, row, most) {
    const { left, width } = plan;
    const bits = entropy(row);
    const recorded = entropy(app.matrices.rowAt(app.state.layer, query(), 1));
    const name = fit(shown(app.queryNames()[query()]), width * 0.4);
    pen.text(`“${name}” at temperature ${app.state.temperature.toFixed(2)}`, left, 28, app.type.title);
    pen.text(bits.toFixed(2), left, 84, { size: 44, weight: 600, colour: app.inks.accent });
    pen.text("bits of entropy", left, 120, { size: 13, colour: app.inks.ink });
    pen.text(`recorded ${recorded.toFixed(2)}, at most ${most.toFixed(2)}`, left, 142, app.type.note);
    pen.text(`as if it looked at ${(2 ** bits).toFixed(1)} of ${row.length} evenly`, left, 162, app.type.note);
    const [x, y, w, h] = [left + Math.max(220, width * 0.42), 60, Math.min(width * 0.56, width - 240), 96];
    if (w < 120) return;
    const across = (t) => x + (clamp(Math.log(t / 0.1) / Math.log(100), 0, 1)) * w;
    const up = (value) => y + h - (value / Math.max(most, 1e-9)) * h;
    pen.lines([x, y + h, x + w, y + h, x, y, x + w, y], { colour: app.inks.line });
    pen.lines([across(1), y, across(1), y + h], { colour: app.inks.line });
    const values = bitsOverTemperatures();
    const curve = CURVE.slice(1).flatMap((t, i) => [across(CURVE[i]), up(values[i]), across(t), up(values[i + 1])]);
    pen.lines(curve, { colour: app.inks.accent, thick: 2.5 });
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
    hint: () => "The scores, cosine or dot, are divided by the temperature before the softmax. Pale bars are the weights as recorded.",
    needs: () => [app.state.layer],
    size(room) {
      const width = Math.min(room.width - 48, 820);
      plan = { width, left: (room.width - width) / 2, columns: app.columns(), room: room.width };
      return { width: 0, height: TOP + plan.columns.length * ROW + 16 };
    },
    draw(pen, box) {
      const row = app.matrices.rowAt(app.state.layer, query(), app.state.temperature);
      if (!row) return app.waiting(pen, box);
      const before = app.matrices.rowAt(app.state.layer, query(), 1);
      const { left, width, columns } = plan;
      const [start, room] = [left + 150, width - 150 - 70];
      const top = Math.max(...row, ...before) || 1;
      const first = Math.max(0, Math.floor((box.y - TOP) / ROW));
      columns.slice(first, first + Math.ceil(box.height / ROW) + 1).forEach((key, i) => {
        const y = TOP + (first + i + 0.5) * ROW;
        const name = app.keyNames()[key];
        if (app.isFound(name)) pen.rect(left, y - ROW / 2 + 1, width, ROW - 2, { fill: app.inks.mark, alpha: 0.4, radius: 5 });
        pen.text(fit(shown(name), 132), start - 12, y, { colour: app.inks.ink, align: "right" });
        pen.rect(start, y - 8, Math.max(1, (room * before[key]) / top), 16, { fill: app.inks.muted, alpha: 0.22, radius: 3 });
        pen.rect(start, y - 5, Math.max(1, (room * row[key]) / top), 10, { fill: app.inks.accent, radius: 3 });
        pen.text(number(row[key]), left + width, y, { size: 12, colour: app.inks.ink, align: "right" });
      });
      panel(pen, row, Math.log2(Math.max(1, before.reduce((count, weight) => count + (weight > 0), 0))));
      return undefined;
    },
    hit(x, y) {
      const key = plan?.columns[Math.floor((y - TOP) / ROW)];
      return y < TOP || key === undefined || x < plan.left || x > plan.left + plan.width ? null : { key, quiet: true };
    },
    hover: (spot) => app.point(spot && query(), spot?.key ?? null),
    tip({ key }) {
      const [now, before] = [app.state.temperature, 1].map((t) => app.matrices.rowAt(app.state.layer, query(), t));
      const look = `${shown(app.queryNames()[query()])} → ${shown(app.keyNames()[key])}`;
      return now ? [number(now[key]), `recorded ${number(before[key])}`, look] : [];
    },
    move(across, down) {
      const rows = app.rows();
      if (across) app.set({ temperature: clamp(app.state.temperature * 1.1 ** across, 0.1, 10) });
      if (down) app.set({ token: rows[clamp(rows.indexOf(query()) + down, 0, rows.length - 1)] });
    },
  };
}

// The temperature view: the weights of one query at another softmax temperature, and their entropy.

import { clamp, displayText, formatWeight } from "./format.js";
import { fitText } from "./renderer.js";
import { entropy } from "./weights.js";

const TOP = 216;
const CURVE = Array.from({ length: 49 }, (_, i) => 0.1 * 100 ** (i / 48)); // 0.1 to 10

export function temperatureView(app) {
  let [layout, initial] = [null, {}];

  const rowAt = (query, temperature) => app.matrices.rowAt(app.state.layer, query, temperature);
  const rowMax = (row) => row.reduce((max, weight) => Math.max(max, weight), 0);

  // The selected query. By default, the one whose entropy is closest to half of the maximum, which both lower and higher
  // temperatures change.
  function query() {
    if (app.state.query !== null) return app.state.query;
    const id = ["example", "layer", "heads", "combine", "hide", "join", "sentences"].map((name) => app.state[name]).join(" ");
    if (initial.id !== id && rowAt(0, 1)) {
      const distances = app.queries().map((index) => Math.abs(entropy(rowAt(index, 1)) - Math.log2(app.keys().length) / 2));
      initial = { id, query: app.queries()[distances.indexOf(Math.min(...distances))] };
    }
    return initial.id === id ? initial.query : app.queries()[0];
  }

  function drawEntropy(renderer, row, recorded) {
    const { left, width } = layout;
    const attended = recorded.reduce((count, weight) => count + (weight > 0), 0);
    const maxBits = Math.log2(Math.max(1, attended));
    const bits = entropy(row);
    const name = fitText(displayText(app.queryTokens()[query()]), width * 0.4);
    renderer.text(`“${name}” at temperature ${app.state.temperature.toFixed(2)}`, left, 28, app.textStyles.title);
    renderer.text(bits.toFixed(2), left, 84, { size: 44, weight: 600, color: app.colors.accent });
    renderer.text("bits of entropy", left, 120, { size: 13, color: app.colors.ink });
    renderer.text(`recorded ${entropy(recorded).toFixed(2)}, maximum ${maxBits.toFixed(2)}`, left, 142, app.textStyles.note);
    renderer.text(`effective keys: ${(2 ** bits).toFixed(1)} of ${attended}`, left, 162, app.textStyles.note);
    const [x, y, w, h] = [left + Math.max(220, width * 0.42), 60, Math.min(width * 0.56, width - 240), 96];
    if (w < 120) return;
    const xOf = (t) => x + clamp(Math.log(t / 0.1) / Math.log(100), 0, 1) * w;
    const yOf = (value) => y + h - (value / Math.max(maxBits, 1e-9)) * h;
    renderer.lines([x, y + h, x + w, y + h, x, y, x + w, y], { color: app.colors.line });
    renderer.lines([xOf(1), y, xOf(1), y + h], { color: app.colors.line });
    const values = CURVE.map((t) => entropy(rowAt(query(), t)));
    const curve = CURVE.slice(1).flatMap((t, i) => [xOf(CURVE[i]), yOf(values[i]), xOf(t), yOf(values[i + 1])]);
    renderer.lines(curve, { color: app.colors.accent, lineWidth: 2.5 });
    const dot = { fill: app.colors.accent, stroke: app.colors.panel, lineWidth: 2, radius: 5 };
    renderer.rect(xOf(app.state.temperature) - 5, yOf(bits) - 5, 10, 10, dot);
    const style = { ...app.textStyles.note, size: 11 };
    for (const t of [0.1, 1, 10]) renderer.text(String(t), xOf(t), y + h + 14, { ...style, align: "center" });
    renderer.text("sharper", x + w * 0.06, y + h + 14, { ...style });
    renderer.text("flatter", x + w * 0.94, y + h + 14, { ...style, align: "right" });
    renderer.text(`${maxBits.toFixed(1)} bits`, x + w, y - 10, { ...style, align: "right" });
  }

  return {
    label: "Temperature: the attention weights of one query at another temperature.",
    keys: "Up and down select the query, left and right change the temperature.",
    touch: "Select the query in the menu and move the slider.",
    query,
    hint: () => "Scores are divided by the temperature before the softmax. Pale bars are the recorded weights. "
      + "The initial query is one with medium entropy.",
    size(room) {
      const [width, keys] = [Math.min(room.width - 48, 1200), app.keys()];
      const rowHeight = clamp((room.height - TOP - 16) / keys.length, 24, 56);
      layout = { width, left: (room.width - width) / 2, keys, rowHeight };
      return { width: 0, height: TOP + keys.length * rowHeight + 16 };
    },
    draw(renderer, box) {
      const row = rowAt(query(), app.state.temperature);
      if (!row) return void app.drawLoading(renderer, box);
      const recorded = rowAt(query(), 1);
      const { left, width, keys, rowHeight } = layout;
      const [start, barRoom] = [left + 150, width - 150 - 70];
      const max = Math.max(rowMax(row), rowMax(recorded)) || 1;
      const first = Math.max(0, Math.floor((box.y - TOP) / rowHeight));
      keys.slice(first, first + Math.ceil(box.height / rowHeight) + 1).forEach((key, i) => {
        const y = TOP + (first + i + 0.5) * rowHeight;
        const token = app.keyTokens()[key];
        if (app.matchesSearch(token)) renderer.rect(left, y - rowHeight / 2 + 1, width, rowHeight - 2, { fill: app.colors.mark, alpha: 0.4, radius: 5 });
        renderer.text(fitText(displayText(token), 132), start - 12, y, { color: app.colors.ink, align: "right" });
        const barWidth = (weight) => weight && Math.max(1, (barRoom * weight) / max);
        const bar = (weight, height, style) => renderer.rect(start, y - height / 2, barWidth(weight), height, { ...style, radius: 3 });
        bar(recorded[key], rowHeight * 0.66, { fill: app.colors.muted, alpha: 0.22 });
        bar(row[key], rowHeight * 0.4, { fill: app.colors.accent });
        renderer.text(formatWeight(row[key], rowMax(row)), left + width, y, { size: 12, color: app.colors.ink, align: "right" });
      });
      drawEntropy(renderer, row, recorded);
    },
    hit(x, y) {
      const key = layout.keys[Math.floor((y - TOP) / layout.rowHeight)];
      return y < TOP || key === undefined || x < layout.left || x > layout.left + layout.width ? null : { key, passive: true };
    },
    hover: (target) => app.setHovered(target && query(), target?.key ?? null),
    tooltip({ key }) {
      const [row, recorded] = [app.state.temperature, 1].map((t) => rowAt(query(), t));
      const text = (weights) => formatWeight(weights[key], rowMax(weights));
      return row ? [text(row), `recorded ${text(recorded)}`, `${app.tokenText("query", query())} → ${app.tokenText("key", key)}`] : [];
    },
    reveal: ({ role, index }) => role === "key" && app.viewport.reveal(0, TOP + layout.keys.indexOf(index) * layout.rowHeight, 1, layout.rowHeight),
    move(dx, dy) {
      const queries = app.queries();
      const steps = Math.round(Math.log(app.state.temperature) / Math.log(1.1)) + dx; // whole steps from 1
      if (dx) app.set({ temperature: clamp(+(1.1 ** steps).toFixed(3), 0.1, 10) });
      if (dy) app.set({ query: queries[clamp(queries.indexOf(query()) + dy, 0, queries.length - 1)] });
    },
  };
}

// How much each head matters for an answer: a bar below its thumbnail in the grid, and a list of the heads that matter most.

import { element } from "./elements.js";

const LISTED = 12;
const BAR = 4; // pixels

const valueOf = (app, { layer, head }) => app.example().layers[layer].importance?.[head];
const valueText = (value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toPrecision(3)}`;

// All heads of the example with a value, the largest drop first.
function ranking(app) {
  const heads = app.example().layers.flatMap(({ importance }, layer) => (importance ?? []).map((value, head) => ({ layer, head, value })));
  return heads.sort((a, b) => b.value - a.value);
}

const largest = (app) => Math.max(...ranking(app).map(({ value }) => Math.abs(value)), 1e-30);

// Draws the bars of the heads at their thumbnails: filled if the target drops without the head, an outline if it rises.
export function importanceBars(app, renderer) {
  const max = largest(app);
  return (cell, x, y, side) => {
    const value = valueOf(app, cell);
    if (value === undefined) return;
    const width = Math.max(1, (side * Math.abs(value)) / max);
    renderer.rect(x, y + side + 3, width, BAR, value > 0 ? { fill: app.colors.accent, radius: 1 } : { stroke: app.colors.muted, radius: 1 });
  };
}

// The line of a tooltip, or none.
export function importanceFacts(app, cell) {
  const value = valueOf(app, cell);
  return value === undefined ? [] : [`without it, the target ${value < 0 ? "rises" : "drops"} by ${valueText(Math.abs(value)).slice(1)}`];
}

// The heads that matter most, as a list; empty if nothing was measured.
export function importanceList(app) {
  const [best, max] = [ranking(app).slice(0, LISTED), largest(app)];
  if (!best.length) return [];
  const items = best.map(({ layer, head, value }) => {
    const bar = element("span", { className: "bar" });
    bar.style.width = `${(100 * Math.abs(value)) / max}%`;
    const name = `${app.example().layers[layer].kind} ${app.depth(layer)}, ${app.headName(head, [layer])}`;
    return element("li", {}, element("span", { className: "name", title: app.example().layers[layer].name }, name), element("span", { className: "value" }, valueText(value)), bar);
  });
  return [element("h2", { textContent: "Drop of the target without a head" }), element("ol", { className: "weights" }, ...items)];
}

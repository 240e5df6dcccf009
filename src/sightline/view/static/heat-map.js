// A picture with a heat map over it: one value per cell of a grid. Cells of little effect are dimmed, so the picture keeps
// its colors where it matters. Outlines mark the strongest cells, solid where they count for and dashed where against.
import { element, svg } from "./elements.js";
import { outline } from "./outline.js";

const MOVES = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
const STROKES = { for: ["#ff9d1e", 2.5, []], against: ["#4fb3ff", 2.5, [5, 5]] }; // as in heat-map.css

// `look` is that of Python's `heatmaps.Look`. `describe(row, column, value)` is the text of a cell; the map shows it for
// the pointer, and for the arrow keys if the map has the focus. `update` draws values, row by row; `scale` is the absolute
// value at which a picture is not dimmed at all. Maps that share a scale can be compared. `draw` draws picture, map and
// outlines on a canvas, as they are shown.
export function heatMap({ picture, rows, columns, look, name, describe }) {
  const veil = element("canvas", { className: "veil", width: columns, height: rows });
  const outlines = svg("svg", { viewBox: `0 0 ${columns} ${rows}`, preserveAspectRatio: "none" });
  const tip = element("output", { className: "tip", hidden: true });
  const node = element("div", { className: "heat-map", tabIndex: 0, role: "img" }, picture, veil, outlines, tip);
  let values = [];
  let cell = null;
  let edges = []; // [kind, edges] each

  const show = (next) => {
    cell = next;
    tip.hidden = cell === null;
    outlines.querySelector(".cursor")?.remove();
    if (cell === null) return;
    const [row, column] = cell;
    tip.textContent = describe(row, column, values[row * columns + column]);
    tip.classList.toggle("below", row < rows / 2);
    outlines.append(svg("rect", { class: "cursor", x: column, y: row, width: 1, height: 1 }));
  };
  node.addEventListener("pointermove", (event) => {
    const box = node.getBoundingClientRect();
    const at = [((event.clientY - box.top) / box.height) * rows, ((event.clientX - box.left) / box.width) * columns];
    const [row, column] = at.map(Math.floor);
    show(row >= 0 && row < rows && column >= 0 && column < columns ? [row, column] : null);
  });
  node.addEventListener("pointerleave", () => show(null));
  node.addEventListener("blur", () => show(null));
  node.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && cell !== null) return show(null);
    const move = MOVES[event.key];
    if (!move) return;
    event.preventDefault();
    const [row, column] = cell === null ? strongest(values, columns)[0] ?? [0, 0] : [cell[0] + move[0], cell[1] + move[1]];
    show([Math.min(rows - 1, Math.max(0, row)), Math.min(columns - 1, Math.max(0, column))]);
  });

  const update = (next, scale) => {
    values = next;
    const context = veil.getContext("2d");
    const pixels = context.createImageData(columns, rows);
    values.forEach((value, i) => (pixels.data[4 * i + 3] = Math.round(255 * look.veil * (1 - clearness(value, scale, look)))));
    context.putImageData(pixels, 0, 0);
    outlines.replaceChildren();
    edges = [["for", 1], ["against", -1]].map(([kind, sign]) => [kind, outline(values.map((value) => scale > 0 && sign * value >= look.outline * scale), rows, columns)]);
    for (const [kind, own] of edges) {
      const path = own.map(([column, row, dx]) => `M${column} ${row}${dx ? "h" : "v"}1`).join("");
      if (path) outlines.append(svg("path", { class: "halo", d: path }), svg("path", { class: kind, d: path }));
    }
    const cells = strongest(values, columns).map(([row, column]) => `row ${row + 1} column ${column + 1}`);
    node.setAttribute("aria-label", cells.length ? `${name}; strongest of ${rows} x ${columns} regions: ${cells.join(", ")}` : name);
    show(null);
  };
  const draw = (context, width, height) => {
    context.imageSmoothingEnabled = !picture.classList.contains("pixelated");
    context.drawImage(picture, 0, 0, width, height);
    context.imageSmoothingEnabled = true;
    context.drawImage(veil, 0, 0, width, height);
    const inside = (value, size) => Math.min(size - 2, Math.max(2, value)); // lines at the border are visible as a whole
    for (const [kind, own] of edges) {
      const path = new Path2D();
      for (const [column, row, dx, dy] of own) {
        path.moveTo(inside((column * width) / columns, width), inside((row * height) / rows, height));
        path.lineTo(inside(((column + dx) * width) / columns, width), inside(((row + dy) * height) / rows, height));
      }
      for (const [color, lineWidth, dashes] of [["rgb(0 0 0 / 65%)", 4.5, []], STROKES[kind]]) {
        Object.assign(context, { strokeStyle: color, lineWidth, lineCap: dashes.length ? "butt" : "round" });
        context.setLineDash(dashes);
        context.stroke(path);
      }
      context.setLineDash([]);
    }
  };
  return { node, update, draw };
}

// From 0, dimmed, to 1, not dimmed.
const clearness = (value, scale, look) => (scale > 0 ? Math.min(1, Math.abs(value) / scale) ** look.gamma : 0);

// The three cells with the largest absolute values, as [row, column].
function strongest(values, columns) {
  const order = values.map((_, i) => i).filter((i) => values[i] !== 0);
  order.sort((i, j) => Math.abs(values[j]) - Math.abs(values[i]));
  return order.slice(0, 3).map((i) => [Math.floor(i / columns), i % columns]);
}

// The matrix view: rows are queries, columns are keys, cells print their weights.

import { matrixImage, textColorOn } from "./colors.js";
import { clamp, displayText, formatWeight } from "./format.js";
import { patchImage } from "./patches.js";
import { fitText, textWidth } from "./renderer.js";

const MIN_FONT = 9; // pixels
const LABEL = { size: 12 };
const TITLE = 20; // height of the title of an axis
const [MIN_PATCH, MAX_PATCH] = [6, 34]; // pixels of a patch on an axis

export function matrixView(app) {
  let [layout, image] = [null, {}];
  let hovered = null;

  const focusedCell = () => hovered ?? { query: app.state.query, key: app.state.key };
  const maxWidth = (tokens, positions) =>
    Math.max(8, ...positions.slice(0, 400).map((index) => textWidth(displayText(tokens[index]).slice(0, 24), LABEL)));

  const hasPatches = (role) => layout.side >= MIN_PATCH && Boolean(app.sequence(role).patches);

  // The name of a position, or the patch of an image at it.
  function drawLabel(renderer, role, index, x, y, drawText) {
    const patch = hasPatches(role) && patchImage(app, app.sequence(role), index);
    if (!patch) return drawText();
    const size = Math.min(layout.side - 1, MAX_PATCH);
    renderer.image(patch, x - size / 2, y - size / 2, size, size, { smooth: true });
    const isFocused = focusedCell()[role] === index;
    if (isFocused) renderer.rect(x - size / 2, y - size / 2, size, size, { stroke: app.colors.accent, lineWidth: 2 });
  }

  function drawLabels(renderer, box, matrix) {
    const { left, top, side, keys, queries, x0, horizontal } = layout;
    const focused = focusedCell();
    const [edgeX, edgeY] = [box.x + x0 + left, box.y + top]; // of the cells
    renderer.rect(box.x, box.y, box.width, top, { fill: app.colors.panel });
    renderer.rect(box.x, box.y, x0 + left, box.height, { fill: app.colors.panel });
    const every = Math.ceil(13 / side);
    const labelStyle = (isFocused, token) => ({
      size: clamp(side * 0.7, 9, 12), weight: isFocused || app.matchesSearch(token) ? 700 : 400,
      color: isFocused ? app.colors.accent : app.colors.ink, alpha: 0.9,
    });
    const drawAxis = (role, positions, offset, start, length, draw) => positions.forEach((index, i) => {
      const [at, token] = [offset + i * side, app.sequence(role).tokens[index]];
      if (at + side < start || at > start + length) return;
      const isPatch = hasPatches(role);
      if (!isPatch && i % every && index !== focused[role] && !app.matchesSearch(token)) return;
      draw(index, displayText(token), at + side / 2, labelStyle(index === focused[role], token));
    });
    const patchOffset = 6 + Math.min(side, MAX_PATCH) / 2;
    drawAxis("key", keys, x0 + left, edgeX - side / 2, box.width, (index, text, x, style) => {
      drawLabel(renderer, "key", index, x, edgeY - patchOffset, () => (horizontal
        ? renderer.text(fitText(text, side - 6, style), x, edgeY - 12, { ...style, align: "center" })
        : renderer.text(fitText(text, top - TITLE - 12, style), Math.max(x, edgeX + 6), edgeY - 9, { ...style, rotate: -90 })));
    });
    drawAxis("query", queries, top, edgeY - side / 2, box.height, (index, text, y, style) => {
      drawLabel(renderer, "query", index, edgeX - patchOffset, y, () =>
        renderer.text(fitText(text, left - TITLE - 12, style), edgeX - 9, Math.max(y, edgeY + 6), { ...style, align: "right" }));
    });
    renderer.rect(box.x, box.y, x0 + left, top, { fill: app.colors.panel });
    const [note, [query, key]] = [{ ...app.textStyles.note, size: 11 }, app.axisTitles()];
    renderer.text(`max ${formatWeight(matrix.max, matrix.max)}`, edgeX - 9, edgeY - 12, { ...note, align: "right" });
    const [width, height] = [Math.min(keys.length * side, box.width - x0 - left), Math.min(queries.length * side, box.height - top)];
    renderer.text(key, edgeX + width / 2, box.y + 11, { ...note, align: "center" });
    renderer.text(query, box.x + x0 + 11, edgeY + height / 2, { ...note, align: "center", rotate: -90 });
  }

  function drawNumbers(renderer, box, matrix, size) {
    const { left, top, side, queries, keys, x0 } = layout;
    queries.forEach((query, i) => {
      const y = top + i * side;
      if (y + side < box.y || y > box.y + box.height) return;
      keys.forEach((key, j) => {
        const x = x0 + left + j * side;
        if (x + side < box.x || x > box.x + box.width) return;
        const weight = matrix.data[query * matrix.keys + key];
        renderer.text(matrix.text(query, key).replace(/^<.*/, "≈0"), x + side / 2, y + side / 2, {
          size, align: "center", alpha: Math.abs(weight) < matrix.max / 100 ? 0.6 : 1,
          color: textColorOn(weight, matrix.max, app.mode, app.layer().signed),
        });
      });
    });
  }

  // Labels cover the edges of the drawing, so a cell must be revealed beside and below them.
  const revealCell = (i, j) =>
    app.viewport.reveal(layout.x0 + j * layout.side, i * layout.side, layout.left + layout.side, layout.top + layout.side, 4);

  return {
    label: "Matrix: rows are queries, columns are keys.",
    keys: "Arrow keys move between cells and read their weights, + and − zoom, Escape clears the selection.",
    touch: "Tap a cell to read its weight.",
    hint: () => `Rows are queries, columns are keys. Strong colors are high weights. ${app.isTouch() ? "Tap" : "Hover over"} a cell to read its weight.`,
    size(room) {
      const [queries, keys] = [app.queries(), app.keys()];
      const left = clamp(maxWidth(app.queryTokens(), queries) + 24, 78, 150) + TITLE;
      const labelWidth = maxWidth(app.keyTokens(), keys) + 10;
      const tops = { true: 34 + TITLE, false: clamp(labelWidth + 16, 34, 150) + TITLE }; // with horizontal labels or not
      const sideBelow = (top) => Math.min((room.width - left - 24) / keys.length, (room.height - top - 20) / queries.length);
      const sides = Object.entries(tops).map(([, top]) => clamp(clamp(sideBelow(top), 3, 110) * app.state.zoom, 1, 240));
      const horizontal = labelWidth < sides[0];
      const [side, top] = horizontal ? [sides[0], tops.true] : [sides[1], tops.false];
      const x0 = Math.max(0, (room.width - left - keys.length * side - 16) / 2);
      layout = { left, top, side, queries, keys, x0, horizontal };
      return { width: x0 + left + keys.length * side + 16, height: top + queries.length * side + 16 };
    },
    draw(renderer, box) {
      const matrix = app.matrices.current();
      if (!matrix) return void app.drawLoading(renderer, box);
      const { left, top, side, queries, keys, x0 } = layout;
      const id = [app.matrixKey(), app.mode].join(" ");
      if (image.id !== id || image.matrix !== matrix) {
        const widthAt = (max) => textWidth(formatWeight(app.layer().signed ? -max : max, max), { size: 100 }) / 100;
        const canvas = matrixImage(matrix, app.mode, app.layer().signed, queries, keys);
        image = { id, matrix, canvas, numberWidth: matrix.rowMaxima.reduce((width, max) => Math.max(width, widthAt(max)), 0) };
      }
      const [x, y, width, height] = [x0 + left, top, keys.length * side, queries.length * side];
      renderer.image(image.canvas, x, y, width, height);
      renderer.rect(x - 0.5, y - 0.5, width + 1, height + 1, { stroke: app.colors.line });
      const size = Math.min(16, (side - 5) / image.numberWidth); // all numbers fit, or none are printed
      if (size >= MIN_FONT) drawNumbers(renderer, box, matrix, size);
      const focused = focusedCell();
      const [i, j] = [queries.indexOf(focused.query), keys.indexOf(focused.key)];
      if (i >= 0) renderer.rect(x, y + i * side, width, side, { fill: app.colors.accent, alpha: 0.1 });
      if (j >= 0) renderer.rect(x + j * side, y, side, height, { fill: app.colors.accent, alpha: 0.1 });
      const border = { stroke: app.colors.mark, lineWidth: 2.5, radius: 2 };
      if (i >= 0 && j >= 0) renderer.rect(x + j * side - 1, y + i * side - 1, side + 2, side + 2, border);
      drawLabels(renderer, box, matrix);
    },
    hit(x, y, box) {
      if (x < box.x + layout.x0 + layout.left || y < box.y + layout.top) return null;
      const key = layout.keys[Math.floor((x - layout.x0 - layout.left) / layout.side)];
      const query = layout.queries[Math.floor((y - layout.top) / layout.side)];
      return key === undefined || query === undefined ? null : { query, key };
    },
    scale: () => ({ x: layout.x0 + layout.left, y: layout.top, unit: layout.side }),
    hover(cell) {
      hovered = cell;
      app.setHovered(cell?.query ?? null, cell?.key ?? null);
    },
    tooltip({ query, key }) {
      const matrix = app.matrices.current();
      if (!matrix) return [];
      return [matrix.text(query, key), `${app.tokenText("query", query)} → ${app.tokenText("key", key)}`, app.matrixName()];
    },
    click: ({ query, key }) => app.set({ query, key }),
    move(dx, dy) {
      const [{ queries, keys }, focused] = [layout, focusedCell()];
      const hasCell = focused.query !== null && focused.key !== null;
      const next = (positions, index, step) => positions[clamp(positions.indexOf(index) + (hasCell ? step : 0), 0, positions.length - 1)];
      const [query, key] = [next(queries, focused.query, dy), next(keys, focused.key, dx)];
      hovered = null;
      app.set({ query, key });
      revealCell(queries.indexOf(query), keys.indexOf(key));
    },
    reveal({ role, index }) {
      const [query, key] = role === "key" ? [app.state.query, index] : [index, app.state.key];
      revealCell(Math.max(0, layout.queries.indexOf(query)), Math.max(0, layout.keys.indexOf(key)));
    },
    escape() {
      if (app.state.from !== "grid") return false;
      app.set({ view: "grid", from: null, heads: null, query: null, key: null });
      return true;
    },
  };
}

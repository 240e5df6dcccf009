// The grid view: a thumbnail of each layer and head. Thumbnails are made when they become visible, within a time limit per frame.

import { matrixImage } from "./colors.js";
import { clamp, formatWeight } from "./format.js";
import { importanceBars, importanceFacts } from "./importance.js";
import { meanEntropy } from "./weights.js";

const [LEFT, TOP, GAP] = [76, 62, 10];
const FRAME_MS = 40; // for new thumbnails; a fifth of it while scrolling
const MAX_THUMBNAILS = 2000; // in the cache

export function gridView(app) {
  const thumbnails = new Map();
  let [layout, hovered, selected] = [null, null, null]; // selected: by keyboard

  const layers = () => app.layersOfKind();
  const layerMeta = (layer) => app.example().layers[layer];

  function thumbnail(layer, head) {
    const { example, temperature, hide, join, sentences, oneScale } = app.state;
    const id = [example, temperature, hide, join, sentences, oneScale, app.mode, layer, head].join(" ");
    if (thumbnails.has(id)) return thumbnails.get(id);
    if (performance.now() > layout.deadline) return app.refresh();
    const matrix = app.matrices.thumbnail(layer, head, app.queries(layer), app.keys(layer));
    app.loading ||= !matrix;
    if (!matrix) return null;
    const max = oneScale ? sharedMax() : matrix.max;
    const image = matrixImage({ ...matrix, max }, app.mode, layerMeta(layer).signed);
    if (thumbnails.size > MAX_THUMBNAILS) thumbnails.clear();
    thumbnails.set(id, image);
    return image;
  }

  // The strongest weight of all layers. With changed weights, which are not known before they are drawn, it is at most 1.
  const sharedMax = () => (app.state.join || app.state.temperature !== 1 ? 1 : Math.max(...layers().map((layer) => layerMeta(layer).max)));

  const exists = ({ layer, head }) => layers().includes(layer) && head < layerMeta(layer).heads.length;
  const focused = () => [hovered, selected].find((cell) => cell && exists(cell)) ?? null;
  // Show one head in the matrix view, with a history entry to return.
  const open = ({ layer, head }) => {
    const combine = app.state.combine === "rollout" ? "mean" : app.state.combine;
    selected = { layer, head };
    app.set({ view: "matrix", layer, heads: [head], combine, from: "grid" }, true);
  };

  function drawMark(renderer, x, y, side) {
    const size = clamp(side * 0.3, 12, 20);
    renderer.rect(x + side - size, y, size, size, { fill: app.colors.panel, alpha: 0.85, radius: 2 });
    renderer.text("≈", x + side - size / 2, y + size / 2, { ...app.textStyles.note, size: size * 0.8, align: "center" });
  }

  return {
    label: "Grid: a thumbnail of each layer and head.",
    keys: "Arrow keys move, Enter opens a head, Escape clears the selection, + and − zoom.",
    touch: "Tap a thumbnail to open it.",
    hint: () => `Each thumbnail is one head: rows are queries, columns are keys. ${app.isTouch() ? "Tap" : "Click"} one to open it. `
      + "Heads marked ≈ attend to all keys nearly equally.",
    size(room) {
      const maxHeads = Math.max(...layers().map((layer) => layerMeta(layer).heads.length));
      const [width, height] = [(room.width - LEFT - 24) / maxHeads - GAP, (room.height - TOP - 16) / layers().length - GAP];
      const side = Math.round(clamp(Math.min(width, Math.max(height, 132)), 44, 400) * app.state.zoom);
      const total = LEFT + maxHeads * (side + GAP) + 16;
      layout = { side, maxHeads, left: Math.max(0, (room.width - total) / 2), step: side + GAP };
      return { width: total, height: TOP + layers().length * layout.step + 16 };
    },
    draw(renderer, box, exporting) {
      const { side, step, left } = layout;
      const cell = focused();
      const drawImportance = importanceBars(app, renderer);
      layout.deadline = exporting ? Infinity : performance.now() + FRAME_MS / (app.viewport.isScrolling() ? 5 : 1);
      layers().forEach((layer, i) => {
        const y = TOP + i * step;
        if (y + side < box.y || y > box.y + box.height) return;
        renderer.text(String(app.depth(layer)), left + LEFT - 16, y + side / 2, { ...app.textStyles.note, align: "right" });
        layerMeta(layer).heads.forEach((_, head) => {
          const x = left + LEFT + head * step;
          if (x + side < box.x || x > box.x + box.width) return;
          const image = thumbnail(layer, head);
          if (image) renderer.image(image, x, y, side, side, { smooth: image.width > side });
          else renderer.rect(x, y, side, side, { fill: app.colors.line, alpha: 0.5, radius: 3 });
          const isFocused = cell && cell.layer === layer && cell.head === head;
          const border = isFocused ? { stroke: app.colors.accent, lineWidth: 2.5 } : { stroke: app.colors.line };
          renderer.rect(x - 0.5, y - 0.5, side + 1, side + 1, { ...border, radius: 2 });
          drawImportance({ layer, head }, x, y, side);
          if (app.isNearUniform(layer, [head])) drawMark(renderer, x, y, side);
        });
      });
      renderer.rect(box.x, box.y, box.width, TOP - 8, { fill: app.colors.panel });
      const note = { ...app.textStyles.note, size: 11 };
      renderer.text("Layer", left + LEFT - 16, box.y + TOP - 20, { ...note, align: "right" });
      renderer.text("Head", left + LEFT, box.y + 14, note);
      const scale = app.state.oneScale ? `One scale, 0 to ${formatWeight(sharedMax())}` : "Each head has its own scale";
      renderer.text(scale, Math.max(left + LEFT + 40, Math.min(left + LEFT + layout.maxHeads * step - GAP, box.x + box.width - 12)), box.y + 14, { ...note, align: "right" });
      for (let head = 0; head < layout.maxHeads; head++) {
        const x = left + LEFT + head * step + side / 2;
        renderer.rect(x - side / 2, box.y + TOP - 12, side, 3, { fill: app.headColor(head), radius: 1.5 });
        renderer.text(app.headName(head, layers()).replace("head ", ""), x, box.y + TOP - 26, { ...app.textStyles.note, align: "center" });
      }
    },
    hit(x, y, box) {
      if (y < box.y + TOP - 8) return null;
      const [head, row] = [Math.floor((x - layout.left - LEFT) / layout.step), Math.floor((y - TOP) / layout.step)];
      const layer = layers()[row];
      if (layer === undefined || head < 0 || head >= layerMeta(layer).heads.length) return null;
      return { layer, head };
    },
    scale: () => ({ x: layout.left + LEFT, y: TOP, unit: layout.step }),
    hover: (cell) => (hovered = cell),
    describe: () => (focused() ? app.view().tooltip(focused()).join(" · ") : ""),
    tooltip({ layer, head }) {
      const matrix = layerMeta(layer).normalized ? app.matrices.head(layer, head) : null;
      const facts = matrix ? [`entropy ${meanEntropy(matrix).toFixed(2)} bits`] : [];
      if (app.isNearUniform(layer, [head])) facts.push("nearly uniform");
      return [`Layer ${app.depth(layer)}, ${app.headName(head, [layer])}`, layerMeta(layer).name, ...facts, ...importanceFacts(app, { layer, head })];
    },
    click: open,
    move(dx, dy) {
      const [list, current] = [layers(), focused()];
      const from = current ?? { layer: list[0], head: dx > 0 ? -1 : 0 };
      const row = clamp(list.indexOf(from.layer) + (current ? dy : 0), 0, list.length - 1);
      const head = clamp(from.head + dx, 0, layerMeta(list[row]).heads.length - 1);
      [hovered, selected] = [null, { layer: list[row], head }];
      app.viewport.reveal(layout.left + LEFT + head * layout.step, TOP + row * layout.step, layout.side, layout.side);
      app.refresh();
    },
    enter: () => focused() && open(focused()),
    escape: () => (selected = null),
  };
}

// Export of the whole current view, not only its visible part, as SVG or PNG.

import { element } from "./elements.js";
import { canvasRenderer, svgRenderer } from "./renderer.js";

const [MAX_PIXELS, MAX_SIDE] = [64e6, 16000];
const NULL_RENDERER = Object.fromEntries(["rect", "lines", "text", "image"].map((method) => [method, () => {}]));

export async function exportView(app, format) {
  const [view, room] = [app.view(), app.viewport.room()];
  let width, height;
  do {
    await new Promise((resolve) => setTimeout(resolve, 30));
    if (app.view() !== view) return;
    const size = view.size(room);
    [width, height] = [Math.ceil(Math.max(size.width, room.width)), Math.ceil(size.height)];
  } while (!drawView(app, view, NULL_RENDERER, width, height)); // until everything is loaded
  const blob = await (format === "svg" ? toSvg : toPng)(app, view, width, height);
  const link = element("a", { href: URL.createObjectURL(blob), download: `${fileName(app)}.${format}` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  app.refresh();
}

// Returns whether all weights and images were loaded.
function drawView(app, view, renderer, width, height) {
  app.loading = false;
  renderer.rect(0, 0, width, height, { fill: app.colors.panel });
  view.draw(renderer, { x: 0, y: 0, width, height }, true);
  return !app.loading;
}

function toSvg(app, view, width, height) {
  const renderer = svgRenderer(width, height);
  drawView(app, view, renderer, width, height);
  return new Blob([renderer.toString()], { type: "image/svg+xml" });
}

function toPng(app, view, width, height) {
  const canvas = document.createElement("canvas");
  const scale = Math.min(2, MAX_SIDE / Math.max(width, height), Math.sqrt(MAX_PIXELS / (width * height)));
  [canvas.width, canvas.height] = [Math.round(width * scale), Math.round(height * scale)];
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  drawView(app, view, canvasRenderer(context), width, height);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}

function fileName(app) {
  const title = app.meta.title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-+|-+$/g, "").slice(0, 60) || "attention";
  const [{ view, layer }, { call }] = [app.state, app.layer()];
  return `${title}-${view}${view === "grid" ? "" : `-layer-${app.depth(layer)}${call ? `-call-${call + 1}` : ""}`}`;
}

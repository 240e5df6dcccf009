// The whole of the current view as a file, not only the part in the window.

import { el } from "./dom.js";
import { canvasPen, svgPen } from "./pen.js";

const [MOST_PIXELS, LONGEST] = [64e6, 16000];
const BLANK = Object.fromEntries(["rect", "lines", "text", "image"].map((stroke) => [stroke, () => {}]));

export async function exportView(app, format) {
  const [view, room] = [app.view(), app.stage.room()];
  let width, height;
  do {
    await new Promise((later) => setTimeout(later, 30));
    if (app.view() !== view) return;
    const size = view.size(room);
    [width, height] = [Math.ceil(Math.max(size.width, room.width)), Math.ceil(size.height)];
  } while (!paint(app, view, BLANK, width, height)); // until nothing that it needs is still on its way
  const blob = await (format === "svg" ? asSvg : asPng)(app, view, width, height);
  const link = el("a", { href: URL.createObjectURL(blob), download: `${fileName(app)}.${format}` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  app.refresh();
}

// Whether all of it was there.
function paint(app, view, pen, width, height) {
  app.unpacking = false;
  pen.rect(0, 0, width, height, { fill: app.inks.panel });
  view.draw(pen, { x: 0, y: 0, width, height }, true);
  return !app.unpacking;
}

function asSvg(app, view, width, height) {
  const pen = svgPen(width, height);
  paint(app, view, pen, width, height);
  return new Blob([pen.source()], { type: "image/svg+xml" });
}

function asPng(app, view, width, height) {
  const canvas = document.createElement("canvas");
  const sharp = Math.min(2, LONGEST / Math.max(width, height), Math.sqrt(MOST_PIXELS / (width * height)));
  [canvas.width, canvas.height] = [Math.round(width * sharp), Math.round(height * sharp)];
  const context = canvas.getContext("2d");
  context.scale(sharp, sharp);
  paint(app, view, canvasPen(context), width, height);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}

function fileName(app) {
  const title = app.meta.title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-+|-+$/g, "").slice(0, 60) || "attention";
  const [{ view, layer }, { call }] = [app.state, app.layer()];
  return `${title}-${view}${view === "grid" ? "" : `-layer-${app.depth(layer)}${call ? `-call-${call + 1}` : ""}`}`;
}

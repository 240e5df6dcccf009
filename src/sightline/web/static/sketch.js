// A sheet to draw on.
import { element } from "../view/elements.js";
import { canvasFile } from "./images.js";

const SIDE = 280;
const PEN = 9;
const BRUSH = 26; // fills shapes, where there are several colors

// `onStroke` is called when a stroke ends and while it is drawn. `pens` are colors; the first one is used until `choose`.
export function createSketch({ label, onStroke = () => {}, pens = ["#000000"] }) {
  const canvas = element("canvas", { className: "sketch", width: SIDE, height: SIDE, role: "img", ariaLabel: label });
  const context = canvas.getContext("2d");
  const strokes = []; // a color and a list of points each
  let [color] = pens;
  let pen = null;

  const point = (event) => {
    const box = canvas.getBoundingClientRect();
    return [((event.clientX - box.left) / box.width) * SIDE, ((event.clientY - box.top) / box.height) * SIDE];
  };
  function paint() {
    context.fillStyle = "#ffffff";
    context.fillRect(0, 0, SIDE, SIDE);
    Object.assign(context, { lineWidth: pens.length > 1 ? BRUSH : PEN, lineCap: "round", lineJoin: "round" });
    for (const { color: own, points: [first, ...rest] } of strokes) {
      context.strokeStyle = own;
      context.beginPath();
      context.moveTo(...first);
      for (const next of rest.length ? rest : [first]) context.lineTo(...next);
      context.stroke();
    }
  }
  canvas.addEventListener("pointerdown", (event) => {
    event.preventDefault();
    canvas.setPointerCapture(event.pointerId);
    strokes.push({ color, points: (pen = [point(event)]) });
    paint();
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!pen) return;
    pen.push(...(event.getCoalescedEvents?.() ?? [event]).map(point));
    paint();
    onStroke();
  });
  for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => pen && ((pen = null), onStroke()));
  paint();
  return {
    node: canvas,
    choose: (next) => (color = next),
    isEmpty: () => strokes.length === 0,
    clear: () => ((strokes.length = 0), paint()),
    undo: () => (strokes.pop(), paint()),
    toFile: () => canvasFile(canvas, "drawing.png"),
  };
}

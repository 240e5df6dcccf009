// Ways to give images: files, webcam and drawing. The webcam and the sheet open below the buttons.
import { button, element } from "../view/elements.js";
import { filePicker } from "./images.js";
import { createSketch } from "./sketch.js";
import { createWebcam } from "./webcam.js";
import { choice, icon, showError } from "./widgets.js";

const HOLD_MILLISECONDS = 260; // between pictures while the button is held
const INK = { black: "#000000" };

// `what` names the target for screen readers; `onFiles` gets a list of image files. `add` is the verb on the buttons.
export function imageSources({ what, onFiles, multiple = true, add = "Add" }) {
  const picker = filePicker({ label: `Image files for ${what()}`, multiple, onFiles });
  const area = element("div", { className: "source-area" });
  const tools = {
    webcam: button({ className: "tool", ariaPressed: "false", onclick: () => toggle("webcam") }, icon("camera"), "Webcam"),
    sketch: button({ className: "tool", ariaPressed: "false", onclick: () => toggle("sketch") }, icon("pen"), "Draw"),
  };
  const upload = button({ className: "tool", onclick: picker.open }, icon("upload"), "Upload");
  const node = element("div", { className: "sources" }, element("div", { className: "tools" }, upload, tools.webcam, tools.sketch, picker.node), area);
  let open = null; // { name, close }
  let pens = INK; // colors to draw with by name

  function close() {
    open?.close();
    open = null;
    area.replaceChildren();
    Object.values(tools).forEach((tool) => (tool.ariaPressed = "false"));
  }
  function toggle(name) {
    const wasOpen = open?.name === name;
    close();
    if (wasOpen) return;
    tools[name].ariaPressed = "true";
    open = { name, ...(name === "webcam" ? openWebcam() : openSketch()) };
  }

  function openWebcam() {
    const webcam = createWebcam();
    let timer = null;
    const take = async () => {
      const file = await webcam.grab();
      if (file) onFiles([file]);
    };
    const release = () => (clearInterval(timer), (timer = null));
    const shutter = button({ className: "action", onclick: (event) => event.detail === 0 && take() }, multiple ? "Take picture, hold for more" : "Take picture"); // detail is 0 for the keyboard
    shutter.addEventListener("pointerdown", () => {
      take();
      if (multiple) timer = setInterval(take, HOLD_MILLISECONDS);
    });
    for (const name of ["pointerup", "pointerleave", "pointercancel"]) shutter.addEventListener(name, release);
    area.append(webcam.node, element("div", { className: "tools" }, shutter));
    webcam.start().catch((error) => (showError(error), close()));
    return { close: () => (release(), webcam.stop()) };
  }

  function openSketch() {
    const names = Object.keys(pens);
    const sketch = createSketch({ label: `Sheet to draw on for ${what()}. Draw with a mouse, a finger or a pen.`, pens: Object.values(pens) });
    const colors = choice({ legend: "Color", name: "pen", value: names[0], options: names.map((name) => [name, name]), onChange: (name) => sketch.choose(pens[name]), hideLegend: true });
    const give = async () => {
      if (sketch.isEmpty()) return;
      const file = await sketch.toFile();
      sketch.clear();
      onFiles([file]);
    };
    area.append(...(names.length > 1 ? [colors.node] : []), sketch.node, element("div", { className: "tools" }, button({ className: "action", onclick: give }, `${add} drawing`),
      button({ className: "tool", onclick: sketch.undo }, icon("undo"), "Undo line"), button({ className: "tool quiet", onclick: sketch.clear }, "Clear")));
    return { close: () => {} };
  }
  // Draw with these colors; without any, drawing is not offered.
  function usePens(next) {
    if (open?.name === "sketch") close();
    pens = next;
    tools.sketch.hidden = !Object.keys(pens).length;
  }
  return { node, close, usePens, isOpen: () => open !== null, openFiles: picker.open };
}

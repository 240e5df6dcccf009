// A place for one image: drop, paste, file picker, webcam and drawing, with a preview, what the model knows and images to try.
import { button, element } from "../view/elements.js";
import { acceptImages, prepareImage } from "./images.js";
import { imageSources } from "./sources.js";
import { plainDescription } from "./text-task.js";

export function createDrop({ what, onImage }) {
  const preview = element("img", { className: "preview", alt: `Preview of ${what}`, hidden: true });
  const sources = imageSources({ what: () => what, onFiles: use, multiple: false, add: "Use" });
  const zone = button({ className: "drop-zone", onclick: sources.openFiles }, preview, element("span", {}, "Drop, paste or choose an image"));
  const [about, examples] = [element("p", { className: "note about" }), element("div", { className: "tools", role: "group", ariaLabel: "Images to try" })];
  const node = element("div", { className: "drop" }, zone, sources.node, about, examples);
  acceptImages(node, use, { isFallback: () => true });

  async function use([file]) {
    const image = await prepareImage(file);
    preview.src = URL.createObjectURL(image);
    preview.onload = preview.onerror = () => URL.revokeObjectURL(preview.src);
    preview.hidden = false;
    onImage(image);
  }
  // Say what a model knows, offer images that it knows, and drawing if it knows drawings.
  function describe(model) {
    sources.usePens(model.pens ?? {});
    about.textContent = plainDescription(model);
    examples.replaceChildren(...(model.examples ?? []).map((url, i) =>
      button({ className: "example-image", ariaLabel: `Try image ${i + 1}`, onclick: () => use([imageFile(url, `example-${i + 1}`)]) }, element("img", { src: url, alt: "", ariaHidden: "true" }))));
  }
  return { node, describe, close: sources.close };
}

// The file of a data URL.
function imageFile(url, name) {
  const type = url.slice("data:".length, url.indexOf(";"));
  const bytes = Uint8Array.from(atob(url.slice(url.indexOf(",") + 1)), (character) => character.charCodeAt(0));
  return new File([bytes], name, { type });
}

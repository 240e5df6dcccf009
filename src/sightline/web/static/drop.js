// A place for one image: drop, paste, file picker, webcam and drawing, with a preview.
import { button, element } from "../view/elements.js";
import { acceptImages, prepareImage } from "./images.js";
import { imageSources } from "./sources.js";

export function createDrop({ what, onImage }) {
  const preview = element("img", { className: "preview", alt: `Preview of ${what}`, hidden: true });
  const sources = imageSources({ what: () => what, onFiles: use, multiple: false, add: "Use" });
  const zone = button({ className: "drop-zone", onclick: sources.openFiles }, preview, element("span", {}, "Drop, paste or choose an image"));
  const node = element("div", { className: "drop" }, zone, sources.node);
  acceptImages(node, use, { fallback: true });

  async function use([file]) {
    const image = await prepareImage(file);
    preview.src = URL.createObjectURL(image);
    preview.onload = preview.onerror = () => URL.revokeObjectURL(preview.src);
    preview.hidden = false;
    onImage(image);
  }
  return { node, close: sources.close };
}

// Images from files, by drop, file picker and paste.
import { element } from "../view/elements.js";
import { toast } from "./widgets.js";

const MAX_SIDE = 512; // the server keeps images at most this large
const MAX_FILES = 500; // of a folder that is dropped
const IMAGES = "image/*";
const IMAGE_NAME = /\.(png|jpe?g|gif|bmp|webp|tiff?|heic|heif|avif)$/i;
const isArchive = (file) => /\.(sightline|zip)$/i.test(file.name ?? "");
const isImage = (file) => file.type.startsWith("image/") || IMAGE_NAME.test(file.name ?? "");

// The image as the page sends it: upright and at most 512 pixels a side. One that the browser cannot read is sent as it is.
export async function prepareImage(file) {
  let bitmap;
  try {
    bitmap = await createImageBitmap(file, { imageOrientation: "from-image" });
  } catch {
    return file;
  }
  const scale = Math.min(1, MAX_SIDE / Math.max(bitmap.width, bitmap.height));
  if (scale === 1 && file.size < 400e3 && ["image/png", "image/jpeg"].includes(file.type)) return file;
  const canvas = element("canvas", { width: Math.max(1, Math.round(bitmap.width * scale)), height: Math.max(1, Math.round(bitmap.height * scale)) });
  const context = canvas.getContext("2d");
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  return canvasFile(canvas, file.name ?? "image", file.type === "image/jpeg" ? "image/jpeg" : "image/png");
}

export function canvasFile(canvas, name, type = "image/png") {
  return new Promise((resolve) => canvas.toBlob((blob) => resolve(new File([blob], name, { type })), type, 0.92));
}

// A hidden file input. `open` shows the picker.
export function filePicker({ label, multiple = true, accept = IMAGES, onFiles }) {
  const input = element("input", { type: "file", accept, multiple, className: "visually-hidden", ariaLabel: label, tabIndex: -1 });
  input.addEventListener("change", () => {
    const files = [...input.files];
    input.value = "";
    if (files.length) accept === IMAGES && files.some(isArchive) ? give(files, onFiles) : onFiles(files);
  });
  return { node: input, open: () => input.click() };
}

const targets = new Map(); // node -> { onFiles, isFallback }

// Let a node take dropped and pasted images. A paste goes to the target that has the focus or is under the pointer, or
// otherwise to the visible target whose `isFallback()` is true.
export function acceptImages(node, onFiles, { isFallback = () => false } = {}) {
  targets.set(node, { onFiles, isFallback });
  let depth = 0; // of nested elements that the pointer has entered
  const mark = (change) => node.classList.toggle("dropping", (depth = Math.max(0, depth + change)) > 0);
  node.addEventListener("dragenter", (event) => (event.preventDefault(), mark(1)));
  node.addEventListener("dragleave", () => mark(-1));
  node.addEventListener("dragover", (event) => event.preventDefault());
  node.addEventListener("drop", (event) => {
    event.preventDefault();
    mark(-depth);
    droppedFiles(event.dataTransfer).then((files) => give(files, onFiles));
  });
}

let archives = null; // { node, onFile }

// Let a tab open a classifier: a .sightline file or a zip of images, dropped anywhere on it, pasted, or chosen as an image.
export function acceptArchives(node, onFile) {
  archives = { node, onFile };
  node.addEventListener("drop", (event) => {
    if (event.defaultPrevented) return; // by a target for images within it
    event.preventDefault();
    droppedFiles(event.dataTransfer).then((files) => give(files, () => toast("Drop images on one of the classes, or on “Try it”.")));
  });
}

// The files of a drop, also those in folders.
async function droppedFiles({ files, items }) {
  const all = [...files];
  const entries = [...items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  return entries.some(({ isDirectory }) => isDirectory) ? (await Promise.all(entries.map(filesOf))).flat().slice(0, MAX_FILES) : all;
}
async function filesOf(entry) {
  if (entry.isFile) return [await new Promise((resolve, reject) => entry.file(resolve, reject))];
  const reader = entry.createReader();
  const found = [];
  while (found.length < MAX_FILES) {
    const batch = await new Promise((resolve, reject) => reader.readEntries(resolve, reject)); // at most 100 at a time
    if (!batch.length) break;
    found.push(...(await Promise.all(batch.map(filesOf))).flat());
  }
  return found;
}

function give(files, onFiles) {
  const [images, archive] = [files.filter(isImage), files.find(isArchive)];
  if (images.length) {
    onFiles(images);
    if (archive) toast(`Only the images are used. Open ${archive.name} without them, in the tab Few-shot.`, { kind: "error" });
  } else if (archive && archives?.node.checkVisibility()) archives.onFile(archive);
  else if (archive) toast(`Only images can be used here. Open ${archive.name} in the tab Few-shot.`, { kind: "error" });
  else toast(files.length ? "Only images can be used here." : "Drop or paste an image file. Links to images are not read.", { kind: "error" });
}

document.addEventListener("paste", (event) => {
  const files = [...event.clipboardData.files];
  if (!files.length) return; // text
  const visible = [...targets].filter(([node]) => node.isConnected && node.offsetParent !== null);
  const found = visible.find(([node]) => node.contains(document.activeElement)) ?? visible.find(([node]) => node.matches(":hover")) ?? visible.find(([, { isFallback }]) => isFallback());
  if (!visible.length) return;
  event.preventDefault();
  if (!found) return toast("Point at one of the classes, then paste.");
  give(files, found[1].onFiles);
});
for (const name of ["dragover", "drop"]) addEventListener(name, (event) => event.preventDefault()); // do not leave the page

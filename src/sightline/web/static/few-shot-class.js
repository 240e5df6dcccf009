// The card of one class: its name, its images, and ways to add more.
import { button, element } from "../view/elements.js";
import { acceptImages, prepareImage } from "./images.js";
import { imageSources } from "./sources.js";
import { icon, percent, showRefused } from "./widgets.js";

const MAX_FILES = 64; // of one request

export function createClassCard(store, { classId: firstId, name: firstName, onRemoved }) {
  const owner = store.owner();
  let classId = firstId;
  let waiting = []; // images that are not sent yet: { file, tile }
  let isSending = false;
  const refused = []; // files that the server refused, until all are sent
  const what = () => `class ${title.value}`;
  const title = element("input", { type: "text", className: "class-name", value: firstName, maxLength: 80, ariaLabel: "Class name", autocomplete: "off", spellcheck: false });
  const count = element("span", { className: "note" });
  const accuracy = element("span", { className: "note" });
  const close = button({ className: "tool quiet icon-only", onclick: removeClass }, icon("close"));
  const images = element("div", { className: "thumbnails" });
  const hint = button({ className: "drop-hint", onclick: () => sources.openFiles() }, "Drop, paste or choose images");
  const sources = imageSources({ what, onFiles: addFiles });
  const node = element("article", { className: "card class-card" },
    element("header", {}, title, close), element("div", { className: "counts" }, count, accuracy), images, hint, sources.node);
  acceptImages(node, addFiles);

  title.addEventListener("keydown", (event) => event.key === "Enter" && title.blur());
  title.addEventListener("focus", () => title.select());
  title.addEventListener("change", () => {
    title.value = title.value.trim() || name();
    if (classId !== null && title.value !== name()) store.renameClass(classId, title.value);
    label();
  });
  const own = (state = store.state()) => state?.classes.find(({ id }) => id === classId) ?? null;
  const name = () => own()?.name ?? (title.value.trim() || firstName);

  async function addFiles(files) {
    for (const file of files) {
      const tile = element("div", { className: "thumbnail waiting" });
      images.append(tile);
      waiting.push({ file: prepareImage(file), tile });
    }
    hint.hidden = true;
    send();
  }
  // Send the waiting images together; those that are added meanwhile follow in the next request.
  async function send() {
    if (isSending || !waiting.length) return;
    isSending = true;
    const [batch, rest] = [waiting.slice(0, MAX_FILES), waiting.slice(MAX_FILES)];
    waiting = rest;
    const files = await Promise.all(batch.map(({ file }) => file));
    const target = classId === null ? { label: title.value.trim() || firstName } : { class_id: classId };
    await store.addImages(target, files, owner, (more) => refused.push(...more));
    batch.forEach(({ tile }) => tile.remove());
    isSending = false;
    if (!waiting.length && refused.length) showRefused(refused.splice(0));
    update(store.state());
    send();
  }
  function removeClass() {
    if (classId === null) return onRemoved();
    store.removeClass(classId).then((answer) => answer && store.offerUndo(`Removed ${what()}.`, answer));
  }
  function label() {
    close.ariaLabel = close.title = `Remove ${what()}`;
    node.ariaLabel = `Class ${title.value}`;
  }
  function thumbnail({ id, url, name: fileName }, state) {
    const warning = state.warnings.find(({ examples }) => examples.includes(id));
    const image = element("img", { src: url.replace(/^\//, ""), alt: fileName, loading: "lazy", title: warning?.text ?? fileName, draggable: false });
    const remove = button({ className: "remove", ariaLabel: `Remove image ${fileName}`, onclick: () => store.removeImage(id).then((answer) => answer && store.offerUndo(`Removed ${fileName}.`, answer)) }, icon("close"));
    const tile = element("div", { className: `thumbnail ${warning ? "doubtful" : ""}` }, image, remove);
    tile.dataset.id = id;
    return tile;
  }
  let shown = "";
  function update(state) {
    const current = own(state);
    if (current && document.activeElement !== title) title.value = current.name;
    label();
    const examples = current?.examples ?? [];
    const key = JSON.stringify([examples.map(({ id }) => id), state?.warnings]);
    if (key !== shown) {
      shown = key;
      const tiles = new Map([...images.children].map((tile) => [tile.dataset.id, tile]));
      const doubtful = new Set(state?.warnings.flatMap((warning) => warning.examples) ?? []);
      images.replaceChildren(...examples.map((example) => {
        const tile = tiles.get(String(example.id));
        return tile && !doubtful.has(example.id) && !tile.classList.contains("doubtful") ? tile : thumbnail(example, state);
      }), ...waiting.map(({ tile }) => tile));
    }
    hint.hidden = examples.length + waiting.length > 0;
    count.textContent = examples.length === 1 ? "1 image" : `${examples.length} images`;
    accuracy.textContent = current?.accuracy === null || current?.accuracy === undefined ? "" : `${percent(current.accuracy)} recognized`;
    node.classList.toggle("is-empty", !examples.length);
  }
  const dispose = () => (sources.close(), node.remove());
  return {
    node, update, dispose, name,
    classId: () => classId,
    bind: (id) => (classId = id),
    remove: () => (sources.close(), onRemoved()),
    closeSources: sources.close,
    focusName: () => title.focus(),
  };
}

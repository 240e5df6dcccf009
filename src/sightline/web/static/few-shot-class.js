// The card of one class: its name, its images, and ways to add more.
import { button, element } from "../view/elements.js";
import { acceptImages, prepareImage } from "./images.js";
import { replaceRows } from "./focus.js";
import { imageSources } from "./sources.js";
import { icon, percent, showRefused, toast } from "./widgets.js";

const MAX_FILES = 64; // of one request

export function createClassCard(store, { classId: firstId, name: firstName, onRemoved }) {
  const owner = store.owner();
  let classId = firstId;
  let [naming, unanswered, lastSent] = [null, 0, null]; // the last request for a name, how many are not answered, and its name
  const waiting = []; // images that are not sent yet: { file, tile }
  let sending = null; // while images are sent
  let isRemoving = false;
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

  title.addEventListener("keydown", ({ key }) => {
    if (key === "Escape") title.value = name();
    if (key === "Enter" || key === "Escape") title.blur();
  });
  title.addEventListener("focus", () => title.select());
  title.addEventListener("blur", showName);
  title.addEventListener("change", () => {
    const next = typed();
    if (!next) toast(`A class must have a name. This one is still called ${name()}.`);
    else if (next !== name()) naming = keepName(next);
    title.value = next || name();
    label();
  });
  const typed = () => title.value.trim().normalize("NFC");
  const own = (state = store.state()) => state?.classes.find(({ id }) => id === classId) ?? null;
  const name = () => (unanswered ? lastSent : own()?.name ?? firstName);
  const card = { id: () => classId, bind: (id) => (classId = id), name: () => typed() || name() };

  async function keepName(next) {
    lastSent = next;
    unanswered++;
    await store.nameClass(card, next, owner);
    unanswered--;
    update(store.state());
  }
  // Show the name that the class has, but not while another one is typed or sent.
  function showName() {
    if (!unanswered && document.activeElement !== title) title.value = name();
    label();
  }

  async function addFiles(files) {
    for (const file of files) {
      const tile = element("div", { className: "thumbnail waiting" });
      images.append(tile);
      waiting.push({ file: prepareImage(file), tile });
    }
    hint.hidden = true;
    sending ??= send();
  }
  // Send the waiting images together; those that are added meanwhile follow in the next request.
  async function send() {
    while (waiting.length) {
      const batch = waiting.splice(0, MAX_FILES);
      const files = await Promise.all(batch.map(({ file }) => file));
      await store.addImages(card, files, owner, (more) => refused.push(...more));
      batch.forEach(({ tile }) => tile.remove());
      if (!waiting.length && refused.length) showRefused(refused.splice(0));
      update(store.state());
    }
    sending = null;
  }
  async function removeClass() {
    if (isRemoving) return;
    isRemoving = true;
    await Promise.all([naming, sending]); // a name or images that are sent may make the class
    const text = `Removed ${what()}.`;
    const answer = classId === null ? onRemoved() : await store.removeClass(classId, owner);
    isRemoving = false;
    if (answer) store.offerUndo(text, answer, () => document.querySelector(`[data-class-id="${classId}"] .class-name`));
  }
  function label() {
    close.ariaLabel = close.title = `Remove ${what()}`;
    node.ariaLabel = `Class ${title.value}`;
  }
  function thumbnail({ id, url, name: fileName }, state) {
    const warning = state.warnings.find(({ examples }) => examples.includes(id));
    const image = element("img", { src: url.replace(/^\//, ""), alt: fileName, loading: "lazy", title: warning?.text ?? fileName, draggable: false });
    const restored = () => images.querySelector(`[data-id="${id}"] button`);
    const remove = button({ className: "remove", ariaLabel: `Remove image ${fileName}`, onclick: () => store.removeImages([id]).then((answer) => answer && store.offerUndo(`Removed ${fileName}.`, answer, restored)) }, icon("close"));
    const tile = element("div", { className: `thumbnail ${warning ? "doubtful" : ""}` }, image, remove);
    tile.dataset.id = id;
    return tile;
  }
  let shown = "";
  function update(state) {
    const current = own(state);
    showName();
    if (classId !== null) node.dataset.classId = classId;
    const examples = current?.examples ?? [];
    const key = JSON.stringify([examples.map(({ id }) => id), state?.warnings]);
    if (key !== shown) {
      shown = key;
      const tiles = new Map([...images.children].map((tile) => [tile.dataset.id, tile]));
      const doubtful = new Set(state?.warnings.flatMap((warning) => warning.examples) ?? []);
      const shownTiles = examples.map((example) => {
        const tile = tiles.get(String(example.id));
        return tile && !doubtful.has(example.id) && !tile.classList.contains("doubtful") ? tile : thumbnail(example, state);
      });
      hint.hidden = false; // it may get the focus
      replaceRows(images, [...shownTiles, ...waiting.map(({ tile }) => tile)], () => hint);
    }
    hint.hidden = examples.length > 0 || images.querySelector(".waiting") !== null; // sent or not, so that nothing below moves
    count.textContent = examples.length === 1 ? "1 image" : `${examples.length} images`;
    accuracy.textContent = current?.accuracy === null || current?.accuracy === undefined ? "" : `${percent(current.accuracy)} recognized`;
    node.classList.toggle("is-empty", !examples.length);
  }
  const dispose = () => (sources.close(), node.remove());
  return {
    node, update, dispose, name,
    classId: card.id,
    bind: card.bind,
    remove: () => (sources.close(), onRemoved()),
    closeSources: sources.close,
    isUntouched: () => classId === null && !unanswered && !sending && !sources.isOpen() && !node.contains(document.activeElement),
    focusName: () => title.focus(),
    focusRemove: () => close.focus(),
  };
}

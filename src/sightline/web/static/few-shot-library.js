// The bar above the classes: name, undo, download, and the saved classifiers.
import { button, element } from "../view/elements.js";
import { request } from "./api.js";
import { isEnabled, setEnabled } from "./focus.js";
import { filePicker } from "./images.js";
import { icon, openDialog, showError, toast } from "./widgets.js";

const when = (text) => new Date(text).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
const classNames = ({ class_names: names, num_classes: count }) => (count ? `${names.join(", ")}${count > names.length ? ", …" : ""}: ` : "");
const amount = (count, one, many) => `${count} ${count === 1 ? one : many}`;

export function createLibrary(store) {
  const name = element("input", { type: "text", className: "classifier-name", maxLength: 80, ariaLabel: "Name of the classifier", placeholder: "Name your classifier", autocomplete: "off" });
  const kept = element("span", { className: "badge", role: "status", title: "Every change is saved by the server of this page. It is there again after a restart" });
  const undoButton = button({ className: "tool", onclick: undo }, icon("undo"), "Undo");
  const download = (format, text) => element("a", { className: "tool", download: "" }, icon("download"), text);
  const downloads = { sightline: download("sightline", ".sightline"), zip: download("zip", "Images (zip)") };
  downloads.sightline.title = "The fitted classifier, for “sightline predict” and Python. It can be opened here again";
  downloads.zip.title = "One folder of images for each class. It can be opened here again";
  const picker = filePicker({ label: "A .sightline file, or a zip file with one folder of images for each class", multiple: false, accept: ".sightline,.zip,application/zip", onFiles: ([file]) => importFile(file) });
  const fresh = button({ className: "tool", onclick: () => isEnabled(fresh) && store.open(null) }, icon("plus"), "New");
  const openButton = button({ className: "tool", onclick: openList }, "Open…");
  const node = element("div", { className: "library", role: "toolbar", ariaLabel: "Classifier" },
    element("span", { className: "name-field" }, name, kept), element("span", { className: "tools" }, downloads.sightline, downloads.zip, undoButton, openButton, fresh, picker.node));

  name.addEventListener("keydown", (event) => event.key === "Enter" && name.blur());
  name.addEventListener("change", () => {
    const next = name.value.trim();
    if (next) return store.update({ name: next });
    name.value = store.state()?.name ?? "";
    if (name.value) toast(`A classifier must have a name. This one is still called ${name.value}.`);
  });

  async function undo() {
    const { undo: step } = store.state() ?? {};
    if (step && (await store.undo())) toast(`Undone: ${step}`);
  }
  async function importFile(file) {
    const notice = toast(`Opening ${file.name}…`, { seconds: 60 });
    try {
      const answer = await request("api/classifiers/import", { form: { archive: file, name: file.name.replace(/\.(zip|sightline)$/i, "").slice(0, name.maxLength) || "My classifier" } });
      await store.open(answer);
      toast(`Opened ${file.name}: ${amount(answer.classes.length, "class", "classes")}, ${amount(answer.num_examples, "image", "images")}.`);
    } catch (error) {
      notice.remove();
      showError(error);
    }
  }
  async function openList() {
    let classifiers;
    try {
      ({ classifiers } = await request("api/classifiers"));
    } catch (error) {
      return showError(error);
    }
    const rows = classifiers.map((item) => {
      const open = button({ className: "entry", onclick: () => store.openId(item.id).then(() => dialog.close(), showError) },
        element("b", {}, item.name || "Untitled"), element("span", {}, `${classNames(item)}${amount(item.num_classes, "class", "classes")}, ${amount(item.num_examples, "image", "images")}, ${when(item.updated)}`));
      const remove = button({ className: "tool quiet", ariaLabel: `Delete ${item.name || "Untitled"}`, onclick: async () => {
        if (remove.textContent !== "Delete for good?") {
          remove.removeAttribute("aria-label"); // the text is its name
          return void (remove.textContent = "Delete for good?");
        }
        try {
          await request(`api/classifiers/${item.id}`, { method: "DELETE" });
          (row.nextElementSibling ?? row.previousElementSibling ?? dialog).querySelector("button").focus();
          row.remove();
          if (store.state()?.id === item.id) store.open(null);
        } catch (error) {
          showError(error);
        }
      } }, "Delete");
      const row = element("li", {}, open, remove);
      return row;
    });
    const content = rows.length ? element("ul", { className: "entries", ariaLabel: "Saved classifiers" }, ...rows) : element("p", { className: "note" }, "Nothing is saved yet. Every classifier is saved as soon as it has a class or an image.");
    const dialog = openDialog("Saved classifiers", [content, element("div", { className: "tools" },
      button({ className: "tool", onclick: () => (dialog.close(), picker.open()) }, icon("upload"), "Open a file"),
      element("span", { className: "note" }, ".sightline, or a zip with one folder of images for each class"))]);
  }
  function update(state) {
    if (document.activeElement !== name) name.value = state?.name ?? "";
    const hasImages = Boolean(state?.num_examples);
    kept.hidden = !state;
    kept.textContent = store.isBusy() ? "Learning…" : "Saved by the server";
    kept.className = `badge ${store.isBusy() ? "" : "good"}`;
    setEnabled(undoButton, Boolean(state?.undo));
    undoButton.title = state?.undo ? `Undo: ${state.undo}` : "Nothing to undo";
    setEnabled(fresh, Boolean(state));
    for (const [format, link] of Object.entries(downloads)) {
      link.hidden = !hasImages || (format === "sightline" && !state.fitted);
      if (!link.hidden) link.href = `${store.path("/download")}?format=${format}`;
    }
  }
  return { node, update, undo, importFile };
}

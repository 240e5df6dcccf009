// The heads of all layers as small pictures: choose one to see it, or switch it off.
import { matrixImage } from "../view/colors.js";
import { button, element } from "../view/elements.js";

// `rows` has an entry for each layer: { layer (its index), mean, heads: [{ matrix, isOff }] } with matrices of `weights.js`.
// `shown` is { layer, head }, where the head is null for the mean. Both are counted from 0, as in the viewer and the API.
export function headGrid({ rows, shown, onShow, onToggle }) {
  const mode = document.documentElement.dataset.theme ?? "light";
  const cell = ({ layer, head, name, title, matrix, isOff, extra }) => {
    const picture = matrixImage(matrix, mode, false);
    picture.className = "thumbnail-map";
    const isShown = shown.layer === layer && shown.head === head;
    const picker = button({ className: `head ${isOff ? "off" : ""}`, ariaPressed: String(isShown), ariaLabel: `Show ${title}`, onclick: () => onShow({ layer, head }) }, picture);
    picker.dataset.focus = `head-${layer}-${head}`;
    return element("div", { className: "head-cell" }, picker, element("span", { className: "head-foot" }, element("span", { className: "head-name" }, name), extra));
  };
  const row = ({ layer, mean, heads }, number) => {
    const cells = heads.map(({ matrix, isOff }, head) => {
      const title = `layer ${number}, head ${head}`;
      const extra = button({ className: "switch", role: "switch", ariaChecked: String(!isOff), ariaLabel: `L${title.slice(1)}`, onclick: () => {
        extra.ariaChecked = String(extra.ariaChecked !== "true"); // at once; the answer follows
        onToggle(layer, head);
      } }, element("span", {}));
      extra.dataset.focus = `switch-${layer}-${head}`;
      return cell({ layer, head, name: String(head), title, matrix, isOff, extra });
    });
    const all = cell({ layer, head: null, name: "mean", title: `layer ${number}, mean of all heads`, matrix: mean, isOff: false, extra: null });
    return element("div", { className: "head-row", role: "group", ariaLabel: `Layer ${number}` }, element("span", { className: "layer-name" }, `Layer ${number}`), element("div", { className: "head-cells" }, all, ...cells));
  };
  return element("div", { className: "head-grid" }, ...rows.map(row));
}

export const headsNote = () => element("p", { className: "note" }, "A head is one way of looking. Choose a picture to see it; use its switch to turn the head off. Layers and heads are counted from 0.");

let isPressed = false;
for (const name of ["pointerdown", "pointerup", "pointercancel"]) addEventListener(name, () => (isPressed = name === "pointerdown"), true);

// Resolves when no button of the mouse is pressed: a click on a control that is replaced meanwhile would be lost.
export async function released() {
  while (isPressed) await new Promise((done) => setTimeout(done, 20));
}

// Rebuild parts of a node and leave the keyboard focus where it was.
export function keepingFocus(node, rebuild) {
  const key = node.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
  rebuild();
  if (key) node.querySelector(`[data-focus="${key}"]`)?.focus({ preventScroll: true });
}

// Heads that are switched off, by the name of their layer.
export function createSwitches() {
  const off = new Map();
  return {
    isOff: (name, head) => off.get(name)?.has(head) ?? false,
    toggle(name, head) {
      const heads = off.get(name) ?? new Set();
      if (!heads.delete(head)) heads.add(head);
      if (heads.size) off.set(name, heads);
      else off.delete(name);
    },
    clear: () => off.clear(),
    isChanged: () => off.size > 0,
    toObject: () => Object.fromEntries([...off].map(([name, heads]) => [name, [...heads].sort((a, b) => a - b)])),
  };
}

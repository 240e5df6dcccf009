// Masks: which keys a query may use. The weights are those of a softmax over the keys that remain.
import { element } from "../view/elements.js";
import { softmax } from "./softmax.js";
import { choice, percent, slider } from "./widgets.js";

const WORDS = ["the", "cat", "sat", "on", "the", "mat", "today", "."];
const IMAGES = ["cat 1", "cat 2", "dog 1", "dog 2", "dog 3", "new 1", "new 2", "new 3"];
const COUNT = WORDS.length;

// For each mask: its words, its slider [label, from, to, value] or null, who may attend to whom, and why not.
const MASKS = {
  none: {
    title: "None", tokens: () => WORDS, setting: null, allows: () => true, reason: () => "",
    text: "Every word may look at every word. Encoders work this way.",
  },
  padding: {
    title: "Padding", tokens: (n) => WORDS.map((word, i) => (i < COUNT - n ? word : "·")), setting: ["Words of padding", 0, 5, 3],
    allows: (_, key, n) => key < COUNT - n, reason: (query, key) => `position ${key + 1} is padding`,
    text: "Sentences of a batch are filled up to one length. Nobody may look at the filling, so that it changes no result.",
  },
  causal: {
    title: "Causal", tokens: () => WORDS, setting: null, allows: (query, key) => key <= query, reason: () => "that word comes later",
    text: "A word may look at itself and at earlier words only. A model that writes needs this: it must not see what it has yet to write.",
  },
  window: {
    title: "Window", tokens: () => WORDS, setting: ["Words on either side", 0, 5, 1],
    allows: (query, key, n) => Math.abs(query - key) <= n, reason: (query, key, n) => `it is more than ${n} away`,
    text: "A word may look at its neighbors only. The cost then grows with the length of a text, not with its square.",
  },
  episode: {
    title: "Episode", tokens: (n) => IMAGES.map((name, i) => (i < n ? name.replace("new", "dog") : `new ${i - n + 1}`)), setting: ["Labelled images", 2, 6, 5],
    allows: (query, key, n) => key < n || key === query, reason: () => "new images do not look at each other",
    text: "The few-shot classifier's mask. Labelled images look at each other, new images look at the labelled ones. No new image changes the answer for another one.",
  },
};
// Fixed scores, so that every mask is shown on the same ones: near and alike words score higher.
const score = (query, key, tokens) => 0.8 * Math.cos(0.9 * (query - key)) - 0.12 * Math.abs(query - key) + (tokens[query] === tokens[key] ? 0.5 : 0);

export function masksLesson() {
  const state = { mask: "causal", query: 4, sizes: Object.fromEntries(Object.entries(MASKS).map(([name, { setting }]) => [name, setting?.[3] ?? 0])) };
  const grid = element("div", { className: "mask-grid", role: "table", ariaLabel: "Attention weights: one row for each query" });
  const explanation = element("p", {});
  const detail = element("p", { className: "finding", role: "status" });
  const setting = element("div", { className: "setting" });
  const kinds = choice({ legend: "Mask", name: "mask", options: Object.entries(MASKS).map(([name, { title }]) => [name, title]), value: state.mask, onChange: (mask) => ((state.mask = mask), build()) });

  const cell = (className, text = "", role = "presentation") => element("div", { className, role }, text);

  function build() {
    const { setting: options, text } = MASKS[state.mask];
    explanation.textContent = text;
    setting.replaceChildren();
    if (options) {
      const [label, min, max] = options;
      setting.append(slider({ label, min, max, step: 1, value: state.sizes[state.mask], onInput: (n) => ((state.sizes[state.mask] = n), update()) }).node);
    }
    update();
  }

  function update() {
    const mask = MASKS[state.mask];
    const size = state.sizes[state.mask];
    const tokens = mask.tokens(size);
    const rows = tokens.map((_, query) =>
      softmax(tokens.map((__, key) => (mask.allows(query, key, size) ? score(query, key, tokens) : -Infinity))));
    grid.replaceChildren(element("div", { className: "mask-row", role: "row" }, cell("corner", "", "columnheader"), ...tokens.map((token) => cell("column", token, "columnheader"))),
      ...rows.map((weights, query) => {
        const cells = weights.map((weight, key) => {
          const isAllowed = mask.allows(query, key, size);
          const node = cell(isAllowed ? "weight" : "weight masked", isAllowed ? String(Math.round(100 * weight)) : "", "cell");
          node.style.setProperty("--weight", percent(weight ** 0.7));
          node.ariaLabel = isAllowed ? `${tokens[query]} to ${tokens[key]}: ${percent(weight)}` : `${tokens[query]} may not attend to ${tokens[key]}`;
          node.classList.toggle("strong", weight > 0.4);
          node.addEventListener("pointerenter", () => describe(query, key));
          return node;
        });
        return element("div", { className: "mask-row", role: "row" }, cell("row-name", tokens[query], "rowheader"), ...cells);
      }));
    const describe = (query, key) => {
      const isAllowed = mask.allows(query, key, size);
      detail.textContent = isAllowed
        ? `“${tokens[query]}” gives ${percent(rows[query][key])} of its attention to “${tokens[key]}”.`
        : `“${tokens[query]}” may not look at “${tokens[key]}”: ${mask.reason(query, key, size)}.`;
    };
    const blocked = rows.flat().filter((weight) => weight === 0).length;
    detail.textContent = blocked ? `${blocked} of ${COUNT * COUNT} pairs are masked. The weights of every row still sum to 100%.` : "No pair is masked.";
  }
  build();
  return [
    element("p", {}, "A mask says which keys a query may use. Masked scores become −∞ before the softmax, so their weight is exactly 0 and the other weights grow. Numbers are percent; point at a cell."),
    kinds.node,
    element("div", { className: "split" }, element("div", { className: "scroll" }, grid), element("div", { className: "stack" }, explanation, setting, detail,
      element("p", { className: "note" }, "The scores are invented, and the same for every mask. The weights are computed from them."))),
  ];
}

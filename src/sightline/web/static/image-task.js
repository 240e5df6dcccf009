// Classifying an image: drop it, see the classes, the attention over the image, and what a patch or a head contributes.
import { heatMap } from "../view/heat-map.js";
import { explanationCard } from "../view/explanation-card.js";
import { button, element } from "../view/elements.js";
import { unpack } from "../view/payload.js";
import { createMatrix, headMatrix } from "../view/weights.js";
import { newestOnly } from "./api.js";
import { createDrop } from "./drop.js";
import { createSwitches, headGrid, headsNote, keepingFocus, released } from "./heads.js";

const LOOK = { veil: 0.62, gamma: 0.6 }; // as heatmaps.Look

export function createImageTask({ models, answer }) {
  let [model] = models;
  let [image, base, inspection, layers] = [null, null, null, []];
  const removed = new Set(); // patches
  const switches = createSwitches();
  let shown = { layer: null, head: null };
  const ask = newestOnly();
  const drop = createDrop({ what: "the image to classify", onImage: (file) => ((image = file), reset()) });
  const select = element("select", { ariaLabel: "Model", onchange: () => ((model = models.find(({ name }) => name === select.value)), drop.describe(model), image && reset()) },
    ...models.map(({ name, title }) => element("option", { value: name }, title ?? name)));
  const output = element("div", { className: "output" });
  output.setAttribute("aria-live", "polite");
  const time = element("span", { className: "note" });
  const putBack = button({ className: "tool", hidden: true, onclick: reset }, "Put everything back");
  const details = element("div", {});
  const node = element("div", { className: "task" },
    element("div", { className: "task-row" },
      element("section", { className: "card", ariaLabel: "Input" }, element("div", { className: "card-head" }, element("h3", {}, "Image"), models.length > 1 ? select : null), drop.node),
      element("section", { className: "card", ariaLabel: "Answer" }, element("div", { className: "card-head" }, element("h3", {}, "Answer"), putBack), output, time)),
    details);

  function reset() {
    removed.clear();
    switches.clear();
    base = null;
    send();
  }
  async function send() {
    const isChanged = removed.size > 0 || switches.isChanged();
    const started = performance.now();
    try {
      const result = await ask(`api/models/${encodeURIComponent(model.name)}/predict-image`, {
        form: { image, attention: "packed", remove_tokens: removed.size ? JSON.stringify([...removed]) : null, ablate_heads: switches.isChanged() ? JSON.stringify(switches.toObject()) : null },
      });
      if (!result) return;
      const [prediction] = result.predictions;
      if (prediction.error) throw new Error(prediction.error);
      if (!isChanged) base = prediction;
      inspection = prediction.inspection;
      layers = await Promise.all((inspection?.layers ?? []).map(async (layer) => ({ ...layer, raw: await unpack(layer.packed.data, layer.shape) })));
      await released();
      output.replaceChildren(...answer(prediction, { model, base: isChanged ? base : null }));
      time.textContent = `${Math.round(performance.now() - started)} ms`;
      putBack.hidden = !isChanged;
      showDetails();
    } catch (error) {
      output.replaceChildren(element("p", { className: "refusal", role: "alert" }, error.message));
      putBack.hidden = !isChanged;
      if (!isChanged) details.replaceChildren();
    }
  }

  // Weights over the patches: of the class token, or the mean over all queries; of one head, or the mean of all (null).
  function patchWeights(layer, chosen) {
    const [rows, columns] = inspection.grid;
    const skip = layer.shape[2] - rows * columns;
    const total = new Float32Array(rows * columns);
    const heads = chosen === null ? [...Array(layer.shape[0]).keys()] : [chosen];
    for (const head of heads) {
      const matrix = headMatrix(layer.raw, head, layer.shape, inspection.levels);
      const queries = inspection.has_class_token ? [0] : [...Array(matrix.queries).keys()];
      for (const query of queries) matrix.row(query).subarray(skip).forEach((weight, i) => (total[i] += weight / heads.length / queries.length));
    }
    return createMatrix(total, rows, columns);
  }

  function showDetails() {
    if (inspection?.explanation) return details.replaceChildren(element("section", { className: "card", ariaLabel: "Reason" }, element("h3", {}, "Why?"), explanationCard(inspection.explanation, inspection.explanation.cards[0], { hasAnswer: false })));
    if (!layers.length || !inspection.grid) return details.replaceChildren();
    if (!layers[shown.layer] || shown.head >= layers[shown.layer].shape[0]) shown = { layer: layers.length - 1, head: null };
    const layer = layers[shown.layer];
    const [rows, columns] = inspection.grid;
    const picture = element("img", { src: inspection.image, alt: "The image as the model sees it", className: "pixelated" });
    const describe = (row, column, value) => `${removed.has(row * columns + column) ? "removed; " : ""}row ${row + 1}, column ${column + 1}: ${(100 * value).toFixed(1)}%`;
    const { data, max } = patchWeights(layer, shown.head);
    const mean = data.reduce((sum, weight) => sum + weight, 0) / data.length;
    const look = { ...LOOK, outline: (mean / max + 1) / 2 }; // from halfway between the mean and the largest weight on
    const map = heatMap({ picture, rows, columns, look, name: "Attention over the image; press Enter to remove a part", describe });
    map.update([...data], max);
    const toggle = (row, column) => {
      if (!removed.delete(row * columns + column)) removed.add(row * columns + column);
      send();
    };
    map.node.dataset.focus = "map";
    map.node.addEventListener("click", (event) => {
      const box = map.node.getBoundingClientRect();
      toggle(Math.min(rows - 1, Math.floor(((event.clientY - box.top) / box.height) * rows)), Math.min(columns - 1, Math.floor(((event.clientX - box.left) / box.width) * columns)));
    });
    map.node.addEventListener("keydown", (event) => {
      const cursor = event.key === "Enter" ? map.node.querySelector(".cursor") : null;
      if (cursor) toggle(Number(cursor.getAttribute("y")), Number(cursor.getAttribute("x")));
    });
    keepingFocus(details, () => details.replaceChildren(element("div", { className: "attention-row" },
      element("section", { className: "card", ariaLabel: "Attention" }, element("h3", {}, "What it looks at"), element("div", { className: "patch-map" }, map.node),
        element("p", { className: "note" }, "Outlined and bright parts get much attention. Click a part to remove it; click it again to put it back.")),
      element("section", { className: "card", ariaLabel: "Heads" }, element("h3", {}, "Heads"), headsNote(), headList()))));
  }
  function headList() {
    const rows = layers.map((layer, i) => ({ layer: i, mean: patchWeights(layer, null), heads: Array.from({ length: layer.shape[0] }, (_, head) => ({ matrix: patchWeights(layer, head), isOff: switches.isOff(layer.name, head) })) }));
    return headGrid({ rows, shown, onShow: (next) => ((shown = next), showDetails()), onToggle: (layer, head) => (switches.toggle(layers[layer].name, head), send()) });
  }
  drop.describe(model);
  return { node, close: drop.close };
}

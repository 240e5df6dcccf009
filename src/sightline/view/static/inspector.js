// The panel beside the drawing: the weights of the focused token, or facts about the layer, as selectable text.

import { element } from "./elements.js";
import { displayText } from "./format.js";
import { importanceList } from "./importance.js";
import { entropy, meanEntropy, strongest } from "./weights.js";

const LISTED = 10;
const RELEVANCE = "Attention times its gradient, followed through all layers: how much each token matters for a target.";
const NOT_NORMALIZED = "The weights of this layer do not sum to 1. Temperature, entropy and rollout are not available.";

export function createInspector(app) {
  const node = element("aside", { className: "inspector", ariaLabel: "Details" });
  let shownKey = "";

  // The entropy of combined heads is that of the combination, not the mean entropy of the heads.
  const entropyLabel = () => {
    const mode = app.combineMode();
    return mode === "rollout" || app.selectedHeads().length > 1 ? `Entropy of the ${mode}` : "Entropy";
  };
  const fact = (name, value) => element("div", { className: "fact" }, element("dt", {}, name), element("dd", {}, value));

  // Repeated tokens are followed by their position.
  const uniqueName = (tokens, i) => displayText(tokens[i]) + (tokens.indexOf(tokens[i]) === tokens.lastIndexOf(tokens[i]) ? "" : ` · ${i}`);

  function weightList(values, tokens, positions, text) {
    const best = strongest(values, LISTED, positions);
    const max = Math.abs(values[best[0]]) || 1;
    return element("ol", { className: "weights" }, ...best.map((position) => {
      const [name, bar] = [uniqueName(tokens, position), element("span", { className: "bar" })];
      bar.style.width = `${(100 * Math.abs(values[position])) / max}%`;
      return element("li", {}, element("span", { className: "name", title: name }, name), element("span", { className: "value" }, text(position)), bar);
    }));
  }

  function tokenDetails(matrix, query, key) {
    const [tokens, index] = query === null ? [app.keyTokens(), key] : [app.queryTokens(), query];
    const title = element("h2", {}, `Strongest ${query === null ? "queries" : "keys"} of `, element("q", {}, displayText(tokens[index])));
    if (query === null) return [title, weightList(matrix.column(key), app.queryTokens(), app.queries(), (q) => matrix.text(q, key))];
    const list = weightList(matrix.row(query), app.keyTokens(), app.keys(), (k) => matrix.text(query, k));
    const facts = app.layer().normalized ? [element("dl", {}, fact(entropyLabel(), `${entropy(matrix.row(query)).toFixed(2)} bits`))] : [];
    return [title, list, ...facts];
  }

  function layerDetails(matrix) {
    const [layer, isGrid] = [app.layer(), app.state.view === "grid"];
    const [heads, queries, keys] = layer.shape;
    const title = isGrid ? "All heads" : layer.kind === "relevance" ? "Relevance" : `Layer ${app.depth(app.state.layer)}`;
    const nodes = [element("h2", { textContent: title })];
    if (!isGrid) nodes.push(element("p", { className: "path", textContent: displayText(layer.name).replaceAll(".", ".\u200b") })); // may wrap after a dot
    nodes.push(element("p", { className: "guide", textContent: app.view().hint() }));
    const facts = [fact("Heads", String(heads)), fact("Queries × keys", `${queries} × ${keys}`)];
    if (matrix && layer.normalized) facts.push(fact(entropyLabel(), `${meanEntropy(matrix).toFixed(2)} bits`));
    if (!isGrid) nodes.push(element("dl", {}, ...facts));
    if (!layer.normalized) nodes.push(element("p", { className: "guide" }, layer.kind === "relevance" ? RELEVANCE : NOT_NORMALIZED));
    if (isGrid) nodes.push(...importanceList(app));
    return nodes;
  }

  function update() {
    const { query, key } = app.focused();
    const matrix = app.state.view === "grid" ? null : app.matrices.current();
    const id = [app.matrixKey(), query, key, app.state.view, Boolean(matrix)].join(" ");
    if (id === shownKey) return;
    shownKey = id;
    const hasToken = matrix && (query !== null || key !== null);
    node.replaceChildren(...(hasToken ? tokenDetails(matrix, query, key) : layerDetails(matrix)));
  }

  return { node, update };
}

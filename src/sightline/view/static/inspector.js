// The panel beside the drawing: the weights of the focused token, or facts about the layer, as selectable text.

import { element } from "./elements.js";
import { displayText } from "./format.js";
import { importanceList } from "./importance.js";
import { patchImage } from "./patches.js";
import { entropy, meanEntropy, strongest } from "./weights.js";

const LISTED = 10;
const capitalize = (text) => text[0].toUpperCase() + text.slice(1);
const RELEVANCE = "Attention times its gradient, followed through all layers: how much each token matters for a target.";
const NOT_NORMALIZED = "The weights of this layer do not sum to 1. Temperature, entropy and rollout are not available.";

const NEAR_UNIFORM = "≈ Nearly uniform: these weights are almost equal for all keys, and say little.";

export function createInspector(app) {
  const [details, scores] = [element("div", {}), element("div", {})];
  const node = element("aside", { className: "inspector", ariaLabel: "Details" }, scores, details);
  let shownKey = "";

  // The entropy of combined heads is that of the combination, not the mean entropy of the heads.
  const entropyLabel = () => {
    const mode = app.combineMode();
    return mode === "rollout" || app.selectedHeads().length > 1 ? `Entropy of the ${mode}` : "Entropy";
  };
  const fact = (name, value) => element("div", { className: "fact" }, element("dt", {}, name), element("dd", {}, value));

  // Repeated tokens are followed by their position.
  const uniqueName = (tokens, i) => displayText(tokens[i]) + (tokens.indexOf(tokens[i]) === tokens.lastIndexOf(tokens[i]) ? "" : ` · ${i}`);

  // A copy of the patch at a position; null if it is no patch.
  function patchCopy(role, position) {
    const patch = patchImage(app, app.sequence(role), position);
    if (!patch) return null;
    const copy = element("canvas", { className: "patch", width: patch.width, height: patch.height, ariaHidden: "true" });
    copy.getContext("2d").drawImage(patch, 0, 0);
    return copy;
  }

  function weightList(values, role, positions, text) {
    const tokens = app.sequence(role).tokens;
    const best = strongest(values, LISTED, positions);
    const max = Math.abs(values[best[0]]) || 1;
    return element("ol", { className: "weights" }, ...best.map((position) => {
      const [name, bar] = [uniqueName(tokens, position), element("span", { className: "bar" })];
      bar.style.width = `${(100 * Math.abs(values[position])) / max}%`;
      return element("li", {}, element("span", { className: "name", title: name }, patchCopy(role, position), name), element("span", { className: "value" }, text(position)), bar);
    }));
  }

  function tokenDetails(matrix, query, key) {
    const [tokens, index] = query === null ? [app.keyTokens(), key] : [app.queryTokens(), query];
    const title = element("h2", {}, `Strongest ${query === null ? "queries" : "keys"} of `, element("q", {}, displayText(tokens[index])));
    if (query === null) return [title, weightList(matrix.column(key), "query", app.queries(), (q) => matrix.text(q, key))];
    const list = weightList(matrix.row(query), "key", app.keys(), (k) => matrix.text(query, k));
    const facts = app.layer().normalized ? [element("dl", {}, fact(entropyLabel(), `${entropy(matrix.row(query)).toFixed(2)} bits`))] : [];
    return [title, list, ...facts];
  }

  function layerDetails(matrix) {
    const [layer, isGrid, isMean] = [app.layer(), app.state.view === "grid", app.combineMode() === "layers"];
    const [heads, ...shape] = layer.shape;
    const [queries, keys] = matrix ? [matrix.queries, matrix.keys] : shape;
    const name = isMean ? capitalize(app.matrixName()) : layer.kind === "relevance" ? "Relevance" : `Layer ${app.depth(app.state.layer)}`;
    const nodes = [element("h2", { textContent: isGrid ? "All heads" : name })];
    if (!isGrid && !isMean) nodes.push(element("p", { className: "path", textContent: displayText(layer.name).replaceAll(".", ".\u200b") })); // may wrap after a dot
    if (!isGrid && !app.usesAllHeads() && app.isNearUniform()) nodes.push(element("p", { className: "notice", textContent: NEAR_UNIFORM }));
    nodes.push(element("p", { className: "guide", textContent: app.view().hint() }));
    const facts = [fact("Heads", String(heads)), fact("Queries × keys", `${queries} × ${keys}`)];
    if (matrix && layer.normalized) facts.push(fact(entropyLabel(), `${meanEntropy(matrix).toFixed(2)} bits`));
    if (!isGrid) nodes.push(element("dl", {}, ...facts));
    if (!layer.normalized) nodes.push(element("p", { className: "guide" }, layer.kind === "relevance" ? RELEVANCE : NOT_NORMALIZED));
    if (isGrid) nodes.push(...importanceList(app));
    return nodes;
  }

  // Classes or answers, the best first.
  function scoreList(given) {
    const all = given.shown;
    const max = (all.length > 1 && Math.max(...all.map(([, score]) => score))) || 1; // one alone is relative to 1
    const items = all.map(([name, score], i) => {
      const bar = given.areProbabilities ? element("span", { className: "bar" }) : null;
      if (bar) bar.style.width = `${(100 * score) / max}%`;
      const text = given.areProbabilities ? `${(100 * score).toFixed(1)} %` : String(score ?? "");
      return element("li", { className: i || score === null ? "" : "best" }, element("span", { className: "name", title: name }, displayText(name)), element("span", { className: "value" }, text), bar);
    });
    const more = given.more ? [element("div", { className: "guide" }, `and ${given.more} more`)] : [];
    return [element("h2", {}, given.title), element("div", { className: "scores" }, element("ol", { className: "weights" }, ...items), ...more)];
  }

  function update() {
    const { query, key } = app.focused();
    const matrix = app.state.view === "grid" ? null : app.matrices.current();
    const id = [app.matrixKey(), query, key, app.state.view, Boolean(matrix), app.isTouch()].join(" ");
    if (id === shownKey) return;
    shownKey = id;
    const hasToken = matrix && (query !== null || key !== null);
    details.replaceChildren(...(hasToken ? tokenDetails(matrix, query, key) : layerDetails(matrix)));
    const { name, scores: lists } = app.example();
    const isOneOfSeveral = lists.length > 0 && app.meta.examples.length > 1; // its name may be cut in the list of examples
    scores.replaceChildren(...(isOneOfSeveral ? [element("p", { className: "answer" }, name)] : []), ...lists.flatMap(scoreList));
    if (app.loading) shownKey = ""; // patches appear when their image is decoded
  }

  return { node, update };
}

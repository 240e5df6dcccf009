// The panel beside the drawing: what the token in question looks at, as text that anyone can read or select.

import { el, shown } from "./dom.js";
import { entropy, meanEntropy, strongest } from "./weights.js";

const LISTED = 10;
const NO_SHARES = "These weights are not shares of 1, so temperature, entropy and rollout are left out.";

export function openInspector(app) {
  const node = el("aside", { className: "inspector", ariaLabel: "Details" });
  let last = "";

  // Heads that are combined have the entropy of what they were combined to, which is not the mean over heads.
  const entropyOf = () => {
    const how = app.combining();
    return how === "rollout" || app.headsOn().length > 1 ? `Entropy of the ${how}` : "Entropy";
  };
  const fact = (name, value) => el("div", { className: "fact" }, el("dt", {}, name), el("dd", {}, value));

  // A name that stands at several places is told with its own.
  const unlike = (names, i) => shown(names[i]) + (names.indexOf(names[i]) === names.lastIndexOf(names[i]) ? "" : ` · ${i}`);

  function list(values, names, places, text) {
    const best = strongest(values, LISTED, places);
    const top = Math.abs(values[best[0]]) || 1;
    return el("ol", { className: "looks" }, ...best.map((place) => {
      const [name, bar] = [unlike(names, place), el("span", { className: "bar" })];
      bar.style.width = `${(100 * Math.abs(values[place])) / top}%`;
      return el("li", {}, el("span", { className: "name", title: name }, name), el("span", { className: "value" }, text(place)), bar);
    }));
  }

  function update() {
    const { query, key } = app.asked();
    const matrix = app.state.view === "grid" ? null : app.matrices.current();
    const id = [app.viewKey(), query, key, app.state.view, Boolean(matrix)].join(" ");
    if (id === last) return;
    last = id;
    const [layer, parts] = [app.layer(), []];
    const [heads, queries, keys] = layer.shape;
    if (matrix && query !== null) {
      parts.push(el("h2", {}, el("q", {}, shown(app.queryNames()[query])), " looks at"));
      parts.push(list(matrix.row(query), app.keyNames(), app.columns(), (place) => matrix.text(query, place)));
      if (layer.shares) parts.push(el("dl", {}, fact(entropyOf(), `${entropy(matrix.row(query)).toFixed(2)} bits`)));
    } else if (matrix && key !== null) {
      parts.push(el("h2", {}, el("q", {}, shown(app.keyNames()[key])), " is seen by"));
      parts.push(list(matrix.column(key), app.queryNames(), app.rows(), (place) => matrix.text(place, key)));
    } else {
      parts.push(el("h2", { textContent: app.state.view === "grid" ? "All heads" : `Layer ${app.depth(app.state.layer)}` }));
      if (app.state.view !== "grid") parts.push(el("p", { className: "path", textContent: shown(layer.name) }));
      parts.push(el("p", { className: "guide", textContent: app.view().hint() }));
      const facts = [fact("Heads", String(heads)), fact("Size", `${queries} × ${keys}`)];
      if (matrix && layer.shares) facts.push(fact(entropyOf(), `${meanEntropy(matrix).toFixed(2)} bits a row`));
      if (app.state.view !== "grid") parts.push(el("dl", {}, ...facts));
      if (!layer.shares) parts.push(el("p", { className: "guide" }, NO_SHARES));
    }
    node.replaceChildren(...parts);
  }

  return { node, update };
}

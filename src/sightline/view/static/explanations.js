// The page of explained predictions: a card for each, with filters.
import { element } from "./elements.js";
import { explanationCard } from "./explanation-card.js";
import { heatMap } from "./heat-map.js";

const data = JSON.parse(document.getElementById("sightline-explanations").textContent);
const ANY = "";
const SORTS = {
  "in the given order": (a, b) => a.index - b.index,
  "least confident first": (a, b) => a.confidence - b.confidence,
  "most confident first": (a, b) => b.confidence - a.confidence,
  "by class": (a, b) => a.prediction.localeCompare(b.prediction) || a.index - b.index,
  "by name": (a, b) => a.name.localeCompare(b.name, undefined, { numeric: true }) || a.index - b.index,
};

// Two examples of the map itself, over a strip of colors.
function legend() {
  const strip = (sign) => {
    const values = [0, 0.05, 0.15, 0.3, 0.5, 0.75, 1].map((value) => sign * value);
    const describe = (row, column, value) => `${Math.round(100 * Math.abs(value))}% of the largest effect`;
    const map = heatMap({ picture: element("div", { className: "strip" }), rows: 1, columns: 7, look: data.look, name: sign > 0 ? "for" : "against", describe });
    map.update(values, 1);
    return map.node;
  };
  return element("aside", { className: "legend", ariaLabel: "Legend" },
    element("span", { className: "key" }, strip(1), "outlined: speaks for the class"),
    element("span", { className: "key" }, strip(-1), "dashed: speaks against it"),
    element("p", {}, "Dimmed regions have little or no effect, relative to the strongest of the prediction. Numbers are differences of log odds: what ",
      "the class loses if a region is occluded or an example is left out; +0.69 doubles the odds. In an example, the regions most similar ",
      "to the image are brightest, and the whole example is as bright as its effect relative to the strongest example."));
}

function start() {
  const cards = data.cards.map((card, index) => ({ ...card, index }));
  const hasImages = cards.some((card) => card.image !== null || card.examples.some(({ image }) => image !== null));
  const main = element("main", {});
  const count = element("output", { className: "count" });
  const search = element("input", { type: "search", placeholder: "name or class", ariaLabel: "Filter by name or class" });
  const classes = [...new Set(cards.map((card) => card.prediction))].sort((a, b) => a.localeCompare(b));
  const select = (label, options) => element("select", { ariaLabel: label }, ...options.map(([value, text]) => element("option", { value }, text)));
  const byClass = select("Filter by class", [[ANY, "all classes"], ...classes.map((name, i) => [i, name])]);
  const byState = select("Filter by known or unknown", [[ANY, "known and unknown"], ["known", "known"], ["unknown", "unknown"]]);
  const sort = select("Sort", Object.keys(SORTS).map((name) => [name, name]));
  const toggle = element("input", { type: "checkbox", checked: true, onchange: () => main.classList.toggle("hide-maps", !toggle.checked) });

  const built = new Map();
  const node = (card) => built.get(card.index) ?? built.set(card.index, explanationCard(data, card)).get(card.index);
  const update = () => {
    const words = search.value.trim().toLowerCase();
    const shown = cards.filter((card) => {
      const isFound = !words || card.name.toLowerCase().includes(words) || card.prediction.toLowerCase().includes(words);
      const isState = byState.value === ANY || (byState.value === "known") === card.known;
      return isFound && isState && (byClass.value === ANY || classes[Number(byClass.value)] === card.prediction);
    });
    shown.sort(SORTS[sort.value]);
    count.textContent = shown.length === cards.length ? "" : `${shown.length} of ${cards.length}`;
    main.replaceChildren(...shown.map(node), ...(shown.length ? [] : [element("p", { className: "note" }, "No prediction matches the filter.")]));
  };
  for (const control of [byClass, byState, sort]) control.addEventListener("change", update);
  search.addEventListener("input", update);

  const filters = cards.length > 1 ? [search, byClass, byState, sort, count] : [];
  const maps = hasImages ? [element("label", { className: "check" }, toggle, "Show maps")] : [];
  document.body.append(
    element("header", {}, element("h1", {}, data.title), element("p", {}, data.subtitle)),
    ...(hasImages ? [legend()] : []),
    ...(filters.length + maps.length ? [element("div", { className: "toolbar", role: "search" }, ...filters, ...maps)] : []),
    main);
  update();
}

start();

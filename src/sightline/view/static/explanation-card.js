// One explained prediction: the question "why this class and not that one", the image, the examples and the scores.
import { element } from "./elements.js";
import { heatMap } from "./heat-map.js";

const ANY = "";
const signed = (value) => `${value < 0 ? "-" : "+"}${Math.abs(value).toFixed(2)}`;
const percent = (value) => `${(100 * value).toFixed(1)}%`;

// The log odds of one class against another one, or against all others (`other` is null).
function logOdds(logProbabilities, label, other) {
  if (other !== null) return logProbabilities[label] - logProbabilities[other];
  const others = logProbabilities.filter((_, i) => i !== label);
  const highest = Math.max(...others);
  return logProbabilities[label] - highest - Math.log(others.reduce((sum, x) => sum + Math.exp(x - highest), 0));
}

// The decrease of the log odds by decreases of the log probabilities.
function effect(card, decreases, label, other) {
  const reduced = card.logProbabilities.map((x, i) => x - decreases[i]);
  return logOdds(card.logProbabilities, label, other) - logOdds(reduced, label, other);
}

function picture(data, index, alt) {
  const { src, width, height } = data.images[index];
  return element("img", { src, width, height, alt, className: Math.max(width, height) < 100 ? "pixelated" : "" });
}

const place = (row, column) => `row ${row + 1}, column ${column + 1}`;
const describeRegion = (row, column, value) => `${place(row, column)}: ${value === 0 ? "no effect, or not occluded" : signed(value)}`;

// A picture with its heat map. Without values, it is shown as it is.
function mapped(data, index, grid, values, scale, name, describe) {
  if (index === null) return null;
  const image = picture(data, index, name);
  if (values === null) return element("div", { className: "heat-map" }, image);
  const map = heatMap({ picture: image, rows: grid.rows, columns: grid.columns, look: data.look, name, describe });
  map.update(values, scale);
  return map.node;
}

// A support example, whose regions are its effect times their similarity to the query. Without similarities it is one region.
function exampleFigure(data, example, label, largest) {
  const { image, value } = example;
  const shares = example.shares ?? { rows: 1, columns: 1, values: [1] };
  const values = shares.values.map((share) => share * value);
  const similarity = (row, column) => `${place(row, column)}: similarity ${shares.values[row * shares.columns + column].toFixed(2)}`;
  const describe = example.shares ? similarity : () => `whole example: ${signed(value)}`;
  const isOther = example.label !== label;
  const bar = element("span", { className: `bar ${value < 0 ? "against" : "for"}` });
  bar.style.setProperty("--length", largest > 0 ? Math.abs(value) / largest : 0);
  return element("figure", { className: isOther ? "other" : "" },
    mapped(data, image, shares, values, largest, `${example.label}, ${example.name}`, describe),
    element("figcaption", {},
      element("span", { className: "label" }, example.label, isOther ? element("span", { className: "mark" }, "other class") : null),
      element("span", { className: "source" }, example.name),
      element("span", { className: "contribution" }, signed(value), bar)));
}

function section(data, title, note, examples, label, largest) {
  const figures = examples.map((example) => exampleFigure(data, example, label, largest));
  const content = figures.length ? element("div", { className: "examples" }, ...figures) : element("p", { className: "note" }, "None.");
  return element("section", { className: "support" }, element("h3", {}, title, element("span", { className: "note" }, ` ${note}`)), content);
}

// The words of a text, each with its effect: what the class loses without it.
function text(card, effects, scale, odds) {
  const words = card.words.flatMap((word, i) => {
    const strength = scale > 0 ? Math.round((70 * Math.abs(effects[i])) / scale) : 0;
    const node = element("span", { className: `word ${effects[i] < 0 ? "against" : "for"}`, title: signed(effects[i]), tabIndex: 0 }, word);
    node.style.setProperty("--strength", `${strength}%`);
    node.setAttribute("aria-label", `${word}: ${signed(effects[i])}`);
    return [node, " "];
  });
  return element("section", { className: "query" }, element("h3", {}, "Text"), element("p", { className: "words" }, ...words),
    element("p", { className: "note" }, `log odds ${signed(odds)}, strongest word ${signed(strongest(effects))}. Orange words raise the odds of the class, blue ones lower them.`));
}

// The effect with the largest absolute value.
function strongest(effects) {
  return effects.reduce((best, value) => (Math.abs(value) > Math.abs(best) ? value : best), 0);
}

// The answer to a question: the query, the examples for and against. All regions share a scale, and so do all examples.
function answer(data, card, label, other) {
  const name = card.classes[label];
  const regions = card.regions && card.regions.values.map((decreases) => effect(card, decreases, label, other));
  const examples = card.examples.map((example) => ({ ...example, value: effect(card, example.decreases, label, other) }));
  const largest = Math.max(0, ...examples.map(({ value }) => Math.abs(value)));
  const isStrong = ({ value }) => Math.abs(value) > data.minRelative * largest;
  const sorted = examples.filter(isStrong).sort((a, b) => b.value - a.value);
  const positive = sorted.filter(({ value }) => value > 0).slice(0, card.count);
  const negative = sorted.filter(({ value }) => value < 0).reverse().slice(0, card.count);
  const scale = Math.max(0, ...(regions ?? []).map(Math.abs));
  const odds = logOdds(card.logProbabilities, label, other);
  const query = card.image === null ? null : element("section", { className: "query" }, element("h3", {}, "Image"),
    element("figure", {}, mapped(data, card.image, card.regions, regions, scale, card.name, describeRegion),
      element("figcaption", {}, element("span", { className: "source" }, `log odds ${signed(odds)}`, regions ? `, strongest region ${signed(strongest(regions))}` : ""))));
  return [card.words ? text(card, regions, scale, odds) : query,
    section(data, `For ${name}`, "examples that raise its odds", positive, name, largest),
    section(data, `Against ${name}`, "examples that lower its odds", negative, name, largest)].filter(Boolean);
}

const paragraphs = (notes) => notes.map((note) => element("p", { className: "note" }, note));

function scores(card) {
  const rows = card.scores.map(([name, score]) => {
    const bar = element("meter", { min: 0, max: 1, value: score, ariaLabel: name }, percent(score));
    return element("li", {}, element("span", { className: "name", title: name }, name), element("span", { className: "value" }, percent(score)), bar);
  });
  const more = card.more ? [`and ${card.more.toLocaleString("en")} more classes`] : [];
  return element("section", { className: "scores" }, element("h3", {}, card.scoresTitle), element("ol", {}, ...rows), ...paragraphs([...more, ...card.notes]));
}

function question(card, onchange) {
  const options = card.classes.map((name, i) => element("option", { value: i }, name));
  const first = element("select", { ariaLabel: "class" }, ...options);
  const second = element("select", { ariaLabel: "other class" }, element("option", { value: ANY }, "any other class"), ...options.map((o) => o.cloneNode(true)));
  first.value = card.label;
  second.value = card.other ?? ANY;
  const changed = () => {
    if (first.value === second.value) second.value = ANY;
    for (const option of second.options) option.disabled = option.value === first.value;
    onchange(Number(first.value), second.value === ANY ? null : Number(second.value));
  };
  first.addEventListener("change", changed);
  second.addEventListener("change", changed);
  changed();
  return element("p", { className: "question" }, "Why ", first, " and not ", second, "?");
}

// The card of one prediction. `data` has the images, the look of the maps and `minRelative`. Where the page shows the answer
// and its scores elsewhere, `hasAnswer` is false.
export function explanationCard(data, card, { hasAnswer = true } = {}) {
  const detail = card.known ? `confidence ${percent(card.confidence)}` : `closest: ${card.prediction}`;
  const row = element("div", { className: card.words ? "row texts" : card.image === null ? "row no-image" : "row" });
  const show = (a, b) => row.replaceChildren(...answer(data, card, a, b), ...(hasAnswer ? [scores(card)] : []));
  const heading = element("h2", {},
    element("span", { className: "file" }, card.name),
    element("span", { className: "prediction" }, card.known ? card.prediction : "unknown"),
    element("span", { className: "detail" }, detail),
    element("span", { className: "badge" }, card.known ? "known" : "none of the classes"));
  return element("article", { className: `explanation ${card.known ? "known" : "unknown"}` }, hasAnswer ? heading : null, question(card, show), row, ...(hasAnswer ? [] : paragraphs(card.notes)));
}

// The Classify tab: texts are typed, images are dropped.
import { element } from "../view/elements.js";
import { loadModels } from "./api.js";
import { createImageTask } from "./image-task.js";
import { before, createTextTask, modelsOf, noModel } from "./text-task.js";
import { barList, choice, lead, percent } from "./widgets.js";

const MAX_CLASSES = 6;

export function scoreBars(prediction) {
  const bars = barList("Probability of each class");
  const label = prediction.label ?? null;
  // names that are numbers come first in an object, whatever their scores
  bars.update(Object.entries(prediction.scores).sort(([, a], [, b]) => b - a).slice(0, MAX_CLASSES).map(([name, score]) => ({ name, share: score, text: percent(score), kind: name === label ? "first" : "" })));
  return bars.node;
}

// A note for a text of which the model knows less than half, as nodes. Two of its tokens are the start and the end.
function unknownText({ tokens = [], unknown_tokens: count = 0 }) {
  const total = tokens.length - 2;
  return count > 0 && 2 * count > total ? [element("p", { className: "note" }, `The model does not know ${count} of the ${total} words or parts of words in this text. Do not rely on its answer.`)] : [];
}

// Why the answer for an image may be wrong, as nodes.
const hint = ({ hint: text }) => (text ? [element("p", { className: "note" }, `${text[0].toUpperCase()}${text.slice(1)}.`)] : []);

function answer(prediction, { base }) {
  const isKnown = prediction.known !== false;
  const title = element("p", { className: `answer ${isKnown ? "" : "rejected"}` }, element("b", {}, isKnown ? prediction.label : "None of these"),
    element("span", {}, isKnown ? `${percent(prediction.confidence)} sure` : `closest: ${prediction.closest}`));
  const old = base && `${base.label ?? "None of these"}, ${percent(base.confidence)}`;
  const bars = scoreBars(prediction);
  return [title, ...unknownText(prediction), ...hint(prediction), ...before(old, base && scoreBars(base).textContent === bars.textContent), bars];
}

export async function start(panel) {
  panel.append(lead("Classify", "Type a text or drop an image. Remove a word or a part of the image, or switch a head off, and see the answer change."));
  const all = await loadModels();
  const models = modelsOf(all, "text_classification", "image_classification", "few_shot");
  if (!models.length) return void panel.append(noModel(all, {
    tasks: ["text_classification", "image_classification"], what: "classifies", hint: "To teach it your own classes, use the tab Few-shot. ",
    training: "Or train a model of texts and one of drawn characters, in a minute or two each.", commands: ["sightline train task=text_classification out=runs/topics", "sightline train"], runs: ["runs/topics", "runs/glyphs"],
  }));
  const groups = { text: models.filter(({ input }) => input === "text"), image: models.filter(({ input }) => input === "image") };
  const kinds = Object.keys(groups).filter((kind) => groups[kind].length);
  const tasks = {};
  const place = element("div", {});
  const build = {
    text: () => createTextTask({ models: groups.text, label: "Text", placeholder: "Type a text", names: { source: "Text" }, answer }),
    image: () => createImageTask({ models: groups.image, answer }),
  };
  const show = (kind) => place.replaceChildren((tasks[kind] ??= build[kind]()).node);
  if (kinds.length > 1) panel.append(element("div", { className: "kind-row" }, choice({ legend: "Classify", name: "classify-kind", value: kinds[0], options: kinds.map((kind) => [kind, kind === "text" ? "Text" : "Image"]), onChange: show }).node));
  panel.append(place);
  show(kinds[0]);
  return { hide: () => tasks.image?.close() };
}

// The Translate tab.
import { element } from "../view/elements.js";
import { loadModels } from "./api.js";
import { before, createTextTask, hoverableText, modelsOf, noModel } from "./text-task.js";
import { lead, percent } from "./widgets.js";

const QUALITY = [[0.6, "good", "good"], [0.4, "fair", ""], [0, "poor", "warn"]];

function answer(prediction, { inspection, base, hover }) {
  const tokens = inspection?.tokens.generated ?? prediction.tokens ?? [];
  const text = element("p", { className: "big-answer" }, ...hoverableText(prediction.text, tokens, (index) => hover("generated", index)));
  const notes = [];
  if (prediction.quality !== undefined && prediction.quality !== null) {
    const [, word, kind] = QUALITY.find(([least]) => prediction.quality >= least);
    notes.push(element("span", { className: `badge ${kind}`, title: `Expected chrF ${prediction.quality.toFixed(2)}, calibrated on validation sentences` }, `expected quality: ${word} (${percent(prediction.quality)})`));
  }
  if (prediction.unfamiliar_words?.length) notes.push(element("span", { className: "badge warn" }, `unfamiliar: ${prediction.unfamiliar_words.join(", ")}`));
  const others = (prediction.alternatives ?? []).filter((other) => other.text !== prediction.text).slice(0, 3);
  const list = others.length ? [element("details", {}, element("summary", {}, "Other translations"), element("ol", {}, ...others.map((other) => element("li", {}, other.text))))] : [];
  return [text, ...before(base?.text, base?.text === prediction.text), element("p", { className: "badges" }, ...notes), ...list];
}

export async function start(panel) {
  panel.append(lead("Translate", "Type a sentence. Point at a word of the translation to see which words the model looked at when it wrote it. Remove a word or switch a head off, and the translation changes."));
  const all = await loadModels();
  const models = modelsOf(all, "translation");
  if (!models.length) return void panel.append(noModel(all, { tasks: ["translation"], what: "translates" }));
  panel.append(createTextTask({ models, label: "Sentence", placeholder: "Type a sentence", names: { source: "Sentence", generated: "Translation", target: "Translation" }, answer }).node);
}

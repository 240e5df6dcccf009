// The Fill the mask tab.
import { button, element } from "../view/elements.js";
import { loadModels } from "./api.js";
import { before, createTextTask, modelsOf, noModel } from "./text-task.js";
import { barList, lead, percent } from "./widgets.js";

const isWord = (char) => /[\p{L}\p{N}]/u.test(char ?? "");
const readBlanks = (text, { mask }) => text.replace(/_{2,}|\[mask\]/gi, mask); // as people type them

// A button that puts a mask in place of the selected text, or of the word that the cursor is in.
function prepare({ model, input, extra, typed }) {
  const insert = () => {
    const { value } = input;
    let { selectionStart: from, selectionEnd: to } = input;
    if (from === to && isWord(value[from - 1]) && isWord(value[to])) {
      while (isWord(value[from - 1])) from--;
      while (isWord(value[to])) to++;
    }
    const [head, tail] = [value.slice(0, from).trimEnd(), value.slice(to).trimStart()];
    input.value = [head, model.mask, tail].filter(Boolean).join(" ");
    input.focus();
    input.setSelectionRange(head.length + model.mask.length + 1, head.length + model.mask.length + 1);
    typed(0);
  };
  extra.replaceChildren(button({ className: "tool", onclick: insert, title: "Replaces the selected text, or the word at the cursor" }, `Hide a word (${model.mask})`));
}

const maskPositions = (inspection, { mask }) => [...(inspection?.tokens.source ?? []).keys()].filter((i) => inspection.tokens.source[i] === mask);

// The words for each blank as they are shown.
const guesses = ({ masks }) => masks.map(({ words }) => words.map(({ word, probability }) => `${word} ${percent(probability)}`));

function answer(prediction, { model, base, hover, inspection }) {
  const text = element("p", { className: "big-answer" }, prediction.text);
  const lists = prediction.masks.map(({ words }, i) => {
    const bars = barList(`Words for blank ${i + 1}`);
    bars.update(words.map(({ word, probability }, rank) => ({ name: word, share: probability, text: percent(probability), kind: rank ? "" : "first" })));
    const group = element("div", {}, prediction.masks.length > 1 ? element("h4", {}, `Blank ${i + 1}`) : null, bars.node);
    const at = maskPositions(inspection, model)[i] ?? null;
    group.addEventListener("pointerenter", () => hover("source", at));
    group.addEventListener("pointerleave", () => hover("source", null));
    return group;
  });
  const [now, old] = [guesses(prediction), base && guesses(base)];
  const until = (words, i) => words.slice(0, 1 + words.findIndex((word, j) => word !== now[i][j])); // the first that differs
  return [text, ...before(old?.flatMap(until).join(", "), String(old) === String(now)), element("div", { className: "columns" }, ...lists)];
}

export async function start(panel) {
  panel.append(lead("Fill the mask", "Hide a word, and the model guesses it from the words around it. Remove another word or switch a head off, and the guess changes."));
  const all = await loadModels();
  const models = modelsOf(all, "masked_lm");
  if (!models.length) return void panel.append(noModel(all, { tasks: ["masked_lm"], what: "fills in words" }));
  panel.append(createTextTask({ models, label: "Text", placeholder: "Type a sentence with a blank: ___", read: readBlanks, names: { source: "Text" }, options: { top_k: 6 }, prepare, answer, missing: (text, { mask }) => (text.includes(mask) ? null : "There is no blank in this text. Type ___ for one, or select a word and hide it."), home: (inspection, _, model) => maskPositions(inspection, model)[0] ?? null }).node);
}

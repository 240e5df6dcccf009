// What the classifier says about itself: expected accuracy, the pretrained model, and hints about the images.
import { button, element } from "../view/elements.js";
import { replaceRows } from "./focus.js";
import { notInstalled, percent } from "./widgets.js";

const MODEL_NAMES = { auto: "Choose for me", glyphs: "Drawings and signs", photos: "Photos" };
const MIN_GOOD = 0.6; // the lower bound of the expected accuracy from which on it is shown as good
const MAX_HINTS = 4;
const MAX_PICTURES = 5; // of one hint
const listed = (names) => names.length > 1 ? `${names.slice(0, -1).join(", ")} and ${names.at(-1)}` : `${names[0]}`;

// The class of each image.
const classesById = (state) => new Map(state.classes.flatMap((item) => item.examples.map(({ id }) => [id, item])));

// Warnings that need the same answer, as one hint: { kind, groups, classes, … }. Each group is a list of image
// ids. Copies within classes are one hint, and so are those that the same classes share. A doubtful label is one each.
function grouped(warnings, state) {
  const classOf = classesById(state);
  const hints = new Map();
  for (const { kind, examples, suggestion, text } of warnings) {
    const ids = examples.filter((id) => classOf.has(id));
    const classes = [...new Set(ids.map((id) => classOf.get(id)))];
    const shared = classes.length > 1 ? classes.map(({ id }) => id).sort() : [];
    const key = [kind, ...(kind === "label" || !ids.length ? examples : shared)].join(" ");
    const hint = hints.get(key) ?? { kind, isShared: shared.length > 0, groups: [], classes: [], suggestion, texts: [], warnings: [] };
    hint.groups.push(ids);
    hint.classes = [...new Set([...hint.classes, ...classes])];
    hint.texts.push(text);
    hint.warnings.push(dismissedKey({ kind, examples }));
    hints.set(key, hint);
  }
  return [...hints].map(([key, hint]) => ({ key, ...hint }));
}
// A hint in plain words, with the names of the classes of its images.
function sentence({ kind, groups, classes, isShared, suggestion, texts }) {
  const where = `in ${listed(classes.map(({ name }) => name))}`;
  const count = groups.flat().length;
  const [same, first] = [kind === "duplicate" ? "the same" : "nearly the same", groups[0].length > 2 ? `${groups[0].length} images` : "Two images"];
  if (!classes.length) return texts[0];
  if (kind === "label" && suggestion) return `This image ${where} looks like ${suggestion.name}. Is it in the right class?`;
  if (kind === "blank") return count === 1 ? `An image ${where} is empty.` : `${count} images ${where} are empty.`;
  if (kind !== "duplicate" && kind !== "similar") return texts[0];
  const advice = kind === "similar" ? "More different images teach more." : isShared ? "A copy cannot belong to more than one class." : "A copy adds nothing, and makes the expected accuracy look better than it is.";
  return `${groups.length === 1 ? `${first} ${where} are ${same}.` : `${count} images ${where} are ${same} as another one, in ${groups.length} groups.`} ${advice}`;
}
// What is missing for an expected accuracy; it is measured with images that are left out, so a class needs two.
function missingForEstimate({ classes }) {
  const single = classes.filter(({ examples }) => examples.length === 1).map(({ name }) => name);
  return `Add a second image to ${listed(single.slice(0, 3))} to see the expected accuracy. It is measured with images that are left out, in two classes or more.`;
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
    missing.replaceChildren(...models.filter(({ available }) => !available).map(({ name, reason }) => notInstalled(`The model for ${(MODEL_NAMES[name] ?? name).toLowerCase()}`, reason)));
    missing.hidden = !missing.children.length;
    update(store.state());
  }

  // Buttons of a hint: [text, images to remove].
  function removals({ kind, groups, classes, isShared }, classOf) {
    const all = groups.flat();
    if (kind === "label" || !all.length) return [];
    if (kind === "blank") return [[all.length === 1 ? "Remove it" : `Remove all ${all.length}`, all]];
    if (isShared) return classes.map(({ id, name }) => [`Remove from ${name}`, all.filter((image) => classOf.get(image).id === id)]);
    const copies = groups.flatMap(([, ...rest]) => rest);
    return [[copies.length === 1 ? "Remove one" : `Remove ${copies.length}${kind === "duplicate" ? " copies" : " of them"}`, copies]];
  }
  function hint(found, state) {
    const { key, kind, groups, suggestion, texts, warnings } = found;
    const examples = new Map(state.classes.flatMap((item) => item.examples.map((example) => [example.id, example])));
    const ids = groups.length === 1 || kind === "blank" ? groups.flat() : groups.map(([first]) => first); // one of each group
    const pictures = ids.slice(0, MAX_PICTURES).map((id) => examples.get(id)).map(({ url, name }) => element("img", { src: url.replace(/^\//, ""), alt: name }));
    const actions = [
      suggestion && button({ className: "tool", onclick: () => store.moveImage(groups[0].at(-1), suggestion.class_id) }, `Move to ${suggestion.name}`),
      ...removals(found, classesById(state)).map(([text, images]) => button({ className: "tool", onclick: () => store.removeImages(images) }, text)),
      button({ className: "tool quiet", onclick: () => (warnings.forEach((warning) => dismissed.add(warning)), update(store.state())) }, groups.flat().length > 1 ? "Keep all" : "Keep"),
    ].filter(Boolean);
    const node = element("li", {}, element("div", { className: "pictures" }, ...pictures), element("p", { title: texts.join("\n") }, sentence(found)), element("div", { className: "tools" }, ...actions));
    node.dataset.id = key;
    return node;
  }

  function update(state) {
    node.hidden = !state?.num_examples;
    if (node.hidden) return;
    const { fit, fitted } = state;
    const estimate = fitted ? fit?.estimate : null;
    accuracy.replaceChildren(...(estimate
      ? [element("b", { className: estimate.low >= MIN_GOOD ? "good" : "" }, percent(estimate.accuracy)), element("span", {}, `expected accuracy, between ${percent(estimate.low)} and ${percent(estimate.high)}, from ${estimate.images} images that were left out one at a time`)]
      : [element("span", {}, fitted ? missingForEstimate(state) : "It is not ready yet.")]));
    const chosen = fit ? `Uses the model for ${(MODEL_NAMES[fit.model] ?? fit.model).toLowerCase()}. Fitted in ${fit.seconds.toFixed(2)} s.` : "";
    details.textContent = store.activity() || (fitted ? [chosen, fit?.hint && "The images look like another kind, whose model is not installed."].filter(Boolean).join(" ") : state.reason ?? "");
    details.title = fit?.model_reason ?? "";
    const open = grouped(state.warnings.filter((warning) => !dismissed.has(dismissedKey(warning))), state);
    const rows = open.slice(0, MAX_HINTS).map((found) => hint(found, state));
    replaceRows(hints, open.length > MAX_HINTS ? [...rows, element("li", { className: "note" }, `and ${open.length - MAX_HINTS} more hints`)] : rows, () => model);
    hints.hidden = !open.length;
    if (models.length) model.value = state.model;
  }
  return { node, update, setModels };
}

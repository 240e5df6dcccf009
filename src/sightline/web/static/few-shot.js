// The Few-shot tab: teach a classifier with a few images per class, and try it.
import { button, element } from "../view/elements.js";
import { loadModels } from "./api.js";
import { createClassCard } from "./few-shot-class.js";
import { createLibrary } from "./few-shot-library.js";
import { createStatus } from "./few-shot-status.js";
import { createStore } from "./few-shot-store.js";
import { createTry } from "./few-shot-try.js";
import { acceptArchives } from "./images.js";
import { icon, lead, showError } from "./widgets.js";

const START_CLASSES = 2;

export async function start(panel) {
  const store = createStore(() => panel.offsetParent !== null && !document.hidden);
  const cards = []; // in order of display
  const placeholders = new WeakSet(); // cards that were not asked for
  const list = element("div", { className: "classes" });
  const addButton = button({ className: "tool add-class", onclick: () => addCard(null, true) }, icon("plus"), "Add class");
  const [library, status, tryPanel] = [createLibrary(store), createStatus(store), createTry(store)];

  function freeName() {
    const taken = new Set(cards.map((card) => card.name().toLowerCase()));
    let number = cards.length + 1;
    while (taken.has(`class ${number}`)) number++;
    return `Class ${number}`;
  }
  // A card for a class of the classifier, or for one that has no image yet (`classId` is null).
  function addCard(classId, focus = false) {
    const card = createClassCard(store, { classId, name: freeName(), onRemoved: () => removeCard(card) });
    const after = classId === null ? -1 : cards.findIndex((other) => other.classId() === null || other.classId() > classId); // one that is back is in its place
    list.insertBefore(card.node, cards[after]?.node ?? null);
    cards.splice(after < 0 ? cards.length : after, 0, card);
    if (focus) card.focusName();
    return card;
  }
  function removeCard(card) {
    const [at, hadFocus] = [cards.indexOf(card), card.node.contains(document.activeElement)];
    if (at < 0) return; // another classifier was opened meanwhile
    cards.splice(at, 1);
    card.node.remove();
    if (hadFocus) (cards[at]?.focusRemove ?? (() => addButton.focus()))();
  }
  // A card for a class that is back, or of another window. It takes the place of one that was not asked for.
  function addKnown(classId) {
    const card = addCard(classId);
    const spare = cards.findLast((other) => placeholders.has(other) && other.isUntouched());
    if (spare && cards.length > START_CLASSES) removeCard(spare);
    return card;
  }
  // The classifier of the last visit is not known yet: nothing can be changed, so that no second one is made.
  function updateOpening() {
    const error = store.opening()?.error;
    opening.hidden = !store.opening();
    opening.ariaBusy = String(!error);
    for (const part of [library.node, workbench]) part.hidden = !opening.hidden;
    if (opening.hidden) return;
    opening.replaceChildren(...(error
      ? [element("p", {}, `The classifier of your last visit cannot be opened. ${error.message}`), element("p", { className: "tools" },
        button({ className: "action", onclick: store.restore }, "Try again"), button({ className: "tool", onclick: () => store.open(null) }, "Start a new one"))]
      : ["Opening the classifier of your last visit…"]));
  }
  function update(state) {
    updateOpening();
    if (store.opening()) return;
    const classes = state?.classes ?? [];
    for (const card of [...cards]) if (card.classId() !== null && !classes.some(({ id }) => id === card.classId())) card.remove();
    for (const item of classes) {
      const own = cards.find((card) => card.classId() === item.id) ?? cards.find((card) => card.classId() === null && card.name() === item.name) ?? addKnown(item.id);
      own.bind(item.id);
    }
    while (cards.length < START_CLASSES) placeholders.add(addCard(null));
    for (const card of cards) card.update(state);
    for (const part of [library, status, tryPanel]) part.update(state);
  }
  store.subscribe(update);
  store.onOpen(() => cards.splice(0).forEach((card) => card.dispose()));

  const opening = element("div", { className: "empty", role: "status" });
  const workbench = element("div", { className: "workbench" },
    element("section", { className: "teach", ariaLabel: "Classes" }, element("h3", { className: "step-title" }, "1. Add images"), list, addButton),
    element("section", { className: "try", ariaLabel: "Try the classifier" }, element("h3", { className: "step-title" }, "2. Try it"), tryPanel.node, status.node));
  panel.append(
    lead("Teach it your classes", "Name two or more classes and add a few images to each: three are enough to start. The classifier learns at once, says when an image is none of your classes, and shows why."),
    library.node, opening, workbench);
  update(null);
  document.addEventListener("keydown", (event) => {
    const isTyping = ["INPUT", "TEXTAREA"].includes(document.activeElement?.tagName);
    if ((event.ctrlKey || event.metaKey) && event.key === "z" && !isTyping && panel.offsetParent !== null) event.preventDefault(), library.undo();
  });
  acceptArchives(panel, library.importFile);
  await Promise.all([store.restore(), loadModels().then(status.setModels).catch(showError)]);
  return { hide: () => (tryPanel.pause(), cards.forEach((card) => card.closeSources())) };
}

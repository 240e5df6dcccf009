// The Few-shot tab: teach a classifier with a few images per class, and try it.
import { button, element } from "../view/elements.js";
import { loadModels } from "./api.js";
import { createClassCard } from "./few-shot-class.js";
import { createLibrary } from "./few-shot-library.js";
import { createStatus } from "./few-shot-status.js";
import { createStore } from "./few-shot-store.js";
import { createTry } from "./few-shot-try.js";
import { icon, lead, showError } from "./widgets.js";

const START_CLASSES = 2;

export async function start(panel) {
  const store = createStore();
  const cards = []; // in order of display
  const list = element("div", { className: "classes" });
  const addButton = button({ className: "tool add-class", onclick: () => addCard(null, true) }, icon("plus"), "Add class");
  const [library, status, tryPanel] = [createLibrary(store), createStatus(store), createTry(store)];

  function freeName() {
    const taken = new Set(cards.map((card) => card.name().toLowerCase()));
    let number = 1;
    while (taken.has(`class ${number}`)) number++;
    return `Class ${number}`;
  }
  // A card for a class of the classifier, or for one that has no image yet (`classId` is null).
  function addCard(classId, focus = false) {
    const card = createClassCard(store, { classId, name: freeName(), onRemoved: () => (cards.splice(cards.indexOf(card), 1), card.node.remove()) });
    cards.push(card);
    list.append(card.node);
    if (focus) card.focusName();
    return card;
  }
  function update(state) {
    const classes = state?.classes ?? [];
    for (const card of [...cards]) if (card.classId() !== null && !classes.some(({ id }) => id === card.classId())) card.remove();
    for (const item of classes) {
      const own = cards.find((card) => card.classId() === item.id) ?? cards.find((card) => card.classId() === null && card.name() === item.name) ?? addCard(item.id);
      own.bind(item.id);
    }
    while (cards.length < START_CLASSES) addCard(null);
    for (const card of cards) card.update(state);
    for (const part of [library, status, tryPanel]) part.update(state);
  }
  store.subscribe(update);
  store.onOpen(() => cards.splice(0).forEach((card) => card.dispose()));

  panel.append(
    lead("Teach it your classes", "Name two or more classes and add a few images to each: three are enough to start. The classifier learns at once, says when an image is none of your classes, and shows why."),
    library.node,
    element("div", { className: "workbench" },
      element("section", { className: "teach", ariaLabel: "Classes" }, element("h3", { className: "step-title" }, "1. Add images"), list, addButton),
      element("section", { className: "try", ariaLabel: "Try the classifier" }, element("h3", { className: "step-title" }, "2. Try it"), tryPanel.node, status.node)));
  update(null);
  document.addEventListener("keydown", (event) => {
    const isTyping = ["INPUT", "TEXTAREA", "SELECT"].includes(document.activeElement?.tagName);
    if ((event.ctrlKey || event.metaKey) && event.key === "z" && !isTyping && panel.offsetParent !== null) event.preventDefault(), library.undo();
  });
  await loadModels().then(status.setModels).catch(showError);
  await store.restore();
  return { hide: () => (tryPanel.pause(), cards.forEach((card) => card.closeSources())) };
}

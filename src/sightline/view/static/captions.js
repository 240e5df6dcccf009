// The page of captions: a card for each image.
import { captionCard } from "./caption-card.js";
import { element } from "./elements.js";

const data = JSON.parse(document.getElementById("sightline-captions").textContent);
document.body.append(
  element("header", {}, element("h1", {}, data.title), element("p", {}, "Each word has a map: bright regions are those that the model attended to when it wrote the word. Point at a word, use the arrow keys, or play.")),
  element("main", {}, ...data.cards.map((card) => captionCard(data, card))),
);

// The page of captions: a card for each image.
import { captionCard } from "./caption-card.js";
import { element } from "./elements.js";

const data = JSON.parse(document.getElementById("sightline-captions").textContent);
const intro = "Each word has a map: bright regions are those that the model attended to when it wrote the word. Point at a word, play, or click a word and use the arrow keys.";
const hasMaps = data.cards.some((card) => card.maps !== null);
document.body.append(
  element("header", {}, element("h1", {}, data.title), ...(hasMaps ? [element("p", {}, intro)] : [])),
  element("main", {}, ...data.cards.map((card) => captionCard(data, card))),
);

// One captioned image. Each word of the caption has a map, laid over the image.
import { button, element } from "./elements.js";
import { heatMap } from "./heat-map.js";

const STEP_MILLISECONDS = 700;
const MEAN = "mean";
const FONT = '20px ui-sans-serif, system-ui, "DejaVu Sans", sans-serif'; // of saved pictures

// The maps of a card: values of a word, averaged over layers and heads or of one of them, and the scale of all words.
function mapReader({ shape, scales, values }) {
  const [, layers, heads, rows, columns] = shape;
  const bytes = Uint8Array.from(atob(values), (character) => character.charCodeAt(0));
  const size = rows * columns;
  const weights = (word, layer, head) => {
    const start = ((word * layers + layer) * heads + head) * size;
    return Array.from(bytes.subarray(start, start + size), (byte) => (byte / 255) * scales[layer][head]);
  };
  const range = (choice, count) => (choice === MEAN ? [...Array(count).keys()] : [Number(choice)]);
  const read = (word, layer, head) => {
    const parts = range(layer, layers).flatMap((l) => range(head, heads).map((h) => weights(word, l, h)));
    return parts[0].map((_, i) => parts.reduce((sum, part) => sum + part[i], 0) / parts.length);
  };
  return { layers, heads, rows, columns, read };
}

function picture(data, index, alt) {
  const { src, width, height } = data.images[index];
  return element("img", { src, width, height, alt, className: Math.max(width, height) < 100 ? "pixelated" : "" });
}

function options(label, count, change) {
  const select = element("select", { ariaLabel: label, onchange: (event) => change(event.target.value) });
  select.append(element("option", { value: MEAN }, `${label}: mean`));
  for (let i = 0; i < count; i++) select.append(element("option", { value: String(i) }, `${label} ${i}`));
  return select;
}

// The card of one image. `data` has the images and the look of the maps.
export function captionCard(data, card) {
  const image = picture(data, card.image, card.name);
  const heading = element("h2", {}, element("span", { className: "file" }, card.name));
  const others = element("ol", { className: "captions" });
  for (const [text, score] of card.captions)
    others.append(element("li", {}, element("span", {}, text), element("span", { className: "score" }, score.toFixed(3))));
  const meaning = "A score is the log-probability of a caption, normalized by its length. It ranks captions of one image. It does not say whether a caption is true.";
  const scores = element("section", {}, element("h3", {}, "Captions and their scores"), others, element("p", { className: "note" }, meaning));
  if (card.maps === null) {
    const words = element("p", { className: "words" }, card.words.join(" "));
    const reason = card.has_attention ? "The caption is empty." : "This model has one context vector and no attention over regions.";
    const note = element("p", { className: "note" }, reason);
    return element("article", { className: "caption" }, heading, element("div", { className: "row" }, element("div", { className: "heat-map" }, image), element("div", {}, words, note, scores)));
  }
  const maps = mapReader(card.maps);
  const state = { word: 0, layer: MEAN, head: MEAN, timer: null };
  const describe = (row, column, value) => `row ${row + 1}, column ${column + 1}: ${(100 * value).toFixed(1)}%`;
  const map = heatMap({ picture: image, rows: maps.rows, columns: maps.columns, look: data.look, name: "Attention over the image", describe });
  const words = card.words.map((word, i) =>
    button({ className: "word", onpointerenter: () => choose(i), onfocus: () => choose(i), onclick: () => choose(i) }, word));
  const all = () => card.words.map((_, i) => maps.read(i, state.layer, state.head));
  let values = all();
  let scale = Math.max(...values.flat());

  function draw() {
    words.forEach((node, i) => node.setAttribute("aria-pressed", String(i === state.word)));
    map.update(values[state.word], scale);
  }
  function choose(word) {
    stop();
    state.word = word;
    draw();
  }
  function select(changes) {
    Object.assign(state, changes);
    values = all();
    scale = Math.max(...values.flat());
    draw();
  }
  function stop() {
    clearInterval(state.timer);
    state.timer = null;
    play.textContent = "Play";
  }
  function toggle() {
    if (state.timer !== null) return stop();
    play.textContent = "Pause";
    state.timer = setInterval(() => {
      state.word = (state.word + 1) % card.words.length;
      draw();
    }, STEP_MILLISECONDS);
  }
  const play = button({ className: "tool", onclick: toggle }, "Play");
  const save = button({ className: "tool", onclick: () => savePicture(image, map, card, state.word) }, "Save PNG");
  const line = element("p", { className: "words", role: "group", ariaLabel: "Words of the caption" }, ...words);
  line.addEventListener("keydown", (event) => {
    const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!move) return;
    event.preventDefault();
    words[(state.word + move + words.length) % words.length].focus();
  });
  const selects = [["Layer", maps.layers, "layer"], ["Head", maps.heads, "head"]].filter(([, count]) => count > 1)
    .map(([label, count, name]) => options(label, count, (value) => select({ [name]: value })));
  draw();
  return element("article", { className: "caption" }, heading,
    element("div", { className: "row" }, map.node,
      element("div", {}, line, element("div", { className: "tools" }, play, ...selects, save), scores)));
}

// The image with the map of a word, and the caption below it with the word marked, as a PNG file.
function savePicture(image, map, card, word) {
  const width = Math.max(448, image.naturalWidth);
  const height = Math.round((width * image.naturalHeight) / image.naturalWidth);
  const canvas = element("canvas", { width, height });
  const context = canvas.getContext("2d");
  context.font = FONT;
  const { places, bottom } = wordPlaces(context, card.words, width, height);
  canvas.height = bottom; // which clears the canvas and its state
  context.fillStyle = "#16181d";
  context.fillRect(0, 0, width, bottom);
  map.draw(context, width, height);
  Object.assign(context, { font: FONT, strokeStyle: "#ff9d1e", lineWidth: 1.5 });
  places.forEach(([x, y, length], i) => {
    context.fillStyle = i === word ? "#ff9d1e" : "#c9ced6";
    context.fillText(card.words[i], x, y, length);
    if (i === word) context.strokeRect(x - 5, y - 21, length + 10, 29);
  });
  canvas.toBlob((blob) => {
    const link = element("a", { href: URL.createObjectURL(blob), download: `${card.name}-${word + 1}-${card.words[word]}.png`.replace(/[^\w.-]+/g, "-") });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  });
}

// The places of words in lines below `top`, as [x, baseline, width], and where the lines end.
function wordPlaces(context, words, width, top) {
  const [margin, space, lineHeight] = [16, 12, 34];
  let [x, y] = [margin, top + 36];
  const places = words.map((text) => {
    const length = Math.min(context.measureText(text).width, width - 2 * margin);
    if (x > margin && x + length > width - margin) [x, y] = [margin, y + lineHeight];
    const place = [x, y, length];
    x += length + space;
    return place;
  });
  return { places, bottom: y + 20 };
}

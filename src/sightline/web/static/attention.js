// The attention of one prediction: tokens that can be removed, lines between tokens, and heads that can be switched off.
import { headColor, themeColors } from "../view/colors.js";
import { button, element } from "../view/elements.js";
import { displayText } from "../view/format.js";
import { unpack } from "../view/payload.js";
import { canvasRenderer } from "../view/renderer.js";
import { createMatrix, headMatrix, strongest } from "../view/weights.js";
import { createSwitches, headGrid, headsNote, keepingFocus, released } from "./heads.js";
import { choice } from "./widgets.js";

const ROW = 30; // height of a token in the drawing, in pixels
const LINES_PER_TOKEN = 4; // while no token is selected
const MIN_WEIGHT = 0.03;
const KINDS = { cross: "From the answer to the text", encoder: "Inside the text", decoder: "Inside the answer" };
const theme = () => document.documentElement.dataset.theme ?? "light";

// The layers of an inspection with a matrix for each head and their mean.
async function readLayers({ layers, levels }) {
  return Promise.all(layers.map(async (layer) => {
    const raw = await unpack(layer.packed.data, layer.shape);
    const heads = Array.from({ length: layer.shape[0] }, (_, head) => headMatrix(raw, head, layer.shape, levels));
    const mean = heads[0].data.map((_, i) => heads.reduce((sum, { data }) => sum + data[i], 0) / heads.length);
    return { ...layer, heads, mean: createMatrix(mean, layer.shape[1], layer.shape[2]) };
  }));
}

// `names` has the titles of the sequences: source, target and generated. `onChange` is called when a token or head is switched.
// `home(inspection, layer)` is the query whose lines are shown while no word is pointed at; null for the strongest lines of all.
export function createAttention({ names, onChange, home = () => null }) {
  const removed = new Set(); // indices of input tokens
  const switches = createSwitches();
  let inspection = null;
  let layers = [];
  let shown = { layer: null, head: null }; // head is null for the mean
  let focused = null; // { side: "query" or "key", index }

  const tokens = element("div", { className: "tokens", role: "group", ariaLabel: "What the model reads; choose a word to remove it" });
  const [left, right] = ["key", "query"].map((side) => element("div", { className: `side ${side}` }));
  const [leftTitle, rightTitle] = [element("h4", {}), element("h4", {})];
  const canvas = element("canvas", { className: "lines", ariaHidden: "true" });
  const drawing = element("div", { className: "attention-drawing" }, leftTitle, element("span", {}), rightTitle, left, canvas, right);
  const caption = element("p", { className: "finding", role: "status" });
  const kinds = element("div", {});
  const heads = element("div", {});
  const node = element("div", { className: "attention" },
    element("section", { className: "card", ariaLabel: "What the model reads" }, element("h3", {}, "What the model reads"), tokens, element("p", { className: "note" }, "Choose a word to remove it and see the answer change.")),
    element("div", { className: "attention-row" },
      element("section", { className: "card", ariaLabel: "Attention" }, element("h3", {}, "What it looks at"), caption, drawing),
      element("section", { className: "card", ariaLabel: "Heads" }, element("h3", {}, "Heads"), headsNote(), kinds, heads)));

  function toggleToken(index) {
    if (!removed.delete(index)) removed.add(index);
    onChange();
  }
  const current = () => layers.find(({ index }) => index === shown.layer) ?? null;
  const matrix = () => (current() ? (shown.head === null ? current().mean : current().heads[shown.head]) : null);

  function showTokens() {
    tokens.replaceChildren(...(inspection.input_tokens ?? []).map((token, i) => {
      const [text, isRemoved] = [displayText(token), removed.has(i)];
      if (!inspection.removable[i]) return element("span", { className: "token special" }, text);
      const chip = button({ className: `token ${isRemoved ? "removed" : ""}`, ariaLabel: `${isRemoved ? "Put back" : "Remove"} ${text}`, onclick: () => (chip.classList.toggle("removed"), toggleToken(i)) }, text); // marked at once; the answer follows
      chip.dataset.index = i;
      chip.dataset.focus = `token-${i}`;
      chip.addEventListener("pointerenter", () => focus({ side: "key", index: inspection.kept.indexOf(i) }));
      chip.addEventListener("pointerleave", () => focus(null));
      return chip;
    }));
  }

  function side(node_, name, sequence) {
    node_.replaceChildren(...sequence.map((token, index) => {
      const own = { side: name, index };
      const item = button({ className: "word", onclick: () => focus(own), onfocus: () => focus(own), onblur: () => focus(null) }, displayText(token));
      item.addEventListener("pointerenter", () => focus(own));
      item.addEventListener("pointerleave", () => focus(null));
      return item;
    }));
  }
  function showDrawing() {
    const layer = current();
    drawing.hidden = caption.hidden = !layer;
    if (!layer) return;
    side(left, "key", inspection.tokens[layer.keys]);
    side(right, "query", inspection.tokens[layer.queries]);
    leftTitle.textContent = layer.keys === layer.queries ? "is looked at" : names[layer.keys];
    rightTitle.textContent = layer.keys === layer.queries ? "looks" : names[layer.queries];
    focus(null);
  }

  function focus(next) {
    const start = next ? null : home(inspection, current());
    focused = next && next.index >= 0 ? next : start === null ? null : { side: "query", index: start };
    draw();
  }
  function links(shownMatrix) {
    const [rows, columns] = [[...Array(shownMatrix.queries).keys()], [...Array(shownMatrix.keys).keys()]];
    if (focused?.side === "query") return columns.map((key) => [focused.index, key]);
    if (focused?.side === "key") return rows.map((query) => [query, focused.index]);
    return rows.flatMap((query) => strongest(shownMatrix.row(query), LINES_PER_TOKEN, columns).map((key) => [query, key]));
  }
  function draw() {
    const shownMatrix = matrix();
    if (!shownMatrix || node.offsetParent === null) return;
    const [width, height, scale] = [canvas.clientWidth, ROW * Math.max(shownMatrix.queries, shownMatrix.keys), devicePixelRatio];
    [canvas.width, canvas.height] = [width * scale, height * scale];
    canvas.style.height = `${height}px`;
    const context = canvas.getContext("2d");
    context.scale(scale, scale);
    const renderer = canvasRenderer(context);
    const color = shown.head === null ? themeColors().accent : headColor(theme(), shown.head);
    const strengths = { query: new Map(), key: new Map() };
    for (const [query, key] of links(shownMatrix)) {
      const weight = Math.abs(shownMatrix.row(query)[key]);
      if (weight < MIN_WEIGHT * shownMatrix.max) continue;
      const strength = Math.min(1, weight / shownMatrix.max);
      strengths.query.set(query, Math.max(strength, strengths.query.get(query) ?? 0));
      strengths.key.set(key, Math.max(strength, strengths.key.get(key) ?? 0));
      renderer.lines([0, ROW * (key + 0.5), width, ROW * (query + 0.5)], { color, alpha: 0.12 + 0.88 * strength, lineWidth: 1 + 4 * strength, curve: "x" });
    }
    for (const [name, list] of [["key", left], ["query", right]]) {
      [...list.children].forEach((item, index) => {
        item.classList.toggle("is-focused", focused?.side === name && focused.index === index);
        item.style.setProperty("--strength", focused && focused.side !== name ? strengths[name].get(index) ?? 0 : 0);
        item.classList.toggle("is-faint", Boolean(focused) && focused.side !== name && !strengths[name].has(index));
      });
    }
    shadeTokens(strengths.key);
    describe(shownMatrix);
  }
  // The chips of the text show the weights of the focused word of the answer.
  function shadeTokens(strengths) {
    const isText = current().keys === "source" && focused?.side === "query";
    for (const chip of tokens.querySelectorAll("[data-index]")) {
      const at = inspection.kept.indexOf(Number(chip.dataset.index));
      chip.style.setProperty("--strength", isText ? strengths.get(at) ?? 0 : 0);
    }
  }
  function describe(shownMatrix) {
    const layer = current();
    const what = shown.head === null ? "all heads on average" : `head ${shown.head}${switches.isOff(layer.name, shown.head) ? ", which is off" : ""}`;
    if (!focused) return void (caption.textContent = `Layer ${depth(layer)}, ${what}. Point at a word to see its lines.`);
    const name = (side_, index) => `“${displayText(inspection.tokens[side_ === "query" ? layer.queries : layer.keys][index])}”`;
    const { side: from, index } = focused;
    const row = from === "query" ? shownMatrix.row(index) : shownMatrix.column(index);
    const best = strongest(row, 3, row.keys()).filter((i) => row[i] > 0.01).map((i) => `${name(from === "query" ? "key" : "query", i)} ${Math.round(100 * row[i])}%`);
    caption.textContent = `${name(from, index)} ${from === "query" ? "looks at" : "is looked at by"} ${best.join(", ") || "nothing in particular"}.`;
  }

  const depth = (layer) => layers.filter(({ kind }) => kind === layer.kind).indexOf(layer);
  function showHeads() {
    const present = Object.keys(KINDS).filter((kind) => layers.some((layer) => layer.kind === kind));
    const kind = current()?.kind;
    kinds.replaceChildren(...(present.length > 1 ? [choice({
      legend: "Attention", name: "attention-kind", hideLegend: true, value: kind, options: present.map((name) => [name, KINDS[name]]),
      onChange: (next) => show({ layer: layers.filter((layer) => layer.kind === next).at(-1).index, head: null }),
    }).node] : []));
    const rows = layers.filter((layer) => layer.kind === kind).map((layer) => ({ layer: layer.index, mean: layer.mean, heads: layer.heads.map((matrix_, head) => ({ matrix: matrix_, isOff: switches.isOff(layer.name, head) })) }));
    heads.replaceChildren(headGrid({ rows, shown, onShow: show, onToggle: (index, head) => (switches.toggle(layers.find((layer) => layer.index === index).name, head), onChange()) }));
  }
  function show(next) {
    shown = next;
    keepingFocus(node, () => (showHeads(), showDrawing()));
  }
  addEventListener("themechange", () => layers.length && (showHeads(), draw()));
  new ResizeObserver(() => draw()).observe(canvas);

  return {
    node,
    // The changes that the user made, as options of a request.
    changes: () => ({
      remove_tokens: [...removed].sort((a, b) => a - b),
      ablate_heads: switches.toObject(),
    }),
    isChanged: () => removed.size > 0 || switches.isChanged(),
    reset: () => (removed.clear(), switches.clear()),
    // Show only the lines of a token of a sequence; null for all.
    focusQuery: (sequence, index) => current()?.queries === sequence && focus(index === null ? null : { side: "query", index }),
    async update(next) {
      const read = next ? await readLayers(next) : [];
      await released();
      [inspection, layers] = [next, read];
      node.hidden = !layers.length;
      if (!layers.length) return;
      const preferred = layers.filter(({ kind }) => kind === "cross").at(-1) ?? layers.at(-1);
      if (!current() || (shown.head !== null && shown.head >= current().heads.length)) shown = { layer: preferred.index, head: null };
      keepingFocus(node, () => (showTokens(), showHeads(), showDrawing()));
    },
  };
}

// The state of the viewer: one flat object, mirrored in the URL hash, so that reloads and bookmarks restore it.

import { HEAD_COLOR_COUNT } from "./colors.js";

export const VIEWS = ["heads", "grid", "matrix", "image", "alignment", "temperature"];
const COMBINE = ["each", "mean", "max", "rollout", "layers"];
const MAX_ROLLOUT_TOKENS = 260; // of a page that opens on the rollout, which multiplies all layers

// Which lines are drawn: the strongest of each query, or all from a weight on.
export const LINES = ["auto", "1", "3", "5", "12", "0.05", "0.1", "0.25", "0.5"];
export const SENTENCES = ["all", "AA", "AB", "BA", "BB"];

// null means that `validState` chooses a value, or none. The hash contains only values that differ from these defaults.
export const DEFAULTS = {
  view: null, example: 0, layer: null, heads: null, combine: null, query: null, key: null,
  hide: false, join: false, sentences: "all", lines: "auto", oneScale: true, temperature: 1, zoom: 1, opacity: 0.7, smooth: true, theme: "auto", from: null,
};

const CHOICES = { view: VIEWS, combine: COMBINE, lines: LINES, sentences: SENTENCES, theme: ["auto", "light", "dark"], from: ["grid"] };
const RANGES = { temperature: [0.05, 20], zoom: [0.25, 8], opacity: [0, 1] };

export function toHash(state) {
  const format = (value) => (Array.isArray(value) ? value.join(".") : typeof value === "number" ? +value.toFixed(3) : value);
  return Object.entries(state)
    .filter(([name, value]) => value !== DEFAULTS[name] && value !== null)
    .map(([name, value]) => `${name}=${format(value)}`)
    .join("&");
}

// Unknown names and values out of range are ignored.
export function fromHash(hash) {
  const state = {};
  for (const [name, text] of new URLSearchParams(hash.replace(/^#/, ""))) {
    if (!Object.hasOwn(DEFAULTS, name)) continue;
    const value = Number(text);
    if (name in CHOICES ? CHOICES[name].includes(text) : typeof DEFAULTS[name] === "boolean") state[name] = CHOICES[name] ? text : text === "true";
    else if (name === "heads" && /^\d+(\.\d+)*$/.test(text)) state.heads = [...new Set(text.split(".").map(Number))];
    else if (name in RANGES ? value >= RANGES[name][0] && value <= RANGES[name][1] : /^\d+$/.test(text)) state[name] = value;
  }
  return state;
}

// The layer with the most information.
export function mostInformative(layers, candidates = [...layers.keys()]) {
  const information = (i) => (layers[i].information ?? 0) / Math.max(1, Math.log2(Math.min(layers[i].shape[1], layers[i].shape[2])));
  return candidates.reduce((best, i) => (information(i) > information(best) ? i : best));
}

// The layer that says most: relevance or cross-attention if there is any, over images if there are any.
function startLayer(state, layers, availableViews) {
  const ofKind = (kind) => [...layers.keys()].filter((i) => layers[i].kind === kind);
  const candidates = [ofKind("relevance"), ofKind("cross"), [...layers.keys()]].find((list) => list.length);
  const overImages = candidates.filter((layer) => availableViews({ ...state, layer }).includes("image"));
  return mostInformative(layers, overImages.length ? overImages : candidates);
}

// Replace what does not exist in the data by defaults: the image view if there are images, the layer that says most, and
// the mean if there are more heads than colors. `rolloutLayers` has the layers that a rollout multiplies.
export function validState(state, meta, availableViews, rolloutLayers) {
  const next = { ...state };
  const inRange = (value, size) => (value !== null && value < size ? value : null);
  next.example = inRange(next.example, meta.examples.length) ?? 0;
  const { layers } = meta.examples[next.example];
  next.layer = inRange(next.layer, layers.length);
  if (next.layer === null) {
    next.layer = startLayer(next, layers, availableViews);
    const rollout = rolloutLayers(layers, next.layer);
    const isSmall = layers[next.layer].shape[1] <= MAX_ROLLOUT_TOKENS;
    const opensOnImage = next.view === null && availableViews(next).includes("image");
    if (opensOnImage && rollout.length && isSmall && !next.combine) [next.layer, next.combine] = [rollout.at(-1), "rollout"];
  }
  const [heads] = layers[next.layer].shape;
  if (next.heads) next.heads = next.heads.filter((head) => head < heads);
  if (next.heads && (next.heads.length === 0 || next.heads.length === heads)) next.heads = null;
  next.combine ??= heads > HEAD_COLOR_COUNT ? "mean" : "each";
  const views = availableViews(next);
  if (!views.includes(next.view)) next.view = views.includes("image") ? "image" : "heads";
  if (next.view !== "matrix") next.from = null; // the view to return to
  if (!layers.some(({ hasTemperature }) => hasTemperature)) next.temperature = 1;
  return next;
}

// The URL of a frame in a notebook or sandbox may be read-only; the viewer then works without a hash.
export function writeHash(text, push) {
  if (location.hash.slice(1) === text) return;
  try {
    if (location.protocol === "about:") location.replace(`about:srcdoc#${text}`); // history.replaceState is not allowed there
    else history[push ? "pushState" : "replaceState"](null, "", `#${text}`);
  } catch {}
}

// What is looked at, and how: one flat object, mirrored in the hash so that a reload or a sent link shows the same.

import { COLORS } from "./colors.js";

export const VIEWS = ["heads", "grid", "matrix", "image", "alignment", "temperature"];
const COMBINE = ["each", "mean", "max", "rollout"];

// What is null follows from the page (`fitted`) or means none. Only what differs is written, so the view, the layer and
// how heads are combined always are.
export const DEFAULTS = {
  view: null, example: 0, layer: null, heads: null, combine: null, token: null, key: null,
  hide: false, temperature: 1, zoom: 1, opacity: 0.75, smooth: true, theme: "auto", from: null,
};

const WORDS = { view: VIEWS, combine: COMBINE, theme: ["auto", "light", "dark"], from: ["grid"] };
const RANGES = { temperature: [0.05, 20], zoom: [0.25, 8], opacity: [0, 1] };

export function toHash(state) {
  const written = (value) => (Array.isArray(value) ? value.join(".") : typeof value === "number" ? +value.toFixed(3) : value);
  return Object.entries(state)
    .filter(([name, value]) => value !== DEFAULTS[name] && value !== null)
    .map(([name, value]) => `${name}=${written(value)}`)
    .join("&");
}

// Only what is known and in range; anything else in a hash is ignored.
export function fromHash(hash) {
  const state = {};
  for (const [name, text] of new URLSearchParams(hash.replace(/^#/, ""))) {
    if (!Object.hasOwn(DEFAULTS, name)) continue;
    const value = Number(text);
    if (name in WORDS ? WORDS[name].includes(text) : typeof DEFAULTS[name] === "boolean") state[name] = WORDS[name] ? text : text === "true";
    else if (name === "heads" && /^\d+(\.\d+)*$/.test(text)) state.heads = [...new Set(text.split(".").map(Number))];
    else if (name in RANGES ? value >= RANGES[name][0] && value <= RANGES[name][1] : /^\d+$/.test(text)) state[name] = value;
  }
  return state;
}

// Make a state fit the data: no layer, head or view that is not there. A page opens on its pictures and on cross-attention
// where it has them, and on the mean where there are more heads than colors.
export function fitted(state, meta, viewsFor) {
  const next = { ...state };
  const within = (value, size) => (value !== null && value < size ? value : null);
  next.example = within(next.example, meta.examples.length) ?? 0;
  const { layers } = meta.examples[next.example];
  next.layer = within(next.layer, layers.length) ?? Math.max(0, layers.findIndex(({ kind }) => kind === "cross"));
  const [heads] = layers[next.layer].shape;
  if (next.heads) next.heads = next.heads.filter((head) => head < heads);
  if (next.heads && (next.heads.length === 0 || next.heads.length === heads)) next.heads = null;
  next.combine ??= heads > COLORS ? "mean" : "each";
  const open = viewsFor(next);
  if (!open.includes(next.view)) next.view = open.includes("image") ? "image" : "heads";
  if (next.view !== "matrix") next.from = null; // the way back to the grid
  if (!layers.some(({ sharpens }) => sharpens)) next.temperature = 1;
  return next;
}

// A frame in a notebook or in a sandbox may have an address that cannot be changed; its page works without.
export function writeHash(text, push) {
  if (location.hash.slice(1) === text) return;
  try {
    if (location.protocol === "about:") location.replace(`about:srcdoc#${text}`); // history.replaceState refuses it
    else history[push ? "pushState" : "replaceState"](null, "", `#${text}`);
  } catch {}
}

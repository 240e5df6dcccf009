// From codes to matrices: one head, heads combined, layers rolled out, all of it at any temperature.

import { number } from "./dom.js";

const KEPT = 40; // matrices in memory
const PER_ROW = 12; // lines kept of each row while no token is picked
const [MOST, MOST_MOVING] = [3000, 200]; // lines drawn at once, and while the view is scrolled, every frame of the screen

export function openMatrices(app) {
  const levels = Float32Array.from(app.meta.levels); // what each code stands for, as a part of its row's top
  const cache = new Map();
  let worked = false; // whether this frame has already paid for a product of matrices

  const layerOf = (index) => app.example().layers[index];

  function kept(key, make) {
    if (cache.has(key)) return cache.get(key);
    const made = make();
    if (!made) return null;
    cache.set(key, made);
    if (cache.size > KEPT) cache.delete(cache.keys().next().value);
    return made;
  }

  // All rows of some heads, or `count` from `first` on, as {data, queries, keys, top}; null while they are on their way.
  function combined(index, how, heads, { first = 0, count = layerOf(index).shape[1], temperature } = {}) {
    const raw = app.weights.get(app.state.example, index);
    if (!raw) return null;
    const [, queries, keys] = layerOf(index).shape;
    const sharp = sharpened(index, temperature);
    const [one, ...others] = heads;
    const data = decode(raw, one * queries + first, count, keys, sharp);
    for (const which of others) {
      const part = decode(raw, which * queries + first, count, keys, sharp);
      for (let i = 0; i < data.length; i++) data[i] = how === "max" ? Math.max(data[i], part[i]) : data[i] + part[i];
    }
    if (how !== "max") for (let i = 0; i < data.length; i++) data[i] /= others.length + 1;
    return finish(data, count, keys);
  }

  // Codes to parts of the row's top, at a temperature: softmax(s / T) is softmax(s) to the power 1 / T, scaled to sum to
  // 1 again, so no scores are needed.
  function sharpened(index, temperature = app.state.temperature) {
    const power = layerOf(index).sharpens ? 1 / temperature : 1;
    return { levels: power === 1 ? levels : levels.map((level) => level ** power), scaled: power !== 1 };
  }

  // One head made small: the strongest weight of each block, so that thin diagonals survive. It came with the page, unless
  // tokens are hidden or the temperature was turned.
  function small(index, which, rows, columns) {
    const layer = layerOf(index);
    const [, high, wide] = layer.small ?? [];
    const asIs = high && rows.length === layer.shape[1] && columns.length === layer.shape[2] && !sharpened(index).scaled;
    const raw = asIs && app.weights.get(app.state.example, index, "small");
    if (raw) return finish(decode(raw, which * high, high, wide, sharpened(index)), high, wide);
    const matrix = asIs ? null : combined(index, "mean", [which]);
    return matrix && pooled(matrix, rows, columns, app.meta.fine);
  }

  // Abnar and Zuidema's rollout: half of each layer is the residual path, so it is the identity.
  function rollout(index) {
    return kept(key("rollout", index), () => {
      const before = rolled(app, index).filter((other) => other < index).pop();
      const below = before === undefined ? null : rollout(before);
      if (before !== undefined && !below) return null; // one layer at a time, or they would push each other out
      if (worked) return void app.refresh();
      const own = combined(index, "mean", layerOf(index).heads.keys());
      if (!own) return null;
      const n = own.queries;
      const half = own.data.map((weight, i) => weight / 2 + (i % (n + 1) === 0 ? 0.5 : 0));
      worked = below !== null && n > 200;
      return finish(below ? product(half, below.data, n) : half, n, n);
    });
  }

  // One row alone at a temperature of its own.
  const rowAt = (index, query, temperature) =>
    combined(index, app.combining(index), app.headsOn(index), { first: query, count: 1, temperature })?.data;

  const key = (...parts) => [app.state.example, app.state.temperature, ...parts].join(" ");

  return {
    newFrame: () => (worked = false),
    head: (index, which) => kept(key(index, which), () => combined(index, "mean", [which])),
    small, rowAt,
    // What the state asks for: the one head that is on, or all that are on, combined.
    current() {
      const [{ layer }, how, heads] = [app.state, app.combining(), app.headsOn()];
      return how === "rollout" ? rollout(layer) : kept(key(layer, how, heads.join(".")), () => combined(layer, how, heads));
    },
  };
}

// Layers that can be multiplied: of one kind and one call, looking at themselves, all of one size.
export function rolled(app, index) {
  const { layers } = app.example();
  const { kind, call, shape, shares } = layers[index];
  const alike = layers.map((_, i) => i).filter((i) => layers[i].kind === kind && layers[i].call === call);
  const fit = (i) => layers[i].shares && layers[i].shape[1] === shape[1] && layers[i].shape[2] === shape[1];
  return kind !== "cross" && shares && alike.length > 1 && alike.every(fit) ? alike : [];
}

function pooled(matrix, rows, columns, most) {
  const [high, wide] = [Math.min(most, rows.length), Math.min(most, columns.length)];
  const data = new Float32Array(high * wide);
  const [from, block] = [Int32Array.from(columns), Int32Array.from(columns, (_, j) => (j * wide) / columns.length)];
  rows.forEach((query, i) => {
    const [start, to] = [query * matrix.keys, Math.floor((i * high) / rows.length) * wide];
    for (let j = 0; j < from.length; j++) {
      const weight = matrix.data[start + from[j]];
      if (Math.abs(weight) > Math.abs(data[to + block[j]])) data[to + block[j]] = weight;
    }
  });
  return finish(data, high, wide);
}

function scaleOf({ tops, codes }, row, keys, { levels, scaled }) {
  if (!scaled) return tops[row];
  let sum = 0;
  for (let k = row * keys; k < (row + 1) * keys; k++) sum += levels[codes[k]];
  return sum > 0 ? 1 / sum : 0;
}

function decode(raw, first, queries, keys, sharp) {
  const [data, { codes, below }, { levels }] = [new Float32Array(queries * keys), raw, sharp];
  for (let q = 0; q < queries; q++) {
    const [from, to] = [(first + q) * keys, q * keys];
    const scale = scaleOf(raw, first + q, keys, sharp);
    for (let k = 0; k < keys; k++) data[to + k] = levels[codes[from + k]] * scale;
    if (below) for (let k = 0; k < keys; k++) data[to + k] -= levels[below[from + k]] * scale;
  }
  return data;
}

function finish(data, queries, keys) {
  const tops = new Float32Array(queries); // the largest of each row, whatever its sign
  for (let q = 0, i = 0; q < queries; q++) {
    for (const end = i + keys; i < end; i++) if (Math.abs(data[i]) > tops[q]) tops[q] = Math.abs(data[i]);
  }
  return {
    data, queries, keys, tops, top: tops.reduce((most, top) => Math.max(most, top), 0) || 1,
    text: (q, k) => number(data[q * keys + k], tops[q]),
    row: (q) => data.subarray(q * keys, (q + 1) * keys),
    column: (k) => Float32Array.from({ length: queries }, (_, q) => data[q * keys + k]),
  };
}

function product(a, b, n) {
  const out = new Float32Array(n * n);
  for (let i = 0; i < n; i++) {
    for (let j = 0; j < n; j++) {
      const weight = a[i * n + j];
      if (weight === 0) continue;
      for (let k = 0, from = j * n, to = i * n; k < n; k++) out[to + k] += weight * b[from + k];
    }
  }
  return out;
}

// In bits: 0 for one key alone, log2 K for all alike.
export function entropy(row) {
  let [sum, bits] = [0, 0];
  for (const weight of row) sum += weight;
  if (sum <= 0) return 0;
  for (const weight of row) if (weight > 0) bits -= (weight / sum) * Math.log2(weight / sum);
  return bits;
}

// Over the rows that look at anything.
export function meanEntropy(matrix) {
  if (matrix.bits !== undefined) return matrix.bits;
  const rows = Array.from(matrix.tops, (_, q) => matrix.row(q)).filter((_, q) => matrix.tops[q] > 0);
  return (matrix.bits = rows.reduce((sum, row) => sum + entropy(row), 0) / (rows.length || 1));
}

// The strongest places of a row, strongest first.
export const strongest = (row, count, places) => [...places].sort((a, b) => Math.abs(row[b]) - Math.abs(row[a])).slice(0, count);

// The looks to draw: of the one that is picked, or the strongest few of each row.
export function eachLook(matrix, picked, add) {
  if (!picked) for (const look of links(matrix)) add(...look);
  else if (picked.side === "query") matrix.row(picked.index).forEach((weight, key) => add(picked.index, key, weight));
  else matrix.column(picked.index).forEach((weight, query) => add(query, picked.index, weight));
}

// The largest few lines, largest first. Bare numbers sort fast, so they tell first what is worth sorting.
export function largest(lines, moving) {
  const count = moving ? MOST_MOVING : MOST;
  const least = Float32Array.from(lines, ({ size }) => size).sort()[Math.max(0, lines.length - count)];
  return lines.filter(({ size }) => size >= least).sort((a, b) => b.size - a.size).slice(0, count);
}

// The strongest few of each row, found once for a matrix.
function links(matrix) {
  matrix.links ??= Array.from({ length: matrix.queries }, (_, query) => {
    const row = matrix.row(query);
    if (matrix.keys <= PER_ROW) return Array.from(row, (weight, key) => [query, key, weight]).filter(([, , weight]) => weight);
    const best = [];
    for (let key = 0; key < row.length; key++) {
      const size = Math.abs(row[key]);
      if (size === 0 || (best.length === PER_ROW && size <= Math.abs(best[PER_ROW - 1][2]))) continue;
      let at = best.length === PER_ROW ? PER_ROW - 1 : best.length;
      while (at > 0 && Math.abs(best[at - 1][2]) < size) (best[at] = best[at - 1]), at--;
      best[at] = [query, key, row[key]];
    }
    return best;
  }).flat();
  return matrix.links;
}

// Attention matrices from the payload: single heads, combined heads and rollout, at any temperature.

import { formatWeight } from "./format.js";

const CACHED_MATRICES = 40;
const LINKS_PER_QUERY = 12; // lines drawn per query while nothing is selected
const [MAX_LINES, MAX_LINES_SCROLLING] = [3000, 200]; // lines drawn per frame

export function createMatrices(app) {
  const levels = Float32Array.from(app.meta.levels); // codes as fractions of the row's maximum
  const cache = new Map();
  let multiplied = false; // whether a matrix product was computed in this frame

  const layerMeta = (index) => app.example().layers[index];

  function cached(key, compute) {
    if (cache.has(key)) return cache.get(key);
    const value = compute();
    if (!value) return null;
    cache.set(key, value);
    if (cache.size > CACHED_MATRICES) cache.delete(cache.keys().next().value);
    return value;
  }

  // The mean or maximum over heads, for all queries or `count` from `first` on; null while loading.
  function combineHeads(index, mode, heads, { first = 0, count = layerMeta(index).shape[1], temperature } = {}) {
    const raw = app.payload.get(app.state.example, index);
    if (!raw) return null;
    const [, queries, keys] = layerMeta(index).shape;
    const scale = levelScale(index, temperature);
    const [firstHead, ...others] = heads;
    const data = decode(raw, firstHead * queries + first, count, keys, scale);
    for (const head of others) {
      const other = decode(raw, head * queries + first, count, keys, scale);
      for (let i = 0; i < data.length; i++) data[i] = mode === "max" ? Math.max(data[i], other[i]) : data[i] + other[i];
    }
    if (mode !== "max") for (let i = 0; i < data.length; i++) data[i] /= others.length + 1;
    return createMatrix(data, count, keys);
  }

  // The levels at a temperature: softmax(s / T) is softmax(s)^(1 / T), normalized again, so no scores are needed.
  function levelScale(index, temperature = app.state.temperature) {
    const power = layerMeta(index).hasTemperature ? 1 / temperature : 1;
    return { levels: power === 1 ? levels : levels.map((level) => level ** power), normalize: power !== 1 };
  }

  // One head, downsampled to the strongest weight of each block. The payload contains it, unless tokens are hidden or the
  // temperature was changed.
  function thumbnail(index, head, rows, columns) {
    const layer = layerMeta(index);
    const [, height, width] = layer.thumbnail ?? [];
    const inPayload = height && rows.length === layer.shape[1] && columns.length === layer.shape[2] && !levelScale(index).normalize;
    const raw = inPayload && app.payload.get(app.state.example, index, "thumbnail");
    if (raw) return createMatrix(decode(raw, head * height, height, width, levelScale(index)), height, width);
    const matrix = inPayload ? null : combineHeads(index, "mean", [head]);
    return matrix && downsample(matrix, rows, columns, app.meta.thumbnailSize);
  }

  // Attention rollout (Abnar and Zuidema, 2020): each layer is averaged with the identity for the residual connection.
  function rollout(index) {
    return cached(cacheKey("rollout", index), () => {
      const previousIndex = rolloutLayers(app, index).filter((other) => other < index).pop();
      const previous = previousIndex === undefined ? null : rollout(previousIndex);
      if (previousIndex !== undefined && !previous) return null; // load one layer at a time, or they evict each other
      if (multiplied) return void app.refresh();
      const mean = combineHeads(index, "mean", layerMeta(index).heads.keys());
      if (!mean) return null;
      const n = mean.queries;
      const withResidual = mean.data.map((weight, i) => weight / 2 + (i % (n + 1) === 0 ? 0.5 : 0));
      multiplied = previous !== null && n > 200;
      return createMatrix(previous ? multiply(withResidual, previous.data, n) : withResidual, n, n);
    });
  }

  // One row at its own temperature.
  const rowAt = (index, query, temperature) =>
    combineHeads(index, app.combineMode(index), app.selectedHeads(index), { first: query, count: 1, temperature })?.data;

  const cacheKey = (...parts) => [app.state.example, app.state.temperature, ...parts].join(" ");

  return {
    newFrame: () => (multiplied = false),
    head: (index, head) => cached(cacheKey(index, head), () => combineHeads(index, "mean", [head])),
    thumbnail, rowAt,
    // The matrix of the current state: the selected heads, combined.
    current() {
      const [{ layer }, mode, heads] = [app.state, app.combineMode(), app.selectedHeads()];
      return mode === "rollout" ? rollout(layer) : cached(cacheKey(layer, mode, heads.join(".")), () => combineHeads(layer, mode, heads));
    },
  };
}

// The layers of a rollout: self-attention of the same kind, call and size. Empty if rollout is not defined.
export function rolloutLayers(app, index) {
  const { layers } = app.example();
  const { kind, call, shape, normalized } = layers[index];
  const sameKind = layers.map((_, i) => i).filter((i) => layers[i].kind === kind && layers[i].call === call);
  const fits = (i) => layers[i].normalized && layers[i].shape[1] === shape[1] && layers[i].shape[2] === shape[1];
  return kind !== "cross" && normalized && sameKind.length > 1 && sameKind.every(fits) ? sameKind : [];
}

function downsample(matrix, rows, columns, maxSize) {
  const [height, width] = [Math.min(maxSize, rows.length), Math.min(maxSize, columns.length)];
  const data = new Float32Array(height * width);
  const [keys, blocks] = [Int32Array.from(columns), Int32Array.from(columns, (_, j) => (j * width) / columns.length)];
  rows.forEach((query, i) => {
    const [from, to] = [query * matrix.keys, Math.floor((i * height) / rows.length) * width];
    for (let j = 0; j < keys.length; j++) {
      const weight = matrix.data[from + keys[j]];
      if (Math.abs(weight) > Math.abs(data[to + blocks[j]])) data[to + blocks[j]] = weight;
    }
  });
  return createMatrix(data, height, width);
}

function rowScale({ rowMaxima, codes }, row, keys, { levels, normalize }) {
  if (!normalize) return rowMaxima[row];
  let sum = 0;
  for (let k = row * keys; k < (row + 1) * keys; k++) sum += levels[codes[k]];
  return sum > 0 ? 1 / sum : 0;
}

function decode(raw, first, queries, keys, scale) {
  const [data, { codes, negativeCodes }, { levels }] = [new Float32Array(queries * keys), raw, scale];
  for (let q = 0; q < queries; q++) {
    const [from, to] = [(first + q) * keys, q * keys];
    const factor = rowScale(raw, first + q, keys, scale);
    for (let k = 0; k < keys; k++) data[to + k] = levels[codes[from + k]] * factor;
    if (negativeCodes) for (let k = 0; k < keys; k++) data[to + k] -= levels[negativeCodes[from + k]] * factor;
  }
  return data;
}

function createMatrix(data, queries, keys) {
  const rowMaxima = new Float32Array(queries); // of absolute weights
  for (let q = 0, i = 0; q < queries; q++) {
    for (const end = i + keys; i < end; i++) if (Math.abs(data[i]) > rowMaxima[q]) rowMaxima[q] = Math.abs(data[i]);
  }
  return {
    data, queries, keys, rowMaxima, max: rowMaxima.reduce((max, value) => Math.max(max, value), 0) || 1,
    text: (q, k) => formatWeight(data[q * keys + k], rowMaxima[q]),
    row: (q) => data.subarray(q * keys, (q + 1) * keys),
    column: (k) => Float32Array.from({ length: queries }, (_, q) => data[q * keys + k]),
  };
}

function multiply(a, b, n) {
  const product = new Float32Array(n * n);
  for (let i = 0; i < n; i++) {
    for (let j = 0; j < n; j++) {
      const weight = a[i * n + j];
      if (weight === 0) continue;
      for (let k = 0, from = j * n, to = i * n; k < n; k++) product[to + k] += weight * b[from + k];
    }
  }
  return product;
}

// In bits: 0 for a single key, log2 K for uniform weights.
export function entropy(row) {
  let [sum, bits] = [0, 0];
  for (const weight of row) sum += weight;
  if (sum <= 0) return 0;
  for (const weight of row) if (weight > 0) bits -= (weight / sum) * Math.log2(weight / sum);
  return bits;
}

// Over rows that are not fully masked.
export function meanEntropy(matrix) {
  if (matrix.entropy !== undefined) return matrix.entropy;
  const rows = Array.from(matrix.rowMaxima, (_, q) => matrix.row(q)).filter((_, q) => matrix.rowMaxima[q] > 0);
  return (matrix.entropy = rows.reduce((sum, row) => sum + entropy(row), 0) / (rows.length || 1));
}

// The positions with the strongest weights, strongest first.
export const strongest = (row, count, positions) => [...positions].sort((a, b) => Math.abs(row[b]) - Math.abs(row[a])).slice(0, count);

// Call add(query, key, weight) for the weights to draw: those of the selected token, or the strongest of each query.
export function forEachLink(matrix, selected, add) {
  if (!selected) for (const link of strongestLinks(matrix)) add(...link);
  else if (selected.role === "query") matrix.row(selected.index).forEach((weight, key) => add(selected.index, key, weight));
  else matrix.column(selected.index).forEach((weight, query) => add(query, selected.index, weight));
}

// The largest lines, largest first. Sorting bare numbers is fast, so a threshold is found before lines are sorted.
export function largestLines(lines, scrolling) {
  const count = scrolling ? MAX_LINES_SCROLLING : MAX_LINES;
  const threshold = Float32Array.from(lines, ({ size }) => size).sort()[Math.max(0, lines.length - count)];
  return lines.filter(({ size }) => size >= threshold).sort((a, b) => b.size - a.size).slice(0, count);
}

// The strongest links of each query, computed once per matrix.
function strongestLinks(matrix) {
  matrix.links ??= Array.from({ length: matrix.queries }, (_, query) => {
    const row = matrix.row(query);
    if (matrix.keys <= LINKS_PER_QUERY) return Array.from(row, (weight, key) => [query, key, weight]).filter(([, , weight]) => weight);
    const links = [];
    for (let key = 0; key < row.length; key++) {
      const size = Math.abs(row[key]);
      if (size === 0 || (links.length === LINKS_PER_QUERY && size <= Math.abs(links[LINKS_PER_QUERY - 1][2]))) continue;
      let at = links.length === LINKS_PER_QUERY ? LINKS_PER_QUERY - 1 : links.length;
      while (at > 0 && Math.abs(links[at - 1][2]) < size) (links[at] = links[at - 1]), at--;
      links[at] = [query, key, row[key]];
    }
    return links;
  }).flat();
  return matrix.links;
}

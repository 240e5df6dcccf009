// Attention matrices from the payload: single heads, combined heads and rollout, at any temperature.

import { clamp, formatWeight } from "./format.js";

const CACHED_MATRICES = 40;
const MAX_LINKS_PER_QUERY = 12;
const AUTO_LINES = 160; // lines of one head while nothing is selected
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

  // The matrix between words if the tokens of a word are joined: the sum over the keys and the mean over the queries of a word.
  function joined(matrix, index) {
    const [queries, keys] = ["query", "key"].map((role) => app.wordStarts(role, index));
    return matrix && (queries || keys) ? joinWords(matrix, queries, keys) : matrix;
  }

  // One head, downsampled to the strongest weight of each block. The payload contains it, unless tokens are hidden or the
  // temperature was changed.
  function thumbnail(index, head, rows, columns) {
    const layer = layerMeta(index);
    const [, height, width] = layer.thumbnail ?? [];
    const inPayload = height && rows.length === layer.shape[1] && columns.length === layer.shape[2] && !levelScale(index).normalize && !app.state.join;
    const raw = inPayload && app.payload.get(app.state.example, index, "thumbnail");
    if (raw) return createMatrix(decode(raw, head * height, height, width, levelScale(index)), height, width);
    const matrix = inPayload ? null : joined(combineHeads(index, "mean", [head]), index);
    return matrix && downsample(matrix, rows, columns, app.meta.thumbnailSize);
  }

  // Attention rollout (Abnar and Zuidema, 2020): each layer is averaged with the identity for the residual connection.
  function rollout(index) {
    return cached(cacheKey("rollout", index), () => {
      const previousIndex = rolloutLayers(app.example().layers, index).filter((other) => other < index).pop();
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

  // The mean over heads and layers, up to each layer of the list.
  function meanOfLayers(indices, count = indices.length) {
    return cached(cacheKey("layers", indices[0], count), () => {
      const previous = count > 1 ? meanOfLayers(indices, count - 1) : null;
      if (count > 1 && !previous) return null;
      const mean = combineHeads(indices[count - 1], "mean", layerMeta(indices[count - 1]).heads.keys());
      if (!mean || !previous) return mean;
      return createMatrix(mean.data.map((weight, i) => previous.data[i] + (weight - previous.data[i]) / count), mean.queries, mean.keys);
    });
  }

  // One row at its own temperature.
  function rowAt(index, query, temperature) {
    const [queries, keys] = ["query", "key"].map((role) => app.wordStarts(role, index));
    const [first, end] = queries ? [queries[query], queries[query + 1] ?? layerMeta(index).shape[1]] : [query, query + 1];
    const matrix = combineHeads(index, app.combineMode(index), app.selectedHeads(index), { first, count: end - first, temperature });
    return matrix && (queries || keys ? joinWords(matrix, queries && [0], keys) : matrix).data;
  }

  const cacheKey = (...parts) => [app.state.example, app.state.temperature, app.state.join, ...parts].join(" ");

  return {
    newFrame: () => (multiplied = false),
    head: (index, head) => cached(cacheKey(index, head), () => joined(combineHeads(index, "mean", [head]), index)),
    thumbnail, rowAt,
    // The matrix of the current state: the selected heads, combined.
    current() {
      const [{ layer }, mode, heads] = [app.state, app.combineMode(), app.selectedHeads()];
      const compute = {
        rollout: () => rollout(layer),
        layers: () => meanOfLayers(layersAlike(app.example().layers, layer)),
      }[mode] ?? (() => combineHeads(layer, mode, heads));
      return cached(cacheKey("joined", layer, mode, heads.join(".")), () => joined(compute(), layer));
    },
  };
}

// Layers of the same kind, call and size, which have a mean.
export function layersAlike(layers, index) {
  const { kind, call, shape } = layers[index];
  return [...layers.keys()].filter((i) => layers[i].kind === kind && layers[i].call === call && layers[i].shape[1] === shape[1] && layers[i].shape[2] === shape[2]);
}

// The layers of a rollout: self-attention of the same kind, call and size. Empty if rollout is not defined.
export function rolloutLayers(layers, index) {
  const { kind, call, shape, normalized } = layers[index];
  const sameKind = layers.map((_, i) => i).filter((i) => layers[i].kind === kind && layers[i].call === call);
  const fits = (i) => layers[i].normalized && layers[i].shape[1] === shape[1] && layers[i].shape[2] === shape[1];
  return kind !== "cross" && normalized && sameKind.length > 1 && sameKind.every(fits) ? sameKind : [];
}

function joinWords({ data, queries, keys }, queryStarts, keyStarts) {
  const wordOf = (starts, size) => {
    const words = Int32Array.from({ length: size }, (_, i) => i);
    starts?.forEach((start, word) => words.fill(word, start, starts[word + 1] ?? size));
    return words;
  };
  const [rows, columns] = [wordOf(queryStarts, queries), wordOf(keyStarts, keys)];
  const [height, width] = [queryStarts?.length ?? queries, keyStarts?.length ?? keys];
  const joined = new Float32Array(height * width);
  const counts = new Float32Array(height);
  rows.forEach((row, q) => {
    counts[row]++;
    for (let k = 0; k < keys; k++) joined[row * width + columns[k]] += data[q * keys + k];
  });
  return createMatrix(joined.map((weight, i) => weight / counts[Math.floor(i / width)]), height, width);
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

// The weights of one head of an unpacked layer.
export const headMatrix = (raw, head, [, queries, keys], levels) =>
  createMatrix(decode(raw, head * queries, queries, keys, { levels, normalize: false }), queries, keys);

export function createMatrix(data, queries, keys) {
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

// Which weights are drawn as lines: the strongest keys of each query, or all weights from `min` on. By default, fewer lines are
// drawn the more queries there are, and all lines of a selected token.
export function lineRule(app, heads, isSelected) {
  const [{ lines, hide, sentences, join }, queries, keys] = [app.state, app.queries(), app.keys()];
  const auto = clamp(Math.round(AUTO_LINES / queries.length / Math.sqrt(heads)), 1, MAX_LINKS_PER_QUERY);
  const isThreshold = lines.includes(".");
  const top = isThreshold || (lines === "auto" && isSelected) ? Infinity : lines === "auto" ? auto : Number(lines);
  const min = isThreshold ? Number(lines) : 0;
  return { id: [top, min, hide, sentences, join].join(" "), queries, keys, top, min };
}

// Call add(query, key, weight) for the weights to draw between these positions: those of the selected token, or of each query.
export function forEachLink(matrix, selected, { id, queries, keys, top, min }, add) {
  const isDrawn = (weight) => weight !== 0 && Math.abs(weight) >= min;
  if (selected?.role === "key") {
    const column = matrix.column(selected.index);
    const best = top < queries.length ? strongest(column, top, queries) : queries;
    return void best.forEach((query) => isDrawn(column[query]) && add(query, selected.index, column[query]));
  }
  const linksOf = (query) => {
    const row = matrix.row(query);
    const best = top < keys.length ? topKeys(row, top, keys) : keys;
    return best.filter((key) => isDrawn(row[key])).map((key) => [query, key, row[key]]);
  };
  if (selected) return linksOf(selected.index).forEach((link) => add(...link));
  if (matrix.links?.id !== id) matrix.links = { id, all: queries.flatMap(linksOf) }; // computed once
  for (const link of matrix.links.all) add(...link);
}

// The largest lines, largest first. Sorting bare numbers is fast, so a threshold is found before lines are sorted.
export function largestLines(lines, scrolling) {
  const count = scrolling ? MAX_LINES_SCROLLING : MAX_LINES;
  const threshold = Float32Array.from(lines, ({ size }) => size).sort()[Math.max(0, lines.length - count)];
  return lines.filter(({ size }) => size >= threshold).sort((a, b) => b.size - a.size).slice(0, count);
}

// The `count` keys with the strongest weights. Insertion is faster than sorting all keys.
function topKeys(row, count, keys) {
  const best = [];
  for (const key of keys) {
    const size = Math.abs(row[key]);
    if (size === 0 || (best.length === count && size <= Math.abs(row[best[count - 1]]))) continue;
    let at = best.length === count ? count - 1 : best.length;
    while (at > 0 && Math.abs(row[best[at - 1]]) < size) (best[at] = best[at - 1]), at--;
    best[at] = key;
  }
  return best;
}

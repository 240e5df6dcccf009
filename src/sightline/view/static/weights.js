// From codes to matrices: one head, heads combined, layers rolled out, all of it at any temperature.

const KEPT = 40; // matrices in memory

// What each code stands for, as a part of its row's top: a square-root scale that reaches further down at its low end.
const FAINT = [0, 1e-10, 2e-8, 1.4e-6, 3.4e-5];
const LEVELS = Array.from({ length: 256 }, (_, code) => FAINT[code] ?? (code / 255) ** 2);

export function openMatrices(app) {
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

  // One head of one layer as {data, queries, keys, top}, or null while it is on its way.
  function head(index, which) {
    const { example, temperature } = app.state;
    const raw = app.weights.get(example, index);
    if (!raw) return null;
    const layer = layerOf(index);
    const [, queries, keys] = layer.shape;
    return finish(decode(raw, which * queries, queries, keys, layer.shares ? 1 / temperature : 1), queries, keys);
  }

  function combined(index, how, heads) {
    const parts = [];
    for (const which of heads) {
      const part = head(index, which);
      if (!part) return null;
      parts.push(part);
    }
    if (parts.length === 1) return parts[0];
    const { queries, keys } = parts[0];
    const data = new Float32Array(queries * keys);
    for (const part of parts) {
      for (let i = 0; i < data.length; i++) {
        if (how === "max") data[i] = part === parts[0] ? part.data[i] : Math.max(data[i], part.data[i]);
        else data[i] += part.data[i] / parts.length;
      }
    }
    return finish(data, queries, keys);
  }

  // Abnar and Zuidema's rollout: half of each layer is the residual path, so it is the identity.
  function rollout(index) {
    return kept(key("rollout", index), () => {
      const before = rolled(app, index).filter((other) => other < index).pop();
      const below = before === undefined ? null : rollout(before);
      const layer = layerOf(index);
      const own = combined(index, "mean", layer.heads.keys());
      if (!own || (before !== undefined && !below) || worked) {
        if (own) app.refresh();
        return null;
      }
      const n = own.queries;
      const half = own.data.map((weight, i) => weight / 2 + (i % (n + 1) === 0 ? 0.5 : 0));
      worked = below !== null && n > 200;
      return finish(below ? product(half, below.data, n) : half, n, n);
    });
  }

  // One row alone, heads combined, at a temperature of its own.
  function rowAt(index, query, temperature) {
    const raw = app.weights.get(app.state.example, index);
    if (!raw) return null;
    const [, queries, keys] = layerOf(index).shape;
    const heads = app.headsOn(index);
    const row = new Float32Array(keys);
    for (const which of heads) {
      const part = decode(raw, which * queries + query, 1, keys, 1 / temperature);
      for (let k = 0; k < keys; k++) {
        row[k] = app.combining(index) === "max" ? Math.max(row[k], part[k]) : row[k] + part[k] / heads.length;
      }
    }
    return row;
  }

  const key = (...parts) => [app.state.example, app.state.temperature, ...parts].join(" ");

  return {
    newFrame: () => (worked = false),
    head: (index, which) => kept(key(index, which), () => head(index, which)),
    fresh: head,
    rowAt,
    // What the state asks for: the one head that is on, or all that are on, combined.
    current(index = app.state.layer, only = null) {
      const how = app.combining(index);
      if (how === "rollout") return rollout(index);
      const heads = only ?? app.headsOn(index);
      return kept(key(index, how, heads.join(".")), () => combined(index, how, heads));
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

function decode({ tops, codes, below }, first, queries, keys, power) {
  const data = new Float32Array(queries * keys);
  const levels = Float32Array.from(LEVELS, (level) => level ** power);
  for (let q = 0; q < queries; q++) {
    const [from, to] = [(first + q) * keys, q * keys];
    let sum = 0;
    if (power !== 1) for (let k = 0; k < keys; k++) sum += levels[codes[from + k]];
    // softmax(s / T) is softmax(s) to the power 1 / T, scaled to sum to 1 again: no scores are needed
    const scale = power === 1 ? tops[first + q] : sum > 0 ? 1 / sum : 0;
    for (let k = 0; k < keys; k++) data[to + k] = levels[codes[from + k]] * scale;
    if (below) for (let k = 0; k < keys; k++) data[to + k] -= levels[below[from + k]] * scale;
  }
  return data;
}

function finish(data, queries, keys) {
  let top = 0;
  for (let i = 0; i < data.length; i++) {
    if (data[i] > top) top = data[i];
    else if (-data[i] > top) top = -data[i];
  }
  return {
    data, queries, keys, top: top || 1,
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
  let sum = 0;
  let bits = 0;
  for (const weight of row) sum += weight;
  if (sum <= 0) return 0;
  for (const weight of row) if (weight > 0) bits -= (weight / sum) * Math.log2(weight / sum);
  return bits;
}

// Over the rows that look at anything.
export function meanEntropy(matrix) {
  if (matrix.bits !== undefined) return matrix.bits;
  let [total, looking] = [0, 0];
  for (let q = 0; q < matrix.queries; q++) {
    const row = matrix.row(q);
    if (!row.some((weight) => weight > 0)) continue;
    total += entropy(row);
    looking++;
  }
  return (matrix.bits = looking ? total / looking : 0);
}

// The strongest places of a row, strongest first.
export function strongest(row, count, places = row.keys()) {
  return [...places].sort((a, b) => Math.abs(row[b]) - Math.abs(row[a])).slice(0, count);
}

// The weights in the page. Each layer is decompressed on first use; the least recently used are dropped.

const CACHE_BYTES = 96e6; // of decompressed layers

export const readMeta = () => JSON.parse(document.getElementById("sightline-meta").textContent);

export function createPayload(meta, onLoad) {
  const loaded = new Map(); // in order of last use
  const loading = new Set();
  let cachedBytes = 0;

  async function load(id, shape) {
    const layer = await unpack(await elementText(id), shape);
    loaded.set(id, layer);
    loading.delete(id);
    cachedBytes += layer.size;
    for (const [oldId, { size }] of loaded) {
      if (cachedBytes <= CACHE_BYTES || oldId === id) break;
      loaded.delete(oldId);
      cachedBytes -= size;
    }
    onLoad();
  }

  // A layer or its thumbnail, or null while it is loading.
  function get(example, index, kind = "weights") {
    const id = `${kind}-${example}-${index}`;
    const layer = loaded.get(id);
    if (layer) {
      loaded.delete(id);
      loaded.set(id, layer);
    } else if (!loading.has(id)) {
      const { shape, thumbnail } = meta.examples[example].layers[index];
      loading.add(id);
      load(id, kind === "thumbnail" ? thumbnail : shape);
    }
    return layer ?? null;
  }

  return { get };
}

// The codes of a layer from base64 of a compressed stream, as `payload.py` packs them.
export async function unpack(data, [heads, queries, keys]) {
  const { readable, writable } = new DecompressionStream("deflate");
  const writer = writable.getWriter();
  writer.write(decodeBase64(data));
  writer.close();
  const raw = await new Response(readable).arrayBuffer();
  const [rows, cells] = [heads * queries, heads * queries * keys];
  return {
    rowMaxima: new Float32Array(raw, 0, rows),
    codes: new Uint8Array(raw, 4 * rows, cells),
    negativeCodes: raw.byteLength > 4 * rows + cells ? new Uint8Array(raw, 4 * rows + cells) : null,
    size: raw.byteLength,
  };
}

// The script runs while the page is still being parsed. An element is complete once another node follows it.
async function elementText(id) {
  const node = document.getElementById(id);
  if (node && (node.nextSibling || document.readyState !== "loading")) return node.textContent;
  await new Promise((resolve) => setTimeout(resolve, 10));
  return elementText(id);
}

const decodeBase64 = (text) => Uint8Array.fromBase64?.(text) ?? Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));

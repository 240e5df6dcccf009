// The weights inside the page: each layer is inflated when it is first looked at, and let go when others need the room.

const ROOM = 96e6; // bytes of inflated layers to keep

export const readMeta = () => JSON.parse(document.getElementById("sightline-meta").textContent);

export function openWeights(meta, arrived) {
  const ready = new Map(); // in order of last use
  const coming = new Set();
  let held = 0;

  async function load(id, [heads, queries, keys]) {
    const packed = bytes(await whole(id));
    const { readable, writable } = new DecompressionStream("deflate");
    const writer = writable.getWriter();
    writer.write(packed);
    writer.close();
    const raw = await new Response(readable).arrayBuffer();
    const [rows, codes] = [heads * queries, heads * queries * keys];
    const below = raw.byteLength > 4 * rows + codes ? new Uint8Array(raw, 4 * rows + codes) : null; // weights under zero
    ready.set(id, { tops: new Float32Array(raw, 0, rows), codes: new Uint8Array(raw, 4 * rows, codes), below, size: raw.byteLength });
    coming.delete(id);
    held += raw.byteLength;
    for (const [old, { size }] of ready) {
      if (held <= ROOM || old === id) break;
      ready.delete(old);
      held -= size;
    }
    arrived();
  }

  // What is there now, or null while it is on its way: a layer as it is, or made small for the grid.
  function get(example, index, size = "weights") {
    const id = `${size}-${example}-${index}`;
    const layer = ready.get(id);
    if (layer) {
      ready.delete(id);
      ready.set(id, layer);
    } else if (!coming.has(id)) {
      const { shape, small } = meta.examples[example].layers[index];
      coming.add(id);
      load(id, size === "small" ? small : shape);
    }
    return layer ?? null;
  }

  return { get };
}

// The page starts while its weights are still being read; an element is whole once something stands behind it.
async function whole(id) {
  const node = document.getElementById(id);
  if (node && (node.nextSibling || document.readyState !== "loading")) return node.textContent;
  await new Promise((later) => setTimeout(later, 10));
  return whole(id);
}

const bytes = (base64) => Uint8Array.fromBase64?.(base64) ?? Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));

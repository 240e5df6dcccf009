// The weights inside the page: each layer is inflated when it is first looked at, and let go when others need the room.

const ROOM = 96e6; // bytes of inflated layers to keep

export const readMeta = () => JSON.parse(document.getElementById("sightline-meta").textContent);

export function openWeights(meta, arrived) {
  const ready = new Map(); // in order of last use
  const coming = new Map();
  let held = 0;

  async function inflate(id, layer) {
    const packed = bytes(document.getElementById(`weights-${id}`).textContent);
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    const raw = await new Response(stream).arrayBuffer();
    const [heads, queries, keys] = layer.shape;
    const rows = heads * queries;
    return {
      tops: new Float32Array(raw, 0, rows),
      codes: new Uint8Array(raw, 4 * rows, rows * keys),
      below: layer.signed ? new Uint8Array(raw, 4 * rows + rows * keys) : null,
      size: raw.byteLength,
    };
  }

  function load(example, index) {
    const id = `${example}-${index}`;
    if (ready.has(id)) return Promise.resolve(ready.get(id));
    if (!coming.has(id)) {
      coming.set(id, inflate(id, meta.examples[example].layers[index]).then((layer) => {
        coming.delete(id);
        ready.set(id, layer);
        held += layer.size;
        for (const [old, { size }] of ready) {
          if (held <= ROOM || old === id) break;
          ready.delete(old);
          held -= size;
        }
        arrived();
        return layer;
      }));
    }
    return coming.get(id);
  }

  // What is there now, or null while it is on its way.
  function get(example, index) {
    const id = `${example}-${index}`;
    const layer = ready.get(id);
    if (!layer) {
      load(example, index);
      return null;
    }
    ready.delete(id);
    ready.set(id, layer);
    return layer;
  }

  return { load, get };
}

function bytes(base64) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64);
  return Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
}

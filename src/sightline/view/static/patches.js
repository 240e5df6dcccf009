// Patches of images as thumbnails, in place of the names of their positions.

const decodedImages = new Map();
const [SIDE, MAX_PATCHES] = [64, 4000]; // pixels of a thumbnail, thumbnails in the cache
const patches = new Map();

// The decoded image, or null while it is decoded.
export function decodedImage(app, { src }) {
  if (!decodedImages.has(src)) {
    const image = new Image();
    image.src = src;
    decodedImages.set(src, null);
    image.decode().then(() => {
      decodedImages.set(src, image);
      app.refresh();
    });
  }
  return decodedImages.get(src);
}

// A canvas with the patch at a position; null if there is none, or while its image is decoded.
export function patchImage(app, sequence, index) {
  const place = sequence.patches && patchAt(sequence.patches, index);
  if (!place) return null;
  const { image, row, column, rows, columns } = place;
  const decoded = decodedImage(app, image);
  if (!decoded) return void (app.loading = true) ?? null;
  const id = [image.src.length, image.src.slice(-64), row, column, rows, columns].join(" ");
  if (!patches.has(id)) {
    const [width, height] = [decoded.naturalWidth / columns, decoded.naturalHeight / rows];
    const scale = Math.min(1, SIDE / Math.max(width, height));
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [width, height].map((side) => Math.max(1, Math.round(side * scale)));
    canvas.getContext("2d").drawImage(decoded, column * width, row * height, width, height, 0, 0, canvas.width, canvas.height);
    if (patches.size > MAX_PATCHES) patches.clear();
    patches.set(id, canvas);
  }
  return patches.get(id);
}

// The image, row and column of a position; null if it is no patch.
function patchAt({ images, prefix, grid: [rows, columns] }, index) {
  const patch = index - prefix;
  const image = patch < 0 ? undefined : images[Math.floor(patch / (rows * columns))];
  if (!image) return null;
  const place = patch % (rows * columns);
  return { image, row: Math.floor(place / columns), column: place % columns, rows, columns };
}

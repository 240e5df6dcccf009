// Colors of heads, color maps for weights, and the two themes.

// Sixteen colors, far apart in OKLab, also with protanopia and deuteranopia.
const HEAD_COLORS = {
  light: ["#2189f7", "#7e1105", "#92bc24", "#401da2", "#c45551", "#979eec", "#1f639c", "#730762",
    "#e98b87", "#685c05", "#a98c0a", "#7350d1", "#844b61", "#3cbbb7", "#b369ba", "#43877d"],
  dark: ["#4aa3fc", "#f6e10a", "#a77114", "#8ae8fd", "#148e96", "#6f72f9", "#fdb153", "#96a002",
    "#aabafc", "#c9496c", "#30ffc2", "#31baa9", "#ab52cc", "#d78d77", "#adcd9a", "#a388cc"],
};

export const HEAD_COLOR_COUNT = HEAD_COLORS.light.length;

const parseHex = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));

function colormap(...stops) {
  const colors = stops.map(parseHex);
  const table = new Uint8ClampedArray(256 * 3);
  for (let i = 0; i < 256; i++) {
    const position = (i / 255) * (stops.length - 1);
    const low = Math.min(Math.floor(position), stops.length - 2);
    for (let c = 0; c < 3; c++) table[3 * i + c] = colors[low][c] + (position - low) * (colors[low + 1][c] - colors[low][c]);
  }
  return table;
}

// From low to high, with monotonic lightness. In signed layers, positive weights have a color map of their own.
const WEIGHT_MAPS = {
  light: colormap("#ffffff", "#d9e8fb", "#9cc5f5", "#4a94e8", "#1c62bd", "#0b3575", "#061b42"),
  dark: colormap("#161c26", "#182b4a", "#1c4580", "#2468bd", "#4e98ea", "#9cc9fb", "#f0f7ff"),
};
const POSITIVE_MAPS = {
  light: colormap("#ffffff", "#f9d9a8", "#e08a00", "#6b3f00"),
  dark: colormap("#161c26", "#5c3a08", "#c97f10", "#ffdc9c"),
};

export const isDark = (theme) =>
  theme === "dark" || (theme === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);

export const headColor = (mode, head) => HEAD_COLORS[mode][head % HEAD_COLOR_COUNT];

// The colors of the style sheet, for the canvas.
export function themeColors() {
  const style = getComputedStyle(document.documentElement);
  const names = ["panel", "ink", "muted", "line", "accent", "mark"];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

const colorIndex = (weight, max) => Math.round(255 * Math.min(1, Math.abs(weight) / max) ** 0.6);

// A matrix as an image of one pixel per cell, with all or the given rows and columns.
export function matrixImage(matrix, mode, signed, rows = [...Array(matrix.queries).keys()], columns = [...Array(matrix.keys).keys()]) {
  const image = new ImageData(columns.length, rows.length);
  const [positive, negative] = [(signed ? POSITIVE_MAPS : WEIGHT_MAPS)[mode], WEIGHT_MAPS[mode]];
  let at = 0;
  for (const q of rows) {
    for (const k of columns) {
      const weight = matrix.data[q * matrix.keys + k];
      const index = colorIndex(weight, matrix.max);
      const colors = weight < 0 ? negative : positive;
      for (let c = 0; c < 3; c++) image.data[at++] = colors[3 * index + c];
      image.data[at++] = 255;
    }
  }
  return toCanvas(image);
}

// Black or white, whichever has more contrast with a cell.
export function textColorOn(weight, max, mode, signed) {
  const colors = (signed && weight >= 0 ? POSITIVE_MAPS : WEIGHT_MAPS)[mode];
  const luminance = [0.2126, 0.7152, 0.0722].reduce((sum, factor, c) => {
    const channel = colors[3 * colorIndex(weight, max) + c] / 255;
    return sum + factor * (channel <= 0.04045 ? channel / 12.92 : ((channel + 0.055) / 1.055) ** 2.4);
  }, 0);
  return luminance > 0.179 ? "#000000" : "#ffffff"; // the luminance where both have the same contrast
}

// The weights of patches as a black veil: an image keeps its colors where weights are high, and is dimmed where they are low.
export function veil(values, width, height, max, look) {
  const image = new ImageData(width, height);
  values.forEach((value, i) => (image.data[4 * i + 3] = Math.round(255 * (1 - Math.min(1, Math.abs(value) / max) ** look.gamma))));
  return toCanvas(image);
}

function toCanvas(image) {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [image.width, image.height];
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

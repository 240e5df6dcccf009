// Colors: sixteen heads told apart by most eyes, ramps for weights, and the two themes.

// Chosen to lie far from one another in OKLab, also as seen with protanopia and deuteranopia.
const HEADS = {
  light: ["#2189f7", "#7e1105", "#92bc24", "#401da2", "#c45551", "#979eec", "#1f639c", "#730762",
    "#e98b87", "#685c05", "#a98c0a", "#7350d1", "#844b61", "#3cbbb7", "#b369ba", "#43877d"],
  dark: ["#4aa3fc", "#f6e10a", "#a77114", "#8ae8fd", "#148e96", "#6f72f9", "#fdb153", "#96a002",
    "#aabafc", "#c9496c", "#30ffc2", "#31baa9", "#ab52cc", "#d78d77", "#adcd9a", "#a388cc"],
};

export const COLORS = HEADS.light.length;

const parse = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));

function ramp(...stops) {
  const colors = stops.map(parse);
  const out = new Uint8ClampedArray(256 * 3);
  for (let i = 0; i < 256; i++) {
    const place = (i / 255) * (stops.length - 1);
    const low = Math.min(Math.floor(place), stops.length - 2);
    for (let c = 0; c < 3; c++) out[3 * i + c] = colors[low][c] + (place - low) * (colors[low + 1][c] - colors[low][c]);
  }
  return out;
}

// From nothing to much; lightness changes one way only.
const RAMPS = {
  light: ramp("#ffffff", "#d9e8fb", "#9cc5f5", "#4a94e8", "#1c62bd", "#0b3575", "#061b42"),
  dark: ramp("#161c26", "#182b4a", "#1c4580", "#2468bd", "#4e98ea", "#9cc9fb", "#f0f7ff"),
};
const ABOVE = { light: ramp("#ffffff", "#f9d9a8", "#e08a00", "#6b3f00"), dark: ramp("#161c26", "#5c3a08", "#c97f10", "#ffdc9c") };
const GLOW = ramp("#04040c", "#2a0d54", "#7a1f6d", "#d2493f", "#fb9b06", "#fcffa4");

export const isDark = (theme) =>
  theme === "dark" || (theme === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);

export const headColor = (mode, head) => HEADS[mode][head % COLORS];

// Ink and paper for the canvas, read from the style sheet so that there is one place for them.
export function inks() {
  const style = getComputedStyle(document.documentElement);
  const names = ["panel", "ink", "muted", "line", "accent", "mark"];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

const strengthOf = (weight, top) => Math.round(255 * Math.min(1, Math.abs(weight) / top) ** 0.6);

// A matrix as a small picture, a pixel per cell, over all or chosen rows and columns.
export function heat(matrix, mode, signed, rows = [...Array(matrix.queries).keys()], columns = [...Array(matrix.keys).keys()]) {
  const picture = new ImageData(columns.length, rows.length);
  const [up, down] = [(signed ? ABOVE : RAMPS)[mode], RAMPS[mode]];
  let at = 0;
  for (const q of rows) {
    for (const k of columns) {
      const weight = matrix.data[q * matrix.keys + k];
      const strength = strengthOf(weight, matrix.top);
      const from = weight < 0 ? down : up;
      for (let c = 0; c < 3; c++) picture.data[at++] = from[3 * strength + c];
      picture.data[at++] = 255;
    }
  }
  return onCanvas(picture);
}

// Black or white, whichever is read better on a cell.
export function inkOn(weight, top, mode, signed) {
  const colors = (signed && weight >= 0 ? ABOVE : RAMPS)[mode];
  const light = [0.2126, 0.7152, 0.0722].reduce((sum, share, c) => {
    const part = colors[3 * strengthOf(weight, top) + c] / 255;
    return sum + share * (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  }, 0);
  return light > 0.179 ? "#000000" : "#ffffff"; // where both have the same contrast
}

// Weights of patches as a light in the dark: what is looked at glows, the rest of the picture is dimmed.
export function glow(values, width, height, top) {
  const picture = new ImageData(width, height);
  values.forEach((value, i) => {
    const strength = Math.round(255 * Math.min(1, Math.abs(value) / top));
    picture.data.set(GLOW.subarray(3 * strength, 3 * strength + 3), 4 * i);
    picture.data[4 * i + 3] = 165 + 0.25 * strength;
  });
  return onCanvas(picture);
}

function onCanvas(picture) {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [picture.width, picture.height];
  canvas.getContext("2d").putImageData(picture, 0, 0);
  return canvas;
}

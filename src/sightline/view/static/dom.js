// Elements and numbers. Text from outside only ever becomes a text node.

export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name in node && name !== "list") node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export const button = (props, ...children) => el("button", { type: "button", ...props }, ...children);

export const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

// A weight as people read it, to four digits of the largest in its row, or it would say less than was sent. Zero is said as
// such, so that what is masked differs from what is faint.
export function number(weight, top = Math.abs(weight)) {
  if (weight === 0 || top < 1e-6) return weight ? weight.toExponential(3) : "0";
  const places = Math.max(top < 10 ? 4 : 0, 3 - Math.floor(Math.log10(top)));
  const text = weight.toFixed(places);
  return Number(text) === 0 ? `<${(10 ** -places).toFixed(places)}` : text;
}

// Tokens may be empty, a bare space, or hold line ends and characters without a shape of their own (controls, joiners,
// marks that turn the direction of text); all of them must leave a mark on one line. What joins two emoji to one is none,
// nor what joins or parts the letters of a script that writes them joined.
const JOINS = "(?<=\\p{Extended_Pictographic}[\\ufe0f\\u{1f3fb}-\\u{1f3ff}]*)\\u200d(?=\\p{Extended_Pictographic})";
const LETTER = "(?!\\p{sc=Latin})[\\p{L}\\p{M}]";
const PARTS = `(?<=${LETTER})[\\u200c\\u200d](?=${LETTER})`;
const SHAPELESS = new RegExp(`(?!${JOINS}|${PARTS})[\\p{Cc}\\p{Cf}\\p{Cs}\\p{Zl}\\p{Zp}\\ufffe\\uffff]`, "gu");
export const shown = (token) =>
  token.replace(/\r?\n/g, "⏎").replace(/\t/g, "⇥").replace(/^ $/, "␣").replace(SHAPELESS, "\ufffd") || "∅";

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

// A weight as people read it. Zero is said as such, so that what is masked differs from what is faint.
export function number(weight) {
  const size = Math.abs(weight);
  return size === 0 ? "0" : size < 0.00005 ? "<0.0001" : weight.toFixed(4);
}

// Tokens may be empty, a bare space, or hold line ends and characters without a shape of their own (controls, joiners,
// marks that turn the direction of text); all of them must leave a mark on one line. What joins two emoji to one is none.
const JOINS = "(?<=\\p{Extended_Pictographic}[\\ufe0f\\u{1f3fb}-\\u{1f3ff}]*)\\u200d(?=\\p{Extended_Pictographic})";
const SHAPELESS = new RegExp(`(?!${JOINS})[\\p{Cc}\\p{Cf}\\p{Cs}\\p{Zl}\\p{Zp}]`, "gu");
export const shown = (token) =>
  token.replace(/\r?\n/g, "⏎").replace(/\t/g, "⇥").replace(/^ $/, "␣").replace(SHAPELESS, "\ufffd") || "∅";

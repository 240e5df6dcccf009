// Numbers and tokens as text.

export const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

// A weight to four digits of its row's maximum, the precision of the payload. Zero is printed as 0, so that masked weights
// differ from small ones.
export function formatWeight(weight, rowMax = Math.abs(weight)) {
  if (weight === 0 || rowMax < 1e-6) return weight ? weight.toExponential(3) : "0";
  const digits = Math.max(rowMax < 10 ? 4 : 0, 3 - Math.floor(Math.log10(rowMax)));
  const text = weight.toFixed(digits);
  return Number(text) === 0 ? `<${(10 ** -digits).toFixed(digits)}` : text;
}

// Empty tokens, line breaks, lone spaces and invisible characters (controls, joiners, direction marks) are replaced by
// visible marks. Joiners between emoji, and between letters of scripts that use them, are kept.
const EMOJI_JOINER = "(?<=\\p{Extended_Pictographic}[\\ufe0f\\u{1f3fb}-\\u{1f3ff}]*)\\u200d(?=\\p{Extended_Pictographic})";
const LETTER = "(?!\\p{sc=Latin})[\\p{L}\\p{M}]";
const LETTER_JOINER = `(?<=${LETTER})[\\u200c\\u200d](?=${LETTER})`;
const INVISIBLE = new RegExp(`(?!${EMOJI_JOINER}|${LETTER_JOINER})[\\p{Cc}\\p{Cf}\\p{Cs}\\p{Zl}\\p{Zp}\\ufffe\\uffff]`, "gu");
export const displayText = (token) =>
  token.replace(/\r?\n/g, "⏎").replace(/\t/g, "⇥").replace(/^ $/, "␣").replace(INVISIBLE, "\ufffd") || "∅";

// The alignment view: the source sentence above the target sentence, one line per attention weight.

import { clamp, displayText } from "./format.js";
import { textWidth } from "./renderer.js";
import { forEachLink, largestLines, lineRule } from "./weights.js";

const MIN_SIZE = 0.06; // of the row's maximum; smaller weights are not drawn
const SHADES = 8;

export function alignmentView(app) {
  let layout = {};

  function layoutSentence(positions, tokens, y, { size, gap }, minWidth) {
    let x = 0;
    const words = new Map();
    for (const index of positions) {
      const text = displayText(tokens[index]).slice(0, 40);
      const width = Math.max(textWidth(text, { size }), minWidth(index));
      words.set(index, { text, x, y, width, center: x + width / 2 });
      x += width + gap;
    }
    return { words, width: Math.max(0, x - gap) };
  }

  // The source word with the highest weight.
  function strongestSource(matrix, query) {
    const row = matrix.row(query);
    let best = app.keys()[0];
    for (const key of app.keys()) if (Math.abs(row[key]) > Math.abs(row[best])) best = key;
    return { text: displayText(app.keyTokens()[best]).slice(0, 40), weight: matrix.text(query, best) };
  }

  function computeLayout(room, matrix) {
    const distance = clamp(room.height - 260, 160, 380);
    const top = Math.max(80, (room.height - distance - 60) / 2);
    const glosses = new Map(matrix ? app.queries().map((query) => [query, strongestSource(matrix, query)]) : []);
    const glossWidth = (query) => Math.max(...["text", "weight"].map((line) => textWidth(glosses.get(query)?.[line] ?? "", { size: 12 })));
    const sentences = (style) => [
      layoutSentence(app.keys(), app.keyTokens(), top, style, () => 0),
      layoutSentence(app.queries(), app.queryTokens(), top + distance, style, glossWidth),
    ];
    const stretch = (room.width - 80) / Math.max(...sentences({ size: 17, gap: 22 }).map((sentence) => sentence.width));
    const size = 17 * clamp(stretch, 1, 1.6); // larger for short sentences
    const [source, target] = sentences({ size, gap: 22 * clamp(stretch, 1, 7) });
    const width = Math.max(source.width, target.width) + 80;
    const left = Math.max(0, room.width - width) / 2 + 40;
    for (const sentence of [source, target]) {
      const shift = left + (width - 80 - sentence.width) / 2;
      for (const word of sentence.words.values()) (word.x += shift), (word.center += shift);
    }
    return { key: source.words, query: target.words, glosses, matrix, top, distance, size, width, height: top + distance + 110 };
  }

  const isNear = ({ x, width }, box) => x + width > box.x - 200 && x < box.x + box.width + 200;

  function drawLines(renderer, box, focused, max) {
    const [lines, shades] = [[], Array.from({ length: SHADES }, () => [])];
    forEachLink(layout.matrix, focused, lineRule(app, 1, focused), (query, key, weight) => {
      const [source, target, size] = [layout.key.get(key), layout.query.get(query), Math.abs(weight)];
      if (!source || !target || !size || size < MIN_SIZE * layout.matrix.rowMaxima[query]) return;
      if (isNear(target, box) || isNear(source, box)) lines.push({ source, target, size });
    });
    for (const { source, target, size } of largestLines(lines, app.viewport.isScrolling())) {
      const shade = clamp(Math.ceil((SHADES * size) / max) - 1, 0, SHADES - 1);
      shades[shade].push(source.center, source.y + 18, target.center, target.y - 18);
    }
    shades.forEach((ends, shade) => {
      renderer.lines(ends, { color: app.colors.accent, alpha: 0.1 + 0.11 * shade, lineWidth: 1 + shade * 0.55, curve: "y" });
    });
  }

  function drawWords(renderer, box, role, focused, max) {
    const tokens = role === "key" ? app.keyTokens() : app.queryTokens();
    layout[role].forEach((word, index) => {
      if (!isNear(word, box)) return;
      const isFocused = focused?.role === role && focused.index === index;
      if (isFocused || app.matchesSearch(tokens[index])) renderer.rect(word.x - 7, word.y - 15, word.width + 14, 30, app.highlight(isFocused));
      const [query, key] = role === "key" ? [focused?.index, index] : [index, focused?.index];
      const isOther = focused && focused.role !== role;
      const alpha = isOther ? 0.3 + 0.7 * clamp((2 * Math.abs(layout.matrix.row(query)[key])) / max, 0, 1) : 1;
      const style = { size: layout.size, align: "center", color: app.colors.ink, alpha, weight: isFocused ? 600 : 400 };
      renderer.text(word.text, word.center, word.y, style);
    });
  }

  return {
    label: "Alignment: the source sentence above, the target sentence below, one line per attention weight.",
    keys: "Left and right select a word, up and down switch between source and target, Escape clears the selection.",
    touch: "Tap a word for its weights, again for all.",
    hint: () => `${app.isTouch() ? "Tap" : "Hover over"} a word to show only its attention weights. Below each target word is the source word with the highest weight.`,
    size(room) {
      const matrix = app.matrices.current();
      const id = [app.matrixKey(), room.width, room.height].join(" ");
      if (layout.id !== id || layout.matrix !== matrix) layout = { id, ...computeLayout(room, matrix) };
      return layout;
    },
    draw(renderer, box) {
      if (!layout.matrix) return void app.drawLoading(renderer, box);
      const [focused, max] = [app.focusedToken(), app.layer().normalized ? 1 : layout.matrix.max];
      drawLines(renderer, box, focused, max);
      drawWords(renderer, box, "key", focused, max);
      drawWords(renderer, box, "query", focused, max);
      for (const [query, { text, weight }] of layout.glosses) {
        const word = layout.query.get(query);
        if (!isNear(word, box)) continue;
        renderer.text(text, word.center, word.y + 30, { size: 12, align: "center", color: app.colors.accent });
        renderer.text(weight, word.center, word.y + 48, { ...app.textStyles.note, size: 11, align: "center" });
      }
      const drawTitle = (text, y) => renderer.text(text, box.x + box.width / 2, y, { ...app.textStyles.note, align: "center" });
      drawTitle("Source", layout.top - 44);
      drawTitle("Target, with the strongest source word and its weight", layout.top + layout.distance + 84);
    },
    hit(x, y) {
      const contains = (word) => x >= word.x - 8 && x <= word.x + word.width + 8 && Math.abs(y - word.y) < 18;
      for (const role of ["key", "query"]) {
        for (const [index, word] of layout[role]) if (contains(word)) return { role, index };
      }
      return null;
    },
    hover: app.hoverToken,
    tooltip: app.tokenTooltip,
    click: app.toggle,
    move: (dx, dy) => app.moveSelection(dx, dy && (dy < 0 ? "key" : "query")),
    reveal({ role, index }) {
      const word = layout[role].get(index);
      if (word) app.viewport.reveal(word.x, word.y - 30, word.width, 100);
    },
  };
}

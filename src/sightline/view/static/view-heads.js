// The heads view: query tokens on the left, key tokens on the right, one line per attention weight, one color per head.

import { clamp, displayText } from "./format.js";
import { fitText, textWidth } from "./renderer.js";
import { patchImage } from "./patches.js";
import { forEachLink, largestLines, lineRule } from "./weights.js";

const TOP = 44; // height of the headings
const MIN_SIZE_OF_LABELS = 11; // font size down to which long tokens shrink before they are cut
const LABEL_MARGIN = 18; // beside the tokens of a column
const SHADES = 10;
const MIN_SIZE = 0.012; // of the largest weight; smaller weights are not drawn

export function headsView(app) {
  let layout = null;

  // The token with the most letters.
  function longestToken(columns) {
    const texts = columns.flatMap(([positions, tokens]) => positions.map((index) => displayText(tokens[index])));
    return texts.reduce((longest, text) => (text.length > longest.length ? text : longest), "");
  }

  function computeLayout(room) {
    const width = Math.min(room.width, Math.max(860, room.width * 0.86), 1500);
    const left = (room.width - width) / 2;
    const [queries, keys] = [app.queries(), app.keys()];
    const fits = (room.height - TOP - 16) / Math.max(queries.length, keys.length);
    const rowHeight = Math.round(clamp(clamp(fits, 24, 92) * app.state.zoom, 10, 160));
    const fullSize = clamp(rowHeight * 0.56, 8, clamp(rowHeight * 0.32, 17, 26));
    const longest = longestToken([[queries, app.queryTokens()], [keys, app.keyTokens()]]);
    const needed = textWidth(longest, { size: fullSize });
    const columnWidth = clamp(clamp(needed + LABEL_MARGIN, width * 0.27, width * 0.36), 70, 300);
    const size = clamp((fullSize * (columnWidth - LABEL_MARGIN)) / needed, Math.min(fullSize, MIN_SIZE_OF_LABELS), fullSize);
    const yOf = (positions) => new Map(positions.map((index, i) => [index, TOP + (i + 0.5) * rowHeight]));
    return { width, columnWidth, rowHeight, size, left, queries, keys, queryY: yOf(queries), keyY: yOf(keys),
      queryEdge: left + columnWidth, keyEdge: left + width - columnWidth, roomWidth: room.width };
  }

  const drawnMatrices = () => app.state.combine === "each"
    ? app.selectedHeads().map((head) => ({ matrix: app.matrices.head(app.state.layer, head), color: app.headColor(head) }))
    : [{ matrix: app.matrices.current(), color: app.colors.accent }];

  function drawLines(renderer, box, drawn) {
    const [focused, scrolling] = [app.focusedToken(), app.viewport.isScrolling()]; // while scrolling, only visible queries
    const lines = [];
    const rule = lineRule(app, drawn.length, focused);
    drawn.forEach(({ matrix }, i) => {
      forEachLink(matrix, focused, rule, (query, key, weight) => {
        const [y1, y2] = [layout.queryY.get(query), layout.keyY.get(key)];
        const [low, high] = scrolling ? [y1, y1] : [Math.min(y1, y2), Math.max(y1, y2)];
        if (high >= box.y && low <= box.y + box.height) lines.push({ i, y1, y2, size: Math.abs(weight) });
      });
    });
    const kept = largestLines(lines, scrolling);
    const max = kept[0]?.size;
    const shades = Array.from({ length: SHADES }, () => drawn.map(() => []));
    for (const { i, y1, y2, size } of kept) {
      if (size < MIN_SIZE * max) break;
      shades[Math.ceil((size / max) ** 0.7 * SHADES) - 1][i].push(layout.queryEdge, y1, layout.keyEdge, y2);
    }
    shades.forEach((endsByMatrix, shade) => endsByMatrix.forEach((ends, i) => {
      const strength = (shade + 1) / SHADES;
      const style = { color: drawn[i].color, alpha: 0.08 + 0.8 * strength ** 1.3, lineWidth: 0.8 + 2 * strength, curve: "x" };
      if (ends.length) renderer.lines(ends, style);
    }));
  }

  function drawTokens(renderer, box, drawn, role) {
    const isQuery = role === "query";
    const [positions, ys, tokens] = isQuery ? [layout.queries, layout.queryY, app.queryTokens()] : [layout.keys, layout.keyY, app.keyTokens()];
    const { rowHeight, columnWidth, size, queryEdge, keyEdge } = layout;
    const focused = app.focusedToken();
    const isOther = focused && focused.role !== role; // then weights are shown as bars in head colors
    const [first, last] = [Math.floor((box.y - TOP) / rowHeight) - 1, Math.ceil((box.y + box.height - TOP) / rowHeight) + 1];
    const [left, width] = [isQuery ? queryEdge - columnWidth : keyEdge + 6, columnWidth - 6];
    for (const index of positions.slice(Math.max(0, first), Math.max(0, last))) {
      const y = ys.get(index);
      const isFocused = focused?.role === role && focused.index === index;
      if (isFocused || app.matchesSearch(tokens[index])) renderer.rect(left, y - rowHeight / 2 + 1, width, rowHeight - 2, app.highlight(isFocused));
      if (isOther) {
        const [q, k] = isQuery ? [index, focused.index] : [focused.index, index];
        const barWidth = Math.min(9, (width * 0.5) / drawn.length);
        drawn.forEach(({ matrix, color }, i) => {
          const x = isQuery ? left + i * barWidth : left + width - (drawn.length - i) * barWidth;
          const alpha = clamp((Math.abs(matrix.row(q)[k]) / matrix.max) ** 0.7, 0.03, 1);
          renderer.rect(x, y - rowHeight / 2 + 2, barWidth - 1, rowHeight - 4, { fill: color, alpha, radius: 1 });
        });
      }
      const bars = isOther ? Math.min(9 * drawn.length, width * 0.5) + 4 : 0;
      const alpha = focused && !isFocused && !isOther ? 0.45 : 1;
      const patch = patchImage(app, app.sequence(role), index);
      const side = patch ? Math.min(rowHeight - 3, 48) : 0;
      if (patch) renderer.image(patch, isQuery ? queryEdge - 10 - side : keyEdge + 10, y - side / 2, side, side, { smooth: true });
      const [x, align] = isQuery ? [queryEdge - 12 - side, "right"] : [keyEdge + 12 + side, "left"];
      const style = { color: app.colors.ink, size, weight: isFocused ? 600 : 400, alpha, align };
      renderer.text(fitText(displayText(tokens[index]), width - 12 - bars - side, { size }), x, y, style);
    }
  }

  return {
    label: "Heads: query tokens on the left, key tokens on the right, one line per attention weight.",
    keys: "Up and down select a token, left and right switch between queries and keys, Escape clears the selection, + and − zoom.",
    touch: "Tap a token for its weights, again for all.",
    hint: () => (app.isTouch() ? "Tap a token to show only its attention weights. Tap a head to toggle it."
      : "Hover over a token to show only its attention weights; click to select it. "
        + "Click a head to toggle it; double-click or Shift+Enter shows only this head."),
    size(room) {
      layout = computeLayout(room);
      return { width: 0, height: TOP + Math.max(layout.queries.length, layout.keys.length) * layout.rowHeight + 16 };
    },
    draw(renderer, box) {
      const drawn = drawnMatrices();
      if (drawn.some(({ matrix }) => !matrix)) return void app.drawLoading(renderer, box);
      drawLines(renderer, box, drawn);
      drawTokens(renderer, box, drawn, "query");
      drawTokens(renderer, box, drawn, "key");
      renderer.rect(0, box.y, layout.roomWidth, TOP - 12, { fill: app.colors.panel, alpha: 0.96 });
      const [query, key] = app.axisTitles();
      renderer.text(query, layout.queryEdge - 12, box.y + 18, { ...app.textStyles.note, align: "right" });
      renderer.text(key, layout.keyEdge + 12, box.y + 18, app.textStyles.note);
    },
    hit(x, y, box) {
      if (y < box.y + TOP - 12 || x < layout.left || x > layout.left + layout.width) return null;
      const row = Math.floor((y - TOP) / layout.rowHeight);
      const role = x <= layout.queryEdge ? "query" : x >= layout.keyEdge ? "key" : null;
      const index = role === "query" ? layout.queries[row] : role === "key" ? layout.keys[row] : undefined;
      return index === undefined ? null : { role, index };
    },
    scale: () => ({ x: 0, y: TOP, unit: layout.rowHeight }),
    hover: app.hoverToken,
    tooltip: app.tokenTooltip,
    click: app.toggle,
    move: (dx, dy) => app.moveSelection(dy, dx && (dx < 0 ? "query" : "key")),
    reveal: ({ role, index }) => app.viewport.reveal(0, (layout[`${role}Y`].get(index) ?? 0) - 12, 1, 24, 60),
  };
}

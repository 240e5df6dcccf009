// The image view: attention weights over the patches of an image, per token of a caption, or over support images.

import { veil } from "./colors.js";
import { clamp, displayText, formatWeight } from "./format.js";
import { outline } from "./outline.js";
import { decodedImage } from "./patches.js";
import { fitText } from "./renderer.js";

const ALL_PATCHES = "all patches (mean)";
const [OUTLINE, OUTLINE_WIDTH] = ["#ff9d1e", 2]; // of the strongest patches, as in the explanations of predictions
const sum = (values) => values.reduce((total, value) => total + value, 0);

// The largest side at which this many captioned tiles fit into a rectangle.
function tileSide(count, width, height) {
  const sides = Array.from({ length: count }, (_, i) => Math.min(width / (i + 1) - 18, height / Math.ceil(count / (i + 1)) - 62));
  return clamp(Math.max(...sides), 90, 360);
}

export function imageView(app) {
  let [layout, hovered] = [null, null];

  const [queryPatches, keyPatches] = ["query", "key"].map((role) => () => app.sequence(role).patches);
  const isSelfAttention = () => app.isSelfAttention(app.layer());
  const endOfPatches = ({ images, grid, prefix }) => prefix + images.length * grid[0] * grid[1];
  // The words of a text after the image, which can attend to it.
  const wordsAfterImage = () => (isSelfAttention() ? app.queries().filter((index) => index >= endOfPatches(queryPatches())) : []);

  // The hovered or selected query; by default the first word, the class token or the mean over all patches (null).
  function currentQuery() {
    if (hovered?.query !== undefined) return hovered.query;
    if (app.state.query !== null) return app.state.query;
    if (queryPatches() && wordsAfterImage().length) return wordsAfterImage().at(-1);
    if (queryPatches()) return app.queries()[0] === 0 && (queryPatches().prefix || app.queryTokens().length === 1) ? 0 : null;
    return app.queries().find((index) => !app.sequence("query").special.includes(index)) ?? 0;
  }

  const meanRow = ({ keys, queries, column }) => Float32Array.from({ length: keys }, (_, key) => sum(column(key)) / queries);
  const rowOf = (matrix, query) => (query === null ? (matrix.mean ??= meanRow(matrix)) : matrix.row(query));

  function computeLayout(room) {
    const [{ images, grid, prefix }, query] = [keyPatches(), queryPatches()];
    const tiles = [];
    const addTile = (image, x, y, side, properties) => {
      const aspect = image.height / image.width;
      tiles.push({ image, x, y, width: aspect > 1 ? side / aspect : side, height: aspect > 1 ? side : side * aspect, ...properties });
    };
    const top = room.width < 640 ? 56 : 34; // two or one lines of headings
    const thumbnails = thumbnailContents();
    const below = thumbnails.length ? 164 : 40;
    const maxSide = clamp(Math.min(room.width - 40, Math.max(280, room.height - top - below)), 160, 720) * app.state.zoom;
    let [x, y, bottom] = [20, top, top];
    if (query && !isSelfAttention()) {
      const side = images.length > 1 ? Math.min(maxSide, 280) : Math.min(maxSide, room.width / 2 - 40);
      addTile(query.images[0], x, y, side, { role: "query", grid: query.grid, first: query.prefix });
      x += side + 36;
      bottom = y + side + 26;
    }
    if (images.length === 1) {
      if (!query || isSelfAttention()) x = Math.max(20, (room.width - maxSide) / 2);
      addTile(images[0], x, y, maxSide, { role: "key", first: prefix, grid });
      bottom = Math.max(bottom, y + tiles.at(-1).height + 14);
    } else {
      const side = tileSide(images.length, room.width - x - 20, room.height - y - 10) * app.state.zoom;
      const start = x;
      images.forEach((image, i) => {
        if (i && x + side > room.width - 10 + Math.max(0, side - room.width + start + 30)) [x, y] = [start, y + side + 62];
        addTile(image, x, y, side, { role: "key", first: prefix + i * grid[0] * grid[1], grid, isSupport: true });
        x += side + 18;
      });
      bottom = Math.max(bottom, y + side + 62);
    }
    const side = clamp(84 * app.state.zoom, 60, 140);
    const perLine = Math.max(1, Math.floor((room.width - 24) / (side + 14)));
    const left = Math.max(12, (room.width - Math.min(perLine, thumbnails.length) * (side + 14) + 14) / 2);
    const position = (i) => ({ x: left + (i % perLine) * (side + 14), y: bottom + 34 + Math.floor(i / perLine) * (side + 34) });
    const strip = thumbnails.map((thumbnail, i) => ({ ...thumbnail, side, ...position(i) }));
    const right = Math.max(...tiles.map((tile) => tile.x + tile.width)) + 20;
    const height = strip.length ? strip.at(-1).y + side + 40 : bottom + 16;
    return { tiles, strip, top, bottom, roomWidth: room.width, width: Math.max(room.width, right), height };
  }

  // Thumbnails below the image: one per word, or one per head if only patches are queries.
  function thumbnailContents() {
    if (keyPatches().images.length > 1 || (queryPatches() && !isSelfAttention())) return [];
    const words = queryPatches() ? wordsAfterImage() : app.queries();
    if (words.length) return words.map((query) => ({ query, name: app.queryTokens()[query] }));
    return app.selectedHeads().length > 1 && !app.usesAllHeads()
      ? app.selectedHeads().map((head) => ({ head, name: app.headName(head, [app.state.layer]), query: undefined })) : [];
  }

  const tileValues = (matrix, query, { first, grid }) => rowOf(matrix, query).subarray(first, first + grid[0] * grid[1]);
  const maxOf = (values) => values.reduce((max, weight) => Math.max(max, Math.abs(weight)), 0);
  const weightText = (matrix, query, key) => formatWeight(rowOf(matrix, query)[key], maxOf(rowOf(matrix, query)));
  const patchMax = (matrix, query) => maxOf(rowOf(matrix, query).subarray(keyPatches().prefix, endOfPatches(keyPatches()))) || 1;

  // The scale of what is compared: the maps of all words, or of all heads; with `oneScale` off, each map has its own.
  function wordScale(matrix, query) {
    const words = layout.strip.filter(({ head }) => head === undefined);
    if (!app.state.oneScale || !words.length) return patchMax(matrix, query);
    const shown = words.map((word) => word.query);
    return Math.max(...(shown.includes(query) ? shown : [...shown, query]).map((index) => patchMax(matrix, index)));
  }
  function headScale(query) {
    const matrices = layout.strip.filter(({ head }) => head !== undefined).map(({ head }) => app.matrices.head(app.state.layer, head));
    return Math.max(...matrices.filter(Boolean).map((matrix) => patchMax(matrix, query)));
  }

  function drawTile(renderer, tile, matrix, query, scale, isSmall = false) {
    const { x, y, width, height, image, grid } = tile;
    const decoded = decodedImage(app, image);
    if (decoded) renderer.image(decoded, x, y, width, height, { smooth: image.width > 64 });
    else renderer.rect(x, y, width, height, { fill: app.colors.line });
    if (!decoded) app.loading = true;
    if (grid[0] * grid[1] === 1 || !matrix) return;
    const values = tileValues(matrix, query, tile);
    const map = veil(values, grid[1], grid[0], scale, app.meta.look);
    renderer.image(map, x, y, width, height, { alpha: app.state.opacity, smooth: app.state.smooth });
    if (!isSmall && app.state.opacity) drawOutline(renderer, tile, values, scale);
  }

  // The edges between patches of high weight and all others.
  function drawOutline(renderer, { x, y, width, height, grid: [rows, columns] }, values, scale) {
    const isHigh = Array.from(values, (value) => Math.abs(value) >= app.meta.look.outline * 2 * scale);
    const [w, h] = [width / columns, height / rows];
    const ends = outline(isHigh, rows, columns).flatMap(([column, row, dx, dy]) => [x + column * w, y + row * h, x + (column + dx) * w, y + (row + dy) * h]);
    renderer.lines(ends, { color: "#000000", alpha: 0.5, lineWidth: 2 * OUTLINE_WIDTH });
    renderer.lines(ends, { color: OUTLINE, lineWidth: OUTLINE_WIDTH });
  }

  function drawPatchBorder(renderer, { x, y, width, height, grid }, patch, color) {
    if (patch < 0 || patch >= grid[0] * grid[1]) return;
    const [w, h] = [width / grid[1], height / grid[0]];
    const [left, top] = [x + (patch % grid[1]) * w, y + Math.floor(patch / grid[1]) * h];
    renderer.rect(left, top, w, h, { stroke: "#000000", lineWidth: 4, alpha: 0.55 });
    renderer.rect(left, top, w, h, { stroke: color, lineWidth: 2 });
  }

  // The label of a support image, and its total weight as a bar and a number.
  function drawSupportWeight(renderer, tile, matrix, query) {
    const totalOf = (other) => sum(tileValues(matrix, query, other));
    const [{ x, y, width, height }, weight] = [tile, totalOf(tile)];
    const best = Math.max(...layout.tiles.filter((other) => other.isSupport).map(totalOf));
    const isBest = weight === best;
    const style = { ...app.textStyles.label, weight: isBest ? 600 : 400 };
    const border = { stroke: isBest ? app.colors.accent : app.colors.line, lineWidth: isBest ? 3 : 1, radius: 2 };
    renderer.rect(x - 1, y - 1, width + 2, height + 2, border);
    renderer.rect(x, y + height + 6, width, 5, { fill: app.colors.line, radius: 2.5 });
    const barWidth = Math.max(2, width * clamp(weight / Math.max(best, 1e-9), 0, 1));
    renderer.rect(x, y + height + 6, barWidth, 5, { fill: app.colors.accent, alpha: isBest ? 1 : 0.6, radius: 2.5 });
    renderer.text(formatWeight(weight, Math.abs(best)), x + width, y + height + 24, { ...style, align: "right" });
    renderer.text(fitText(displayText(tile.image.label), width - 56, style), x, y + height + 24, style);
  }

  function drawHeading(renderer, matrix, query) {
    const token = query === null ? "" : displayText(app.queryTokens()[query]);
    const isPatch = queryPatches() && /^\d+,\d+$/.test(token);
    const name = query === null ? ALL_PATCHES : isPatch ? `patch ${token}` : `“${fitText(token, Math.min(320, layout.width - 200))}”`;
    const isShared = layout.strip.some(({ head }) => head === undefined) && app.state.oneScale;
    const note = `${isShared ? "scale" : "max"} ${formatWeight(wordScale(matrix, query))} · ${app.matrixName()}${app.isNearUniform() && !app.usesAllHeads() ? " · nearly uniform" : ""}`;
    renderer.text(`${app.layer().kind === "relevance" ? "Relevance for" : "Attention of"} ${name}`, 20, 17, app.textStyles.title);
    if (layout.top > 40) renderer.text(note, 20, 38, app.textStyles.note);
    else renderer.text(note, layout.roomWidth - 20, 17, { ...app.textStyles.note, align: "right" });
  }

  function drawThumbnails(renderer, box, matrix, query) {
    const heading = layout.strip.length ? (layout.strip[0].head !== undefined ? "Heads" : app.layer().kind === "relevance" ? "Targets" : "Words") : "";
    renderer.text(heading, layout.roomWidth / 2, layout.bottom + 18, { ...app.textStyles.note, align: "center" });
    const [ofWords, ofHeads] = [wordScale(matrix, query), headScale(query)];
    for (const thumbnail of layout.strip) {
      if (thumbnail.y + thumbnail.side + 24 < box.y || thumbnail.y > box.y + box.height) continue;
      const isWord = thumbnail.head === undefined;
      const source = isWord ? matrix : app.matrices.head(app.state.layer, thumbnail.head);
      const row = thumbnail.query ?? query;
      const { width: fullWidth, height: fullHeight, ...tile } = layout.tiles.at(-1);
      const [width, height] = [fullWidth, fullHeight].map((length) => (thumbnail.side * length) / Math.max(fullWidth, fullHeight));
      const [x, y] = [thumbnail.x + (thumbnail.side - width) / 2, thumbnail.y + thumbnail.side - height];
      const scale = !app.state.oneScale ? patchMax(source ?? matrix, row) : isWord ? ofWords : ofHeads;
      drawTile(renderer, { ...tile, x, y, width, height }, source, row, scale, true);
      const [isCurrent, matches] = [isWord && row === query, isWord && app.matchesSearch(thumbnail.name)];
      const stroke = isCurrent ? app.colors.accent : matches ? app.colors.mark : isWord ? app.colors.line : app.headColor(thumbnail.head);
      renderer.rect(x - 1, y - 1, width + 2, height + 2, { stroke, lineWidth: isCurrent || matches ? 3 : 1.5, radius: 2 });
      const style = { ...app.textStyles.label, align: "center", weight: isCurrent ? 600 : 400 };
      renderer.text(fitText(displayText(thumbnail.name), thumbnail.side, style), thumbnail.x + thumbnail.side / 2, thumbnail.y + thumbnail.side + 14, style);
    }
  }

  function patchAt({ x, y, width, height, grid: [rows, columns] }, px, py) {
    const [row, column] = [Math.floor(((py - y) / height) * rows), Math.floor(((px - x) / width) * columns)];
    return clamp(row, 0, rows - 1) * columns + clamp(column, 0, columns - 1);
  }

  return {
    label: "Image: the attention weight of each image region.",
    keys: "Arrow keys select the query, Shift and arrow keys read the weights of keys, Escape clears the selection, + and − zoom.",
    touch: "Tap a patch or a word to select it as the query.",
    hint: () => "Regions with low attention weights are dimmed; patches from half of the scale on are outlined. "
      + (queryPatches() && !wordsAfterImage().length ? `${app.isTouch() ? "Tap" : "Click"} a patch to select it as the query.`
        : app.isTouch() ? "Tap a word to show its attention." : "Hover over a word to show its attention; click to select it."),
    size(room) {
      layout = computeLayout(room);
      return { width: layout.width, height: layout.height };
    },
    draw(renderer, box) {
      const matrix = app.matrices.current();
      if (!matrix) return void app.drawLoading(renderer, box);
      const query = currentQuery();
      drawHeading(renderer, matrix, query);
      for (const tile of layout.tiles) {
        const isKey = tile.role === "key";
        drawTile(renderer, tile, isKey ? matrix : null, query, wordScale(matrix, query));
        const hasQuery = query !== null && (!isKey || (isSelfAttention() && queryPatches()));
        if (hasQuery) drawPatchBorder(renderer, tile, query - tile.first, "#ffffff");
        if (!isKey) renderer.text(displayText(tile.image.label), tile.x, tile.y + tile.height + 16, app.textStyles.note);
        if (isKey && app.state.key !== null) drawPatchBorder(renderer, tile, app.state.key - tile.first, app.colors.mark);
        if (tile.isSupport) drawSupportWeight(renderer, tile, matrix, query);
      }
      drawThumbnails(renderer, box, matrix, query);
    },
    hit(x, y) {
      const contains = (rect, width = rect.width, height = rect.height) =>
        x >= rect.x && x < rect.x + width && y >= rect.y && y < rect.y + height;
      const thumbnail = layout.strip.find((rect) => contains(rect, rect.side, rect.side + 22));
      if (thumbnail) return thumbnail.head === undefined ? { query: thumbnail.query } : { head: thumbnail.head };
      const tile = layout.tiles.find((rect) => contains(rect));
      if (!tile) return null;
      const index = tile.first + patchAt(tile, x, y);
      if (tile.role === "query") return { newQuery: index };
      return isSelfAttention() && queryPatches() ? { key: index, newQuery: index } : { key: index, passive: true };
    },
    scale: () => ({ x: layout.tiles[0].x, y: layout.tiles[0].y, unit: layout.tiles[0].width }),
    hover(target) {
      hovered = target;
      app.setHovered(target && currentQuery(), target?.key ?? null);
    },
    tooltip({ key, head, newQuery }) {
      if (head !== undefined) return [app.headName(head, [app.state.layer]), "click to show only this head"];
      const matrix = app.matrices.current();
      if (key !== undefined) return matrix ? [weightText(matrix, currentQuery(), key), app.tokenText("key", key)] : [];
      return newQuery === undefined ? [] : [`click to select ${app.tokenText("query", newQuery)}`];
    },
    click({ query, head, newQuery }) {
      if (head !== undefined) app.set({ heads: [head], combine: "each" });
      else if ((newQuery ?? query) !== undefined) app.set({ query: newQuery ?? query });
    },
    move(dx, dy, shift) {
      const next = (positions, index, patches) => {
        const step = index === null ? -positions.length : dx + dy * (patches?.grid[1] ?? 1); // starts at the first
        return positions[clamp(positions.indexOf(index) + step, 0, positions.length - 1)];
      };
      const [query, { key }] = [currentQuery(), app.state];
      if (shift) app.set({ query, key: key === null ? keyPatches().prefix : next(app.keys(), key, keyPatches()) });
      else app.set({ query: next(app.queries(), query, queryPatches()), key });
    },
    describe() {
      const [{ key }, matrix] = [app.focused(), app.matrices.current()];
      if (!matrix || key === null || currentQuery() !== null) return app.describe();
      return `${ALL_PATCHES} → ${app.tokenText("key", key)}: ${weightText(matrix, null, key)} · ${app.matrixName()}`;
    },
    reveal({ role, index }) {
      const thumbnail = role === "query" && layout.strip.find(({ query }) => query === index);
      if (thumbnail) app.viewport.reveal(thumbnail.x, thumbnail.y, thumbnail.side, thumbnail.side + 24, 8);
    },
  };
}

// Maps over pixels: the patches of one picture, a region for each word, or support pictures and their parts.

import { glow } from "./colors.js";
import { clamp, number, shown } from "./dom.js";
import { fit } from "./pen.js";

const loaded = new Map();
const total = (values) => values.reduce((sum, value) => sum + value, 0);

// The largest side at which this many tiles with captions fill a room.
function tileSide(count, width, height) {
  const sides = Array.from({ length: count }, (_, i) => Math.min(width / (i + 1) - 18, height / Math.ceil(count / (i + 1)) - 62));
  return clamp(Math.max(...sides), 90, 360);
}

export function imageView(app) {
  let [plan, hovered] = [null, null];

  const [looking, seen] = ["query", "key"].map((which) => () => app.side(which).pictures);
  const itself = () => app.layer().kind !== "cross";

  // Who looks: the one pointed at, the one picked, else the first word, the class token or the whole picture (null).
  function query() {
    if (hovered?.query !== undefined) return hovered.query;
    if (app.state.token !== null) return app.state.token;
    if (looking()) return app.rows()[0] === 0 && (looking().before || app.queryNames().length === 1) ? 0 : null;
    return app.rows().find((row) => !app.side("query").special.includes(row)) ?? 0;
  }

  const meanOf = ({ keys, queries, column }) => Float32Array.from({ length: keys }, (_, key) => total(column(key)) / queries);
  const rowOf = (matrix, asked) => (asked === null ? (matrix.mean ??= meanOf(matrix)) : matrix.row(asked));

  function picture({ src }) {
    if (!loaded.has(src)) {
      const image = new Image();
      image.src = src;
      loaded.set(src, null);
      image.decode().then(() => {
        loaded.set(src, image);
        app.refresh();
      });
    }
    return loaded.get(src);
  }

  function layout(room) {
    const { images, grid } = seen();
    const tiles = [];
    const mine = looking();
    const tile = (image, x, y, side, more) => {
      const tall = image.height / image.width;
      tiles.push({ image, x, y, width: tall > 1 ? side / tall : side, height: tall > 1 ? side : side * tall, ...more });
    };
    const top = room.width < 640 ? 56 : 34; // the heading takes one line or two
    const big = clamp(Math.min(room.width - 40, room.height - top - 164), 160, 720) * app.state.zoom;
    let [x, y, bottom] = [20, top, top];
    if (mine && !itself()) {
      const side = images.length > 1 ? Math.min(big, 280) : Math.min(big, room.width / 2 - 40);
      tile(mine.images[0], x, y, side, { role: "query", grid: mine.grid, before: mine.before });
      x += side + 36;
      bottom = y + side + 26;
    }
    if (images.length === 1) {
      if (!mine || itself()) x = Math.max(20, (room.width - big) / 2);
      tile(images[0], x, y, big, { role: "key", first: seen().before, grid });
      bottom = Math.max(bottom, y + tiles.at(-1).height + 14);
    } else {
      const side = tileSide(images.length, room.width - x - 20, room.height - y - 10) * app.state.zoom;
      const start = x;
      images.forEach((image, i) => {
        if (i && x + side > room.width - 10 + Math.max(0, side - room.width + start + 30)) [x, y] = [start, y + side + 62];
        const first = seen().before + i * grid[0] * grid[1];
        tile(image, x, y, side, { role: "key", first, grid, caption: image.label, share: true });
        x += side + 18;
      });
      bottom = Math.max(bottom, y + side + 62);
    }
    const side = clamp(84 * app.state.zoom, 60, 140);
    const [small, across] = [strips(), Math.max(1, Math.floor((room.width - 24) / (side + 14)))];
    const left = Math.max(12, (room.width - Math.min(across, small.length) * (side + 14) + 14) / 2);
    const place = (i) => ({ x: left + (i % across) * (side + 14), y: bottom + 34 + Math.floor(i / across) * (side + 34) });
    const strip = small.map((one, i) => ({ ...one, side, ...place(i) }));
    const right = Math.max(...tiles.map((one) => one.x + one.width)) + 20;
    return { tiles, strip, top, bottom, room: room.width, width: Math.max(room.width, right), height: strip.length ? strip.at(-1).y + strip[0].side + 40 : bottom + 16 };
  }

  // Small pictures below: one for each word, or one for each head where patches look.
  function strips() {
    if (seen().images.length > 1 || (looking() && !itself())) return [];
    if (!looking()) return app.rows().map((row) => ({ query: row, name: app.queryNames()[row] }));
    return app.headsOn().length > 1 && app.state.combine !== "rollout"
      ? app.headsOn().map((head) => ({ head, name: app.headName(head, [app.state.layer]), query: undefined })) : [];
  }

  const values = (matrix, row, first, grid) => rowOf(matrix, row).subarray(first, first + grid[0] * grid[1]);
  const text = (matrix, row, key) => number(rowOf(matrix, row)[key], Math.max(...rowOf(matrix, row).map(Math.abs)));
  const topOf = (matrix, row) =>
    rowOf(matrix, row).subarray(seen().before).reduce((top, weight) => Math.max(top, Math.abs(weight)), 0) || 1;

  function overlay(pen, { x, y, width, height, image, grid, first }, matrix, row, alpha = app.state.opacity) {
    const drawn = picture(image);
    if (drawn) pen.image(drawn, x, y, width, height, { smooth: image.width > 64 });
    else pen.rect(x, y, width, height, { fill: app.inks.line });
    if (!drawn) app.unpacking = true;
    if (grid[0] * grid[1] === 1 || !matrix) return;
    const map = glow(values(matrix, row, first, grid), grid[1], grid[0], topOf(matrix, row));
    pen.image(map, x, y, width, height, { alpha, smooth: app.state.smooth });
  }

  function patch(pen, { x, y, width, height, grid }, cell, color) {
    if (cell < 0 || cell >= grid[0] * grid[1]) return;
    const [w, h] = [width / grid[1], height / grid[0]];
    const [left, top] = [x + (cell % grid[1]) * w, y + Math.floor(cell / grid[1]) * h];
    pen.rect(left, top, w, h, { stroke: "#000000", thick: 4, alpha: 0.55 });
    pen.rect(left, top, w, h, { stroke: color, thick: 2 });
  }

  function share(pen, tile, matrix, row) {
    const shareOf = ({ first, grid }) => total(values(matrix, row, first, grid));
    const [{ x, y, width, height }, weight] = [tile, shareOf(tile)];
    const best = Math.max(...plan.tiles.filter((other) => other.share).map(shareOf));
    const on = weight === best;
    const look = { ...app.type.label, weight: on ? 600 : 400 };
    pen.rect(x - 1, y - 1, width + 2, height + 2, { stroke: on ? app.inks.accent : app.inks.line, thick: on ? 3 : 1, radius: 2 });
    pen.rect(x, y + height + 6, width, 5, { fill: app.inks.line, radius: 2.5 });
    const filled = Math.max(2, width * clamp(weight / Math.max(best, 1e-9), 0, 1));
    pen.rect(x, y + height + 6, filled, 5, { fill: app.inks.accent, alpha: on ? 1 : 0.6, radius: 2.5 });
    pen.text(number(weight, Math.abs(best)), x + width, y + height + 24, { ...look, align: "right" });
    pen.text(fit(shown(tile.caption), width - 56, look), x, y + height + 24, look);
  }

  function cellAt({ x, y, width, height, grid: [rows, columns] }, px, py) {
    const [row, column] = [Math.floor(((py - y) / height) * rows), Math.floor(((px - x) / width) * columns)];
    return clamp(row, 0, rows - 1) * columns + clamp(column, 0, columns - 1);
  }

  return {
    label: "Image: how much each part of the picture is looked at.",
    keys: "arrows pick who looks, Shift and arrows read what is looked at, Escape goes back to the start, + and − zoom.",
    hint: () => "Bright is much. "
      + (looking() ? "Click a part of the picture to see where it looks." : "Hover a word to see its region; click to keep it."),
    size(room) {
      plan = layout(room);
      return { width: plan.width, height: plan.height };
    },
    draw(pen, box) {
      const matrix = app.matrices.current();
      if (!matrix) return void app.waiting(pen, box);
      const row = query();
      const name = row === null ? "" : shown(app.queryNames()[row]);
      const patched = looking() && /^\d+,\d+$/.test(name);
      const who = row === null ? "the whole picture" : patched ? `patch ${name}` : `“${fit(name, Math.min(320, plan.width - 200))}”`;
      const note = `brightest ${number(topOf(matrix, row))} · ${app.where()}`;
      pen.text(`Where ${who} looks`, 20, 17, app.type.title);
      if (plan.top > 40) pen.text(note, 20, 38, app.type.note);
      else pen.text(note, plan.room - 20, 17, { ...app.type.note, align: "right" });
      for (const tile of plan.tiles) {
        overlay(pen, tile, tile.role === "key" ? matrix : null, row);
        if (tile.role === "query") {
          if (row !== null) patch(pen, tile, row - tile.before, "#ffffff");
          pen.text(shown(tile.image.label), tile.x, tile.y + tile.height + 16, app.type.note);
        } else if (itself() && looking() && row !== null) patch(pen, tile, row - tile.first, "#ffffff");
        if (tile.role === "key" && app.state.key !== null) patch(pen, tile, app.state.key - tile.first, app.inks.mark);
        if (tile.share) share(pen, tile, matrix, row);
      }
      const heading = plan.strip.length ? (looking() ? "Each head alone" : "Each word") : "";
      pen.text(heading, plan.room / 2, plan.bottom + 18, { ...app.type.note, align: "center" });
      for (const small of plan.strip) {
        if (small.y + small.side + 24 < box.y || small.y > box.y + box.height) continue;
        const own = small.head === undefined ? matrix : app.matrices.head(app.state.layer, small.head);
        const at = small.query ?? row;
        const { width: wide, height: high, ...like } = plan.tiles.at(-1);
        const [width, height] = [wide, high].map((length) => (small.side * length) / Math.max(wide, high));
        const tile = { ...like, x: small.x + (small.side - width) / 2, y: small.y + small.side - height, width, height };
        overlay(pen, tile, own, at, 0.85);
        const word = small.head === undefined;
        const [on, found] = [word && at === row, word && app.isFound(small.name)];
        const stroke = on ? app.inks.accent : found ? app.inks.mark : word ? app.inks.line : app.color(small.head);
        pen.rect(tile.x - 1, tile.y - 1, width + 2, height + 2, { stroke, thick: on || found ? 3 : 1.5, radius: 2 });
        const look = { ...app.type.label, align: "center", weight: on ? 600 : 400 };
        pen.text(fit(shown(small.name), small.side, look), small.x + small.side / 2, small.y + small.side + 14, look);
      }
    },
    hit(x, y) {
      const inside = (one, width = one.width, height = one.height) =>
        x >= one.x && x < one.x + width && y >= one.y && y < one.y + height;
      const small = plan.strip.find((one) => inside(one, one.side, one.side + 22));
      if (small) return small.head === undefined ? { query: small.query } : { head: small.head };
      const tile = plan.tiles.find((one) => inside(one));
      if (!tile) return null;
      const cell = cellAt(tile, x, y);
      if (tile.role === "query") return { pick: cell + tile.before };
      const key = tile.first + cell;
      return itself() && looking() ? { key, pick: key } : { key, quiet: true };
    },
    scale: () => ({ x: plan.tiles[0].x, y: plan.tiles[0].y, unit: plan.tiles[0].width }),
    hover(spot) {
      hovered = spot;
      app.point(spot && query(), spot?.key ?? null);
    },
    tip({ key, head, pick }) {
      if (head !== undefined) return [app.headName(head, [app.state.layer]), "click to see it alone"];
      const matrix = app.matrices.current();
      if (key !== undefined) return matrix ? [text(matrix, query(), key), app.name("key", key)] : [];
      return pick === undefined ? [] : [`look from ${app.name("query", pick)}`];
    },
    press({ query: row, head, pick }) {
      if (head !== undefined) app.set({ heads: [head], combine: "each" });
      else if ((pick ?? row) !== undefined) app.set({ token: pick ?? row });
    },
    move(across, down, shift) {
      const next = (list, at, pictured) => {
        const step = at === null ? -list.length : across + down * (pictured?.grid[1] ?? 1); // the first, to begin with
        return list[clamp(list.indexOf(at) + step, 0, list.length - 1)];
      };
      const [token, { key }] = [query(), app.state];
      if (shift) app.set({ token, key: key === null ? seen().before : next(app.columns(), key, seen()) });
      else app.set({ token: next(app.rows(), token, looking()), key });
    },
    told() {
      const [{ key }, matrix] = [app.asked(), app.matrices.current()];
      if (!matrix || key === null || query() !== null) return app.told();
      return `the whole picture → ${app.name("key", key)}: ${text(matrix, null, key)} · ${app.where()}`;
    },
    reveal({ side, index }) {
      const small = side === "query" && plan.strip.find((one) => one.query === index);
      if (small) app.stage.reveal(small.x, small.y, small.side, small.side + 24);
    },
  };
}

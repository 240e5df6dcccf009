// Two columns of tokens, and a line for every look: the stronger the look, the stronger the line.

import { fit } from "./pen.js";
import { clamp, shown } from "./dom.js";
import { eachLook, largest } from "./weights.js";

const TOP = 44; // room for the headings
const SHADES = 10;
const FAINT = 0.012; // part of the strongest weight drawn, below which no line is drawn

export function headsView(app) {
  let plan = null;

  function layout(room) {
    const width = Math.min(room.width, Math.max(860, room.width * 0.86), 1500);
    const column = clamp(width * 0.27, 70, 300);
    const left = (room.width - width) / 2;
    const [rows, columns] = [app.rows(), app.columns()];
    const fits = (room.height - TOP - 16) / Math.max(rows.length, columns.length);
    const row = Math.round(clamp(clamp(fits, 24, 92) * app.state.zoom, 10, 160));
    const place = (list) => new Map(list.map((index, i) => [index, TOP + (i + 0.5) * row]));
    return { width, column, row, left, rows, columns, queryY: place(rows), keyY: place(columns),
      from: left + column, to: left + width - column, room: room.width };
  }

  const layers = () => app.state.combine === "each"
    ? app.headsOn().map((head) => ({ matrix: app.matrices.head(app.state.layer, head), color: app.color(head) }))
    : [{ matrix: app.matrices.current(), color: app.inks.accent }];

  function lines(pen, box, drawn) {
    const [picked, moving] = [app.active(), app.stage.isMoving()]; // while scrolled, only what looks from inside the window
    const all = [];
    drawn.forEach(({ matrix }, owner) => {
      const add = (query, key, weight) => {
        const [y1, y2] = [plan.queryY.get(query), plan.keyY.get(key)];
        if (y1 === undefined || y2 === undefined) return;
        if (Math.max(y1, moving ? y1 : y2) < box.y || Math.min(y1, moving ? y1 : y2) > box.y + box.height) return;
        if (weight !== 0) all.push({ owner, y1, y2, size: Math.abs(weight) });
      };
      eachLook(matrix, picked, add);
    });
    const kept = largest(all, moving);
    const top = kept[0]?.size;
    const shades = Array.from({ length: SHADES }, () => drawn.map(() => []));
    for (const { owner, y1, y2, size } of kept) {
      if (size < FAINT * top) break;
      shades[Math.ceil((size / top) ** 0.7 * SHADES) - 1][owner].push(plan.from, y1, plan.to, y2);
    }
    shades.forEach((owners, shade) => owners.forEach((ends, owner) => {
      const strength = (shade + 1) / SHADES;
      const look = { color: drawn[owner].color, alpha: 0.08 + 0.8 * strength ** 1.3, thick: 0.8 + 2 * strength, bend: "x" };
      if (ends.length) pen.lines(ends, look);
    }));
  }

  function tokens(pen, box, drawn, side) {
    const query = side === "query";
    const [list, ys, names] = query ? [plan.rows, plan.queryY, app.queryNames()] : [plan.columns, plan.keyY, app.keyNames()];
    const picked = app.active();
    const across = picked && picked.side !== side;
    const size = clamp(plan.row * 0.56, 8, clamp(plan.row * 0.32, 17, 26));
    const [low, high] = [Math.floor((box.y - TOP) / plan.row) - 1, Math.ceil((box.y + box.height - TOP) / plan.row) + 1];
    const [edge, room] = [query ? plan.from - plan.column : plan.to + 6, plan.column - 6];
    for (const index of list.slice(Math.max(0, low), Math.max(0, high))) {
      const y = ys.get(index);
      const own = picked?.side === side && picked.index === index;
      if (own || app.isFound(names[index])) pen.rect(edge, y - plan.row / 2 + 1, room, plan.row - 2, app.marked(own));
      if (across) {
        const [q, k] = query ? [index, picked.index] : [picked.index, index];
        const wide = Math.min(9, (room * 0.5) / drawn.length);
        drawn.forEach(({ matrix, color }, i) => {
          const x = query ? edge + i * wide : edge + room - (drawn.length - i) * wide;
          const alpha = clamp((Math.abs(matrix.row(q)[k]) / matrix.top) ** 0.7, 0.03, 1);
          pen.rect(x, y - plan.row / 2 + 2, wide - 1, plan.row - 4, { fill: color, alpha, radius: 1 });
        });
      }
      const strips = across ? Math.min(9 * drawn.length, room * 0.5) + 4 : 0;
      const look = { color: app.inks.ink, size, weight: own ? 600 : 400, alpha: picked && !own && !across ? 0.45 : 1 };
      const [x, align] = query ? [plan.from - 12, "right"] : [plan.to + 12, "left"];
      pen.text(fit(shown(names[index]), room - 12 - strips, { size }), x, y, { ...look, align });
    }
  }

  return {
    label: "Heads: two columns of tokens, joined by a line for each look.",
    keys: "up and down pick a token, left and right change the column, Escape lets it go, + and − zoom.",
    hint: () => "Hover a token to see only its looks; click to keep it. Click a head to switch it, double-click (or Shift and Enter) to see it alone.",
    size(room) {
      plan = layout(room);
      return { width: 0, height: TOP + Math.max(plan.rows.length, plan.columns.length) * plan.row + 16 };
    },
    draw(pen, box) {
      const drawn = layers();
      if (drawn.some(({ matrix }) => !matrix)) return void app.waiting(pen, box);
      lines(pen, box, drawn);
      tokens(pen, box, drawn, "query");
      tokens(pen, box, drawn, "key");
      pen.rect(0, box.y, plan.room, TOP - 12, { fill: app.inks.panel, alpha: 0.96 });
      pen.text(`${app.sideWord("query")} looks`, plan.from - 12, box.y + 18, { ...app.type.note, align: "right" });
      pen.text(`${app.sideWord("key")} is looked at`, plan.to + 12, box.y + 18, app.type.note);
    },
    hit(x, y, box) {
      if (y < box.y + TOP - 12 || x < plan.left || x > plan.left + plan.width) return null;
      const place = Math.floor((y - TOP) / plan.row);
      const side = x <= plan.from ? "query" : x >= plan.to ? "key" : null;
      const index = side === "query" ? plan.rows[place] : side === "key" ? plan.columns[place] : undefined;
      return index === undefined ? null : { side, index };
    },
    scale: () => ({ x: 0, y: TOP, unit: plan.row }),
    hover: app.hover,
    tip: app.tip,
    press: app.toggle,
    move: (across, down) => app.walk(down, across && (across < 0 ? "query" : "key")),
    reveal: ({ side, index }) => app.stage.reveal(0, (plan[`${side}Y`].get(index) ?? 0) - 12, 1, 24, 60),
  };
}

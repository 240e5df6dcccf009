// Every layer and head at once, as thumbnails. They are made when they come into the window, as many as a frame has time for.

import { heat } from "./colors.js";
import { clamp } from "./dom.js";
import { meanEntropy } from "./weights.js";

const [LEFT, TOP, GAP] = [76, 40, 10];
const PATIENCE = 40; // milliseconds for new thumbnails in one frame; while the view is scrolled, far less

export function gridView(app) {
  const thumbs = new Map();
  let [plan, hovered, walked] = [null, null, null]; // walked: where the arrows have led

  const layers = () => app.layersOfKind();
  const key = (layer, head) => [app.state.example, app.state.temperature, app.state.hide, app.mode, layer, head].join(" ");

  function thumb(layer, head) {
    const id = key(layer, head);
    if (thumbs.has(id)) return thumbs.get(id);
    if (performance.now() > plan.until) return app.refresh();
    const small = app.matrices.small(layer, head, app.rows(layer), app.columns(layer));
    app.unpacking ||= !small;
    if (!small) return null;
    const picture = heat(small, app.mode, app.example().layers[layer].signed);
    if (thumbs.size > 2000) thumbs.clear();
    thumbs.set(id, picture);
    return picture;
  }

  const isThere = ({ layer, head }) => layers().includes(layer) && head < app.example().layers[layer].heads.length;
  const focus = () => [hovered, walked].find((spot) => spot && isThere(spot)) ?? null;
  // One head alone, with a way back that the browser knows too.
  const show = ({ layer, head }) => {
    const combine = app.state.combine === "rollout" ? "mean" : app.state.combine;
    walked = { layer, head };
    app.set({ view: "matrix", layer, heads: [head], combine, from: "grid" }, true);
  };

  return {
    label: "Grid: a thumbnail for each layer and head.",
    keys: "arrows move, Enter enlarges, Escape comes back.",
    hint: () => "Each square is one head: rows look, columns are looked at. Click one to enlarge it.",
    size(room) {
      const most = Math.max(...layers().map((layer) => app.example().layers[layer].heads.length));
      const [wide, high] = [(room.width - LEFT - 24) / most - GAP, (room.height - TOP - 16) / layers().length - GAP];
      const side = Math.round(clamp(Math.min(wide, Math.max(high, 132)), 44, 400) * app.state.zoom);
      const width = LEFT + most * (side + GAP) + 16;
      plan = { side, most, left: Math.max(0, (room.width - width) / 2), step: side + GAP };
      return { width, height: TOP + layers().length * plan.step + 16 };
    },
    draw(pen, box, whole) {
      const { side, step, left } = plan;
      const now = focus();
      plan.until = whole ? Infinity : performance.now() + PATIENCE / (app.stage.isMoving() ? 5 : 1);
      layers().forEach((layer, i) => {
        const y = TOP + i * step;
        if (y + side < box.y || y > box.y + box.height) return;
        pen.text(`layer ${app.depth(layer)}`, left + LEFT - 16, y + side / 2, { ...app.type.note, align: "right" });
        app.example().layers[layer].heads.forEach((_, head) => {
          const x = left + LEFT + head * step;
          if (x + side < box.x || x > box.x + box.width) return;
          const made = thumb(layer, head);
          if (made) pen.image(made, x, y, side, side, { smooth: made.width > side });
          else pen.rect(x, y, side, side, { fill: app.inks.line, alpha: 0.5, radius: 3 });
          const on = now && now.layer === layer && now.head === head;
          const frame = on ? { stroke: app.inks.accent, thick: 2.5 } : { stroke: app.inks.line };
          pen.rect(x - 0.5, y - 0.5, side + 1, side + 1, { ...frame, radius: 2 });
        });
      });
      pen.rect(box.x, box.y, box.width, TOP - 8, { fill: app.inks.panel });
      for (let head = 0; head < plan.most; head++) {
        const x = left + LEFT + head * step + side / 2;
        const name = app.headName(head, layers());
        pen.rect(x - side / 2, box.y + TOP - 12, side, 3, { fill: app.color(head), radius: 1.5 });
        pen.text(name, x, box.y + 16, { ...app.type.note, align: "center" });
      }
    },
    hit(x, y, box) {
      if (y < box.y + TOP - 8) return null;
      const [column, row] = [Math.floor((x - plan.left - LEFT) / plan.step), Math.floor((y - TOP) / plan.step)];
      const layer = layers()[row];
      if (layer === undefined || column < 0 || column >= app.example().layers[layer].heads.length) return null;
      return { layer, head: column };
    },
    scale: () => ({ x: plan.left + LEFT, y: TOP, unit: plan.step }),
    hover: (spot) => (hovered = spot),
    told: () => (focus() ? app.view().tip(focus()).join(" · ") : ""),
    tip({ layer, head }) {
      const matrix = app.example().layers[layer].shares ? app.matrices.head(layer, head) : null;
      const more = matrix ? [`entropy ${meanEntropy(matrix).toFixed(2)} bits`] : [];
      return [`Layer ${app.depth(layer)}, ${app.headName(head, [layer])}`, app.example().layers[layer].name, ...more];
    },
    press: show,
    move(across, down) {
      const [list, from] = [layers(), focus()];
      const now = from ?? { layer: list[0], head: across > 0 ? -1 : 0 };
      const row = clamp(list.indexOf(now.layer) + (from ? down : 0), 0, list.length - 1);
      const head = clamp(now.head + across, 0, app.example().layers[list[row]].heads.length - 1);
      [hovered, walked] = [null, { layer: list[row], head }];
      app.stage.reveal(plan.left + LEFT + head * plan.step, TOP + row * plan.step, plan.side, plan.side);
      app.refresh();
    },
    enter: () => focus() && show(focus()),
    escape: () => (walked = null),
  };
}

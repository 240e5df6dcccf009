// The app: the state in the middle, the views around it.

import { clamp, el, shown } from "./dom.js";
import { headColor, inks, isDark } from "./colors.js";
import { openControls } from "./controls.js";
import { openInspector } from "./inspector.js";
import { openWeights, readMeta } from "./payload.js";
import { openStage } from "./stage.js";
import { DEFAULTS, VIEWS, fitted, fromHash, toHash, writeHash } from "./state.js";
import { openMatrices, rolled, strongest } from "./weights.js";
import { alignmentView } from "./view-alignment.js";
import { gridView } from "./view-grid.js";
import { headsView } from "./view-heads.js";
import { imageView } from "./view-image.js";
import { matrixView } from "./view-matrix.js";
import { temperatureView } from "./view-temperature.js";

const app = {
  meta: readMeta(),
  pointed: { query: null, key: null },
  wanted: "", zooms: {},
  notice: "", // something to say beside what the state says, until the state changes

  example: () => app.meta.examples[app.state.example],
  layer: () => app.example().layers[app.state.layer],
  layersOfKind: (kind = app.layer().kind) => [...app.example().layers.keys()].filter((i) => app.example().layers[i].kind === kind),
  depth(layer) {
    const { kind, call } = app.example().layers[layer];
    return app.layersOfKind(kind).filter((other) => app.example().layers[other].call === call).indexOf(layer);
  },
  headsOn: (layer = app.state.layer) => (layer === app.state.layer && app.state.heads) || [...app.example().layers[layer].heads.keys()],
  headName(head, layers) {
    const name = layers.map((layer) => app.example().layers[layer].heads[head]).find((one) => one !== undefined);
    return /^\d+$/.test(name) ? `head ${name}` : name;
  },
  color(head) {
    const name = app.layer().heads[head];
    return headColor(app.mode, /^\d+$/.test(name) ? Number(name) : head);
  },

  // The side that looks ("query") or is looked at ("key") in a layer, if its names fit that layer's size.
  side(which, layer = app.state.layer) {
    const { sides, shape } = app.example().layers[layer];
    const [name, size] = which === "query" ? [sides[0], shape[1]] : [sides[1], shape[2]];
    const side = app.example()[name];
    if (side.tokens.length === size) return side;
    return { tokens: Array.from({ length: size }, (_, i) => String(i)), special: [], pictures: null };
  },
  queryNames: () => app.side("query").tokens,
  keyNames: () => app.side("key").tokens,
  name(which, index) {
    const name = shown(app.side(which).tokens[index]);
    return /[\u0590-\u08ff\ufb1d-\ufefc]/.test(name) ? `\u2068${name}\u2069` : name; // else it would turn what stands beside it
  },
  sideWord: (which) => (app.layer().kind === "cross" ? (which === "query" ? "Target" : "Source") : "Token"),
  places(which, layer) {
    const { tokens, special } = app.side(which, layer);
    const rest = [...tokens.keys()].filter((place) => !app.state.hide || !special.includes(place));
    return rest.length ? rest : [...tokens.keys()];
  },
  rows: (layer) => app.places("query", layer),
  columns: (layer) => app.places("key", layer),

  views: () => viewsFor(app.state),
  view: () => views[app.state.view],
  viewKey: () => ["example", "layer", "heads", "combine", "temperature", "hide"].map((name) => app.state[name]).join(" "),
  // How heads become one map here: what is asked for, where that can be done.
  canRoll: (layer = app.state.layer) => app.state.view !== "temperature" && rolled(app, layer).length > 0,
  combining(layer) {
    const { combine } = app.state;
    return combine === "max" || (combine === "rollout" && app.canRoll(layer)) ? combine : "mean";
  },
  where() {
    const how = app.combining();
    const on = app.headsOn();
    const what = how === "rollout" ? how : on.length > 1 ? `${how} of ${on.length} heads` : app.headName(on[0], [app.state.layer]);
    const warm = app.layer().sharpens && app.state.temperature !== 1 ? `, temperature ${app.state.temperature.toFixed(2)}` : "";
    return `layer ${app.depth(app.state.layer)}, ${what}${warm}`;
  },

  set(patch, push = false) {
    const { view, zoom } = app.state;
    const key = "token" in patch ? null : app.state.key; // a cell is picked together with its row
    const state = fitted({ ...app.state, key, ...patch }, app.meta, viewsFor);
    app.zooms[view] = zoom; // each view has its own
    if (state.view !== view && !("zoom" in patch)) state.zoom = app.zooms[state.view] ?? 1;
    [app.state, app.notice] = [state, ""];
    if (state.token !== null && !app.rows().includes(state.token)) state.token = state.key = null;
    if (!app.columns().includes(state.key)) state.key = null;
    app.dress();
    writeHash(toHash(state), push);
    app.refresh();
  },
  dress() {
    app.mode = isDark(app.state.theme) ? "dark" : "light";
    document.documentElement.dataset.theme = app.mode;
    app.inks = inks();
    const label = { size: 12, color: app.inks.ink };
    app.type = { label, title: { ...label, size: 14, weight: 600 }, note: { ...label, color: app.inks.muted } };
  },

  // What is pointed at, else what is picked: shown beside the drawing and read out by a screen reader.
  point: (query, key) => (app.pointed = { query, key }),
  asked() {
    const { query, key } = app.pointed;
    return query === null && key === null ? { query: app.state.token, key: app.state.key } : { query, key };
  },
  // The same as one token: one that looks (query), or one that is looked at (key).
  active() {
    const { query, key } = app.asked();
    return query !== null ? { side: "query", index: query } : key !== null ? { side: "key", index: key } : null;
  },
  hover: (spot) => app.point(spot?.side === "query" ? spot.index : null, spot?.side === "key" ? spot.index : null),
  isPicked: ({ side, index }) => (side === "query" ? app.state.token === index : app.state.token === null && app.state.key === index),
  pick: (spot) => app.set(spot?.side === "key" ? { token: null, key: spot.index } : { token: spot?.index ?? null }),
  toggle: (spot) => app.pick(app.isPicked(spot) ? null : spot),
  // From the picked token along its side, or across to the other.
  walk(along, side) {
    const { token, key } = app.state;
    const from = token === null && key !== null ? "key" : "query";
    const list = app.places(side || from);
    const at = app.places(from).indexOf(from === "key" ? key : token);
    app.goTo({ side: side || from, index: list[clamp(at + along, 0, list.length - 1)] });
  },
  goTo(spot) {
    app.pick(spot);
    app.reveal();
  },
  // Brings what is picked into sight.
  reveal() {
    const { token, key } = app.state;
    if (token !== null || key !== null) app.view().reveal?.(token === null ? { side: "key", index: key } : { side: "query", index: token });
  },
  // A token and the few it looks at most, or is seen by most.
  tip({ side, index }) {
    const matrix = app.matrices.current();
    if (!matrix) return [];
    const looks = side === "query";
    const [row, other] = looks ? [matrix.row(index), "key"] : [matrix.column(index), "query"];
    const best = strongest(row, 4, app.places(other)).filter((place) => row[place] !== 0);
    const text = (place) => (looks ? matrix.text(index, place) : matrix.text(place, index));
    return [`${app.name(side, index)} ${looks ? "looks at" : "is seen by"}`, ...best.map((place) => `${text(place)}  ${app.name(other, place)}`)];
  },
  told() {
    const { query, key } = app.asked();
    const matrix = app.matrices.current();
    if (!matrix || (query === null && key === null)) return "";
    if (query === null) {
      const [by] = strongest(matrix.column(key), 1, app.rows());
      return `${app.name("key", key)} is seen most by ${app.name("query", by)}: ${matrix.text(by, key)} · ${app.where()}`;
    }
    const place = key ?? strongest(matrix.row(query), 1, app.columns())[0];
    const does = key === null ? "looks most at" : "→";
    return `${app.name("query", query)} ${does} ${app.name("key", place)}: ${matrix.text(query, place)} · ${app.where()}`;
  },
  say(told) {
    const text = told || `Keyboard: ${app.view().keys}`;
    if (status.textContent !== text) status.textContent = text; // or it would be read out again
    status.classList.toggle("idle", !told);
  },
  waiting(pen, box) {
    app.unpacking = true;
    pen.text("Unpacking…", box.x + box.width / 2, box.y + box.height / 2, { ...app.type.note, align: "center" });
  },

  marked: (own) => ({ fill: own ? app.inks.accent : app.inks.mark, alpha: own ? 0.16 : 0.5, radius: 5 }),
  isFound: (name) => app.wanted !== "" && name.toLowerCase().includes(app.wanted),
  found() {
    const sides = app.layer().kind === "cross" ? ["query", "key"] : ["query"];
    const found = (side) => app.places(side).filter((index) => app.isFound(app.side(side).tokens[index]));
    return sides.flatMap((side) => found(side).map((index) => ({ side, index })));
  },
  find(text) {
    app.wanted = text.trim().toLowerCase();
    const [first] = app.found();
    if (first) app.view().reveal?.(first);
    app.refresh();
  },
  findNext(step) {
    const found = app.found();
    if (!found.length) return;
    const now = found.findIndex(app.isPicked);
    app.goTo(found[now < 0 ? 0 : (now + step + found.length) % found.length]);
  },

  refresh() {
    app.stage.node.ariaBusy = true;
    frame ||= requestAnimationFrame(() => {
      frame = 0;
      opened = app.stage.show(app.view()) || opened;
      app.matrices.newFrame();
      controls.update();
      app.unpacking = false;
      app.stage.draw();
      if (opened && !app.unpacking) (opened = false), app.reveal();
      app.stage.node.ariaBusy = app.unpacking || frame !== 0;
      inspector.update();
      app.say(app.notice || (app.view().told ? app.view() : app).told());
      app.stage.node.setAttribute("aria-labelledby", `tab-${app.state.view}`);
      document.documentElement.dataset.view = app.state.view;
    });
  },
};

// Only the views that this layer can feed.
function viewsFor({ example, layer }) {
  const { kind, sides, shape, sharpens } = app.meta.examples[example].layers[layer];
  const [looking, seen] = sides.map((side) => app.meta.examples[example][side]);
  const pictured = seen.pictures && seen.tokens.length === shape[2];
  const words = !seen.pictures && !looking.pictures && kind === "cross";
  const fed = { heads: true, grid: true, matrix: true, image: pictured, alignment: words, temperature: sharpens };
  return VIEWS.filter((view) => fed[view]);
}

let frame = 0;
let opened = false; // whether a view is new and has not yet been scrolled to what is picked
app.weights = openWeights(app.meta, () => app.refresh());
app.matrices = openMatrices(app);
app.stage = openStage(app);
const views = {
  heads: headsView(app), grid: gridView(app), matrix: matrixView(app),
  image: imageView(app), alignment: alignmentView(app), temperature: temperatureView(app),
};

app.state = { ...DEFAULTS };
const status = el("div", { className: "status idle", role: "status" });
const controls = openControls(app);
const inspector = openInspector(app);
// Before the weights, which may still be coming.
const [main, footer] = [el("main", {}, app.stage.node, inspector.node), el("footer", {}, status, controls.zoom)];
document.body.prepend(controls.header, controls.toolbar, main, footer);

const start = () => app.set({ ...DEFAULTS, ...fromHash(location.hash) });
addEventListener("hashchange", () => location.hash.slice(1) !== toHash(app.state) && start());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => app.set({}));
addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !app.view().escape?.()) app.set({ token: null, key: null });
});
start();

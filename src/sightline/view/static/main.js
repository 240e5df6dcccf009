// The app: the state in the middle, the views around it.

import { clamp, el, number, shown } from "./dom.js";
import { headColour, inks, isDark } from "./colours.js";
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

const SIDES = { encoder: ["source", "source"], decoder: ["target", "target"], cross: ["target", "source"] };

const app = {
  meta: readMeta(),
  pointed: { query: null, key: null },
  wanted: "",

  example: () => app.meta.examples[app.state.example],
  layer: () => app.example().layers[app.state.layer],
  layersOfKind(kind = app.layer().kind) {
    const { layers } = app.example();
    return [...layers.keys()].filter((i) => layers[i].kind === kind);
  },
  depth(layer) {
    const { kind, call } = app.example().layers[layer];
    return app.layersOfKind(kind).filter((other) => app.example().layers[other].call === call).indexOf(layer);
  },
  headsOn(layer = app.state.layer) {
    return (layer === app.state.layer && app.state.heads) || [...app.example().layers[layer].heads.keys()];
  },
  headName(head, layers) {
    const name = layers.map((layer) => app.example().layers[layer].heads[head]).find((one) => one !== undefined);
    return /^\d+$/.test(name) ? `head ${name}` : name;
  },
  colour(head) {
    const name = app.layer().heads[head];
    return headColour(app.mode, /^\d+$/.test(name) ? Number(name) : head);
  },

  // The side that looks ("query") or is looked at ("key") in a layer, if its names fit that layer's size.
  side(which, layer = app.state.layer) {
    const { kind, shape } = app.example().layers[layer];
    const side = app.example()[SIDES[kind][which === "query" ? 0 : 1]];
    const size = shape[which === "query" ? 1 : 2];
    if (side.tokens.length === size) return side;
    return { tokens: Array.from({ length: size }, (_, i) => String(i)), special: [], pictures: null };
  },
  queryNames: () => app.side("query").tokens,
  keyNames: () => app.side("key").tokens,
  sideWord: (which) => (app.layer().kind === "cross" ? (which === "query" ? "Target" : "Source") : "Token"),
  pictures: (which) => app.side(which).pictures,
  places(which, layer) {
    const { tokens, special } = app.side(which, layer);
    const all = [...tokens.keys()];
    const rest = app.state.hide ? all.filter((place) => !special.includes(place)) : all;
    return rest.length ? rest : all;
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
    const place = `layer ${app.depth(app.state.layer)}`;
    if (how === "rollout") return `${place}, rollout`;
    if (on.length === 1) return `${place}, ${app.headName(on[0], [app.state.layer])}`;
    return `${place}, ${how} of ${on.length} heads`;
  },

  set(patch) {
    const key = "token" in patch ? null : app.state.key; // a cell is picked together with its row
    app.state = fitted({ ...app.state, key, ...patch }, app.meta, viewsFor);
    if (!app.rows().includes(app.state.token)) app.state.token = null;
    if (app.state.token === null || !app.columns().includes(app.state.key)) app.state.key = null;
    app.dress();
    writeHash(toHash(app.state));
    app.refresh();
  },
  zoom: (by) => app.set({ zoom: clamp(app.state.zoom * by, 0.25, 8) }),
  dress() {
    app.mode = isDark(app.state.theme) ? "dark" : "light";
    document.documentElement.dataset.theme = app.mode;
    app.inks = inks();
    app.type = {
      title: { size: 14, weight: 600, colour: app.inks.ink },
      label: { size: 12, colour: app.inks.ink },
      note: { size: 12, colour: app.inks.muted },
    };
  },

  // What is pointed at, else what is picked: shown beside the drawing and read out by a screen reader.
  point: (query, key) => (app.pointed = { query, key }),
  asked() {
    const { query, key } = app.pointed;
    return query === null && key === null ? { query: app.state.token, key: app.state.key } : { query, key };
  },
  told() {
    const { query, key } = app.asked();
    const matrix = app.matrices.current();
    if (!matrix || (query === null && key === null)) return "";
    const [queries, keys] = [app.queryNames(), app.keyNames()];
    if (query === null) return `${shown(keys[key])} is looked at`;
    const row = matrix.row(query);
    const place = key ?? strongest(row, 1, app.columns())[0];
    const does = key === null ? "looks most at" : "→";
    return `${shown(queries[query])} ${does} ${shown(keys[place])}: ${number(row[place])} · ${app.where()}`;
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
  matches: (which = "query") => app.places(which).filter((place) => app.isFound(app.side(which).tokens[place])),
  find(text) {
    app.wanted = text.trim().toLowerCase();
    const [first] = app.matches();
    if (first !== undefined) app.view().reveal?.(first);
    app.refresh();
  },
  findNext(step) {
    const found = app.matches();
    if (!found.length) return;
    const now = found.indexOf(app.state.token);
    app.set({ token: found[now < 0 ? 0 : (now + step + found.length) % found.length], key: app.state.key });
    app.view().reveal?.(app.state.token);
  },

  isBusy: () => frame !== 0,
  refresh() {
    frame ||= requestAnimationFrame(() => {
      frame = 0;
      app.stage.show(app.view());
      app.matrices.newFrame();
      controls.update();
      app.unpacking = false;
      app.stage.draw();
      app.stage.node.ariaBusy = app.unpacking || app.isBusy();
      inspector.update();
      app.say((app.view().told ? app.view() : app).told());
      document.documentElement.dataset.view = app.state.view;
    });
  },
};

// Only the views that this layer can feed.
function viewsFor({ example, layer }) {
  const { kind, shape, sharpens } = app.meta.examples[example].layers[layer];
  const [looking, seen] = SIDES[kind].map((side) => app.meta.examples[example][side]);
  const pictured = seen.pictures && seen.tokens.length === shape[2];
  const words = !seen.pictures && !looking.pictures && kind === "cross";
  const fed = { heads: true, grid: true, matrix: true, image: pictured, alignment: words, temperature: sharpens };
  return VIEWS.filter((view) => fed[view]);
}

let frame = 0;
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
app.stage.node.id = "stage";
app.stage.node.setAttribute("role", "tabpanel");
document.body.append(controls.header, controls.toolbar, el("main", {}, app.stage.node, inspector.node), el("footer", {}, status, controls.zoom));

const start = () => {
  const first = app.meta.examples[0].source.pictures || app.meta.examples[0].target.pictures ? { view: "image" } : {};
  app.set({ ...DEFAULTS, ...first, ...fromHash(location.hash) });
};
addEventListener("hashchange", () => location.hash.slice(1) !== toHash(app.state) && start());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => app.set({}));
addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !app.view().escape?.()) app.set({ token: null, key: null });
});
start();

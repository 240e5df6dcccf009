// The application: its state, the selection, the status line, and the views.

import { headColor, isDark, themeColors } from "./colors.js";
import { createControls } from "./controls.js";
import { element } from "./elements.js";
import { clamp, displayText } from "./format.js";
import { createInspector } from "./inspector.js";
import { createPayload, readMeta } from "./payload.js";
import { DEFAULTS, VIEWS, fromHash, toHash, validState, writeHash } from "./state.js";
import { createViewport } from "./viewport.js";
import { createMatrices, layersAlike, rolloutLayers, strongest } from "./weights.js";
import { alignmentView } from "./view-alignment.js";
import { gridView } from "./view-grid.js";
import { headsView } from "./view-heads.js";
import { imageView } from "./view-image.js";
import { matrixView } from "./view-matrix.js";
import { temperatureView } from "./view-temperature.js";

const RIGHT_TO_LEFT = /[\u0590-\u08ff\ufb1d-\ufefc]/;

const app = {
  meta: readMeta(),
  hovered: { query: null, key: null },
  searchText: "",
  zooms: {}, // by view
  isTouch: () => matchMedia("(hover: none)").matches,
  notice: "", // a message for the status line, until the state changes

  example: () => app.meta.examples[app.state.example],
  layer: () => app.example().layers[app.state.layer],
  layersOfKind: (kind = app.layer().kind) => [...app.example().layers.keys()].filter((i) => app.example().layers[i].kind === kind),
  isSelfAttention: ({ sequences: [query, key] }) => query === key, // not from a target or the targets of relevance to another sequence
  isDerived: ({ kind }) => kind === "relevance" || kind === "rollout", // from all layers
  depth(layer) {
    const { kind, call } = app.example().layers[layer];
    return app.layersOfKind(kind).filter((other) => app.example().layers[other].call === call).indexOf(layer);
  },
  selectedHeads: (layer = app.state.layer) => (layer === app.state.layer && app.state.heads) || [...app.example().layers[layer].heads.keys()],
  headName(head, layers) {
    const name = layers.map((layer) => app.example().layers[layer].heads[head]).find((other) => other !== undefined);
    return /^\d+$/.test(name) ? `head ${name}` : name;
  },
  headColor(head) {
    const name = app.layer().heads[head];
    return headColor(app.mode, /^\d+$/.test(name) ? Number(name) : head);
  },

  // The query or key sequence of a layer, of tokens or of words. Positions are numbered if the tokens do not match the layer's size.
  sequence(role, layer = app.state.layer) {
    const tokens = app.tokenSequence(role, layer);
    return app.state.join && tokens.words ? (tokens.joined ??= joinedSequence(tokens)) : tokens;
  },
  tokenSequence(role, layer = app.state.layer) {
    const { sequences, shape } = app.example().layers[layer];
    const [name, size] = role === "query" ? [sequences[0], shape[1]] : [sequences[1], shape[2]];
    const sequence = app.example()[name];
    if (sequence.tokens.length === size) return sequence;
    return { tokens: Array.from({ length: size }, (_, i) => String(i)), special: [], patches: null, words: null, segments: null };
  },
  // The first token of each word if the tokens of a word are joined, otherwise null.
  wordStarts: (role, layer) => (app.state.join && app.tokenSequence(role, layer).words?.starts) || null,
  queryTokens: () => app.sequence("query").tokens,
  keyTokens: () => app.sequence("key").tokens,
  tokenText(role, index) {
    const text = displayText(app.sequence(role).tokens[index]);
    return RIGHT_TO_LEFT.test(text) ? `\u2068${text}\u2069` : text; // isolated from the text around it
  },
  // Positions that are not hidden.
  positions(role, layer) {
    const { tokens, special, segments } = app.sequence(role, layer);
    const sentence = segments && app.state.sentences !== "all" ? "AB".indexOf(app.state.sentences[role === "query" ? 0 : 1]) : null;
    const isShown = (index) => (!app.state.hide || !special.includes(index)) && (sentence === null || segments[index] === sentence);
    const shown = [...tokens.keys()].filter(isShown);
    return shown.length ? shown : [...tokens.keys()];
  },
  queries: (layer) => app.positions("query", layer),
  keys: (layer) => app.positions("key", layer),

  views: () => availableViews(app.state),
  view: () => views[app.state.view],
  matrixKey: () => ["example", "layer", "heads", "combine", "temperature", "hide", "join", "sentences"].map((name) => app.state[name]).join(" "),
  canRollout: (layer = app.state.layer) => app.state.view !== "temperature" && rolloutLayers(app.example().layers, layer).length > 0,
  canAverageLayers: (layer = app.state.layer) => app.state.view !== "temperature" && layersAlike(app.example().layers, layer).length > 1,
  // How heads are combined to one matrix. Rollout and the mean over layers fall back to the mean where they are not defined.
  combineMode(layer) {
    const { combine } = app.state;
    const applies = { max: true, rollout: app.canRollout(layer), layers: app.canAverageLayers(layer) };
    return applies[combine] ? combine : "mean";
  },
  usesAllHeads: () => ["rollout", "layers"].includes(app.combineMode()),
  // Whether all displayed heads attend to all keys nearly equally.
  isNearUniform(layer = app.state.layer, heads = app.selectedHeads(layer)) {
    const { uniform } = app.example().layers[layer];
    return heads.every((head) => uniform.includes(head));
  },
  matrixName() {
    if (app.isDerived(app.layer())) return app.layer().name;
    const [mode, heads] = [app.combineMode(), app.selectedHeads()];
    if (mode === "layers") return `mean of ${layersAlike(app.example().layers, app.state.layer).length} layers`;
    const what = mode === "rollout" ? mode : heads.length > 1 ? `${mode} of ${heads.length} heads` : app.headName(heads[0], [app.state.layer]);
    const changed = app.layer().hasTemperature && app.state.temperature !== 1;
    return `layer ${app.depth(app.state.layer)}, ${what}${changed ? `, temperature ${app.state.temperature.toFixed(2)}` : ""}`;
  },

  set(changes, push = false) {
    const { view, zoom } = app.state;
    const key = "query" in changes ? null : app.state.key; // a cell is selected by query and key together
    const state = validState({ ...app.state, key, ...changes }, app.meta, availableViews, rolloutLayers);
    app.zooms[view] = zoom;
    if (state.view !== view && !("zoom" in changes)) state.zoom = app.zooms[state.view] ?? 1;
    [app.state, app.notice] = [state, ""];
    if (state.query !== null && !app.queries().includes(state.query)) state.query = state.key = null;
    if (!app.keys().includes(state.key)) state.key = null;
    app.applyTheme();
    writeHash(toHash(state), push);
    app.refresh();
  },
  applyTheme() {
    app.mode = isDark(app.state.theme) ? "dark" : "light";
    document.documentElement.dataset.theme = app.mode;
    app.colors = themeColors();
    const label = { size: 12, color: app.colors.ink };
    app.textStyles = { label, title: { ...label, size: 14, weight: 600 }, note: { ...label, color: app.colors.muted } };
  },

  // The hovered query and key, otherwise the selected ones.
  setHovered: (query, key) => (app.hovered = { query, key }),
  focused() {
    const { query, key } = app.hovered;
    return query === null && key === null ? { query: app.state.query, key: app.state.key } : { query, key };
  },
  // The same as one token.
  focusedToken() {
    const { query, key } = app.focused();
    return query !== null ? { role: "query", index: query } : key !== null ? { role: "key", index: key } : null;
  },
  hoverToken: (token) => app.setHovered(token?.role === "query" ? token.index : null, token?.role === "key" ? token.index : null),
  isSelected: ({ role, index }) => (role === "query" ? app.state.query === index : app.state.query === null && app.state.key === index),
  select: (token) => app.set(token?.role === "key" ? { query: null, key: token.index } : { query: token?.index ?? null }),
  toggle: (token) => app.select(app.isSelected(token) ? null : token),
  // Move along the sequence of the selected token, or to the other sequence.
  moveSelection(step, otherRole) {
    const { query, key } = app.state;
    const role = query === null && key !== null ? "key" : "query";
    const positions = app.positions(otherRole || role);
    const at = app.positions(role).indexOf(role === "key" ? key : query);
    app.selectAndReveal({ role: otherRole || role, index: positions[clamp(at + step, 0, positions.length - 1)] });
  },
  selectAndReveal(token) {
    app.select(token);
    app.revealSelection();
  },
  revealSelection() {
    const { query, key } = app.state;
    if (query !== null || key !== null) app.view().reveal?.(query === null ? { role: "key", index: key } : { role: "query", index: query });
  },

  // A token with its strongest weights.
  tokenTooltip({ role, index }) {
    const matrix = app.matrices.current();
    if (!matrix) return [];
    const isQuery = role === "query";
    const [row, other] = isQuery ? [matrix.row(index), "key"] : [matrix.column(index), "query"];
    const best = strongest(row, 4, app.positions(other)).filter((position) => row[position] !== 0);
    const text = (position) => (isQuery ? matrix.text(index, position) : matrix.text(position, index));
    const title = `Strongest ${isQuery ? "keys" : "queries"} of ${app.tokenText(role, index)}`;
    return [title, ...best.map((position) => `${text(position)}  ${app.tokenText(other, position)}`)];
  },
  axisTitles: () => (app.layer().kind === "cross" ? ["Queries (target)", "Keys (source)"] : ["Queries", "Keys"]),
  describe() {
    const { query, key } = app.focused();
    const matrix = app.matrices.current();
    if (!matrix || (query === null && key === null)) return "";
    const [q] = query === null ? strongest(matrix.column(key), 1, app.queries()) : [query];
    const [k] = key === null ? strongest(matrix.row(query), 1, app.keys()) : [key];
    const note = query === null ? ", strongest query" : key === null ? ", strongest key" : "";
    return `${app.tokenText("query", q)} → ${app.tokenText("key", k)}${note}: ${matrix.text(q, k)} · ${app.matrixName()}`;
  },
  setStatus(message) {
    const text = message || (app.isTouch() ? app.view().touch : `Keyboard: ${app.view().keys}`);
    if (status.textContent !== text) status.textContent = text; // screen readers repeat it otherwise
    status.classList.toggle("idle", !message);
  },
  drawLoading(renderer, box) {
    app.loading = true;
    renderer.text("Loading…", box.x + box.width / 2, box.y + box.height / 2, { ...app.textStyles.note, align: "center" });
  },

  highlight: (selected) => ({ fill: selected ? app.colors.accent : app.colors.mark, alpha: selected ? 0.16 : 0.5, radius: 5 }),
  matchesSearch: (token) => app.searchText !== "" && token.toLowerCase().includes(app.searchText),
  searchResults() {
    const roles = app.isSelfAttention(app.layer()) ? ["query"] : ["query", "key"];
    const matches = (role) => app.positions(role).filter((index) => app.matchesSearch(app.sequence(role).tokens[index]));
    return roles.flatMap((role) => matches(role).map((index) => ({ role, index })));
  },
  search(text) {
    app.searchText = text.trim().toLowerCase();
    const [first] = app.searchResults();
    if (first) app.view().reveal?.(first);
    app.refresh();
  },
  selectResult(step) {
    const results = app.searchResults();
    if (!results.length) return;
    const at = results.findIndex(app.isSelected);
    app.selectAndReveal(results[at < 0 ? 0 : (at + step + results.length) % results.length]);
  },

  refresh() {
    app.viewport.node.ariaBusy = true;
    frame ||= requestAnimationFrame(() => {
      frame = 0;
      revealPending = app.viewport.show(app.view()) || revealPending;
      app.matrices.newFrame();
      controls.update();
      app.loading = false;
      app.viewport.draw();
      if (revealPending && !app.loading) (revealPending = false), app.revealSelection();
      app.viewport.node.ariaBusy = app.loading || frame !== 0;
      inspector.update();
      app.setStatus(app.notice || (app.view().describe ? app.view() : app).describe());
      app.viewport.node.setAttribute("aria-labelledby", `tab-${app.state.view}`);
      document.documentElement.dataset.view = app.state.view;
    });
  },
};

// A sequence of words instead of tokens. Patches are words of one token.
function joinedSequence({ special, patches, segments, words: { texts, starts } }) {
  return {
    tokens: texts, words: null,
    special: [...starts.keys()].filter((word) => special.includes(starts[word])),
    patches: patches && { ...patches, prefix: starts.indexOf(patches.prefix) },
    segments: segments && starts.map((start) => segments[start]),
  };
}

// The views that apply to a layer.
function availableViews({ example, layer }) {
  const { sequences, shape, hasTemperature } = app.meta.examples[example].layers[layer];
  const [query, key] = sequences.map((name) => app.meta.examples[example][name]);
  const applies = {
    heads: true, grid: true, matrix: true, temperature: hasTemperature,
    image: key.patches && key.tokens.length === shape[2],
    alignment: sequences[0] !== sequences[1] && !key.patches && !query.patches,
  };
  return VIEWS.filter((view) => applies[view]);
}

let frame = 0;
let revealPending = false; // whether a new view must still be scrolled to the selection
app.payload = createPayload(app.meta, () => app.refresh());
app.matrices = createMatrices(app);
app.viewport = createViewport(app);
const views = {
  heads: headsView(app), grid: gridView(app), matrix: matrixView(app),
  image: imageView(app), alignment: alignmentView(app), temperature: temperatureView(app),
};

DEFAULTS.join = app.meta.joinSubwords;
app.state = { ...DEFAULTS };
const status = element("div", { className: "status idle", role: "status" });
const controls = createControls(app);
const inspector = createInspector(app);
const main = element("main", {}, app.viewport.node, inspector.node);
const footer = element("footer", {}, status, controls.zoom);
document.body.prepend(controls.header, controls.toolbar, main, footer); // before the weights, which may still be loading

const start = () => app.set({ ...DEFAULTS, ...fromHash(location.hash) });
addEventListener("hashchange", () => location.hash.slice(1) !== toHash(app.state) && start());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => app.set({}));
addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !app.view().escape?.()) app.set({ query: null, key: null });
});
start();

// The header and the toolbar: tabs, selection of layer and heads, display options, search.

import { button, element } from "./elements.js";
import { exportView } from "./export.js";
import { clamp, displayText } from "./format.js";
import { LINES, SENTENCES, VIEWS, mostInformative } from "./state.js";

const HEAD_HINT = "Click to toggle; double-click or Shift+Enter to show only this head";
const KINDS = ["relevance", "rollout", "encoder", "decoder", "cross"];

export function createControls(app) {
  const tabs = createTabs(app);
  const search = createSearch(app);
  const groups = [layerControls(app), headControls(app), displayControls(app)];
  const toolbar = element("div", { className: "toolbar", role: "group", ariaLabel: "Layer, heads and display options" }, ...groups.map(({ node }) => node));
  const otherTheme = () => (app.mode === "dark" ? "light" : "dark");
  const theme = button({ className: "tool", onclick: () => app.set({ theme: otherTheme() }) });
  const save = (format) => {
    const label = `Save this view as ${format}`;
    return button({ className: "tool", title: label, ariaLabel: label, onclick: () => exportView(app, format.toLowerCase()) }, format);
  };
  // In a narrow window, all controls but tabs and layers are folded away.
  const fold = button({ className: "tool fold", ariaExpanded: "false", onclick: () => {
    const isOpen = document.body.classList.toggle("unfolded");
    fold.ariaExpanded = isOpen;
  } }, "Options");
  const header = element("header", {},
    element("h1", { textContent: app.meta.title, title: app.meta.title }), fold, tabs.node,
    element("div", { className: "tools" }, search.node, save("SVG"), save("PNG"), theme));
  return {
    header, toolbar, zoom: groups[2].zoom,
    update() {
      [tabs, ...groups, search].forEach((control) => control.update());
      theme.textContent = capitalize(otherTheme());
      theme.ariaLabel = `Use ${otherTheme()} colors`;
    },
  };
}

const capitalize = (word) => word[0].toUpperCase() + word.slice(1);

function createTabs(app) {
  const buttons = VIEWS.map((view) => button({
    role: "tab", id: `tab-${view}`, "aria-controls": "viewport", onclick: () => app.set({ view, from: null }),
  }, capitalize(view)));
  const node = element("div", { className: "tabs", role: "tablist", ariaLabel: "Views" }, ...buttons);
  node.addEventListener("keydown", (event) => {
    const available = app.views();
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const view = available[(available.indexOf(app.state.view) + step + available.length) % available.length];
    app.set({ view, from: null });
    buttons[VIEWS.indexOf(view)].focus();
  });
  return {
    node,
    update: () => buttons.forEach((tab, i) => {
      const selected = app.state.view === VIEWS[i];
      tab.hidden = !app.views().includes(VIEWS[i]);
      tab.setAttribute("aria-selected", selected);
      tab.tabIndex = selected ? 0 : -1;
    }),
  };
}

const field = (label, ...children) => element("label", { className: "field" }, element("span", { textContent: label }), ...children);

// The end of a long layer name, which is the more specific part.
const shortName = (name) => (name.length > 30 ? `…${name.slice(-29).replace(/^[^.]*\./, "")}` : name);

// Fill a select only if its options change, so that an open menu stays open.
function setOptions(select, options) {
  const id = JSON.stringify(options);
  if (select.dataset.id === id) return;
  select.dataset.id = id;
  select.replaceChildren(...options.map(([value, text, disabled]) => element("option", { value, disabled: Boolean(disabled) }, text)));
}

function layerControls(app) {
  const select = (ariaLabel, onchange) => element("select", { ariaLabel, onchange });
  const noSelection = { query: null, key: null };
  const example = select("Example", () => app.set({ example: Number(example.value), ...noSelection }));
  const kind = select("Attention", () => app.set({ layer: mostInformative(app.example().layers, app.layersOfKind(kind.value)), ...noSelection }));
  const layer = select("Layer", () => app.set({ layer: Number(layer.value) }));
  const moveLayer = (step) => {
    const layers = app.layersOfKind();
    app.set({ layer: layers[clamp(layers.indexOf(app.state.layer) + step, 0, layers.length - 1)] });
  };
  const back = button({ className: "tool", onclick: () => app.view().escape() }, "‹ All heads");
  const query = select("Query", () => app.set({ query: Number(query.value) }));
  const stepper = element("span", { className: "stepper" },
    button({ className: "step", ariaLabel: "Previous layer", onclick: () => moveLayer(-1) }, "‹"), layer,
    button({ className: "step", ariaLabel: "Next layer", onclick: () => moveLayer(1) }, "›"));
  const fields = [field("Example", example), field("Attention", kind), field("Layer", stepper), field("Query", query)];
  return {
    node: element("div", { className: "group" }, back, ...fields),
    update() {
      const { layers } = app.example();
      const kinds = KINDS.filter((name) => layers.some((other) => other.kind === name));
      setOptions(example, app.meta.examples.map(({ name }, i) => [i, displayText(name)]));
      setOptions(kind, kinds.map((name) => [name, capitalize(name)]));
      setOptions(layer, app.layersOfKind().map((i) => [i, `${app.depth(i)} · ${shortName(displayText(layers[i].name))}${app.isNearUniform(i) ? " ≈" : ""}`]));
      layer.title = displayText(app.layer().name) + (app.isNearUniform(app.state.layer, [...app.layer().heads.keys()]) ? ", nearly uniform" : "");
      [example.value, kind.value, layer.value] = [app.state.example, app.layer().kind, app.state.layer];
      const { view, from } = app.state;
      const hidden = [app.meta.examples.length < 2, kinds.length < 2, view === "grid" || app.combineMode() === "layers", view !== "temperature"];
      hidden.forEach((isHidden, i) => (fields[i].hidden = isHidden));
      back.hidden = from !== "grid";
      if (view !== "temperature") return;
      setOptions(query, app.queries().map((index) => [index, displayText(app.queryTokens()[index])]));
      query.value = app.view().query();
    },
  };
}

function headControls(app) {
  const chips = element("div", { className: "chips", role: "group", ariaLabel: "Heads" });
  const combine = element("select", { ariaLabel: "Combine", onchange: () => app.set({ combine: combine.value }) });
  let builtFor = "";
  const showOnly = (head) => app.set({ heads: [head] });
  const toggle = (head) => {
    const heads = app.selectedHeads();
    if (heads.length === 1 && heads[0] === head) (app.notice = "At least one head must be selected."), app.refresh();
    else app.set({ heads: heads.includes(head) ? heads.filter((other) => other !== head) : [...heads, head].sort((a, b) => a - b) });
  };
  const group = element("div", { className: "heads" }, element("span", { className: "legend", textContent: "Heads" }), chips);
  const combineField = field("Combine", combine);
  return {
    node: element("div", { className: "group" }, group, combineField),
    update() {
      const names = app.layer().heads;
      const { uniform } = app.layer();
      const id = [app.mode, ...names, "uniform", ...uniform].join(" ");
      if (builtFor !== id) {
        builtFor = id;
        chips.replaceChildren(...names.map((name, head) => {
          const dot = element("span", { className: "dot" });
          dot.style.background = app.headColor(head);
          const mark = uniform.includes(head) ? " ≈" : "";
          return button({
            className: "chip", ariaLabel: `Head ${name}${mark && ", nearly uniform"}`,
            onclick: (event) => (event.shiftKey ? showOnly : toggle)(head), ondblclick: () => showOnly(head),
          }, dot, name + mark);
        }), button({ className: "chip", ariaLabel: "All heads", onclick: () => app.set({ heads: null }) }, "all"));
      }
      const [heads, usesAll] = [app.selectedHeads(), app.usesAllHeads()];
      [...chips.children].forEach((chip, head) => {
        const hint = uniform.includes(head) ? `Attends to all keys nearly equally. ${HEAD_HINT}` : HEAD_HINT;
        [chip.disabled, chip.title] = usesAll ? [true, "Rollout and the mean over layers use all heads"] : [false, hint];
        chip.ariaPressed = head < names.length ? heads.includes(head) : heads.length === names.length;
      });
      const canRollout = app.canRollout();
      const separate = app.state.view === "heads"; // the other views show one matrix, so heads are always combined
      const labels = { each: "Each head", mean: "Mean", max: "Max", rollout: "Rollout", layers: "Mean over layers" };
      const isDisabled = { rollout: !canRollout, layers: !app.canAverageLayers() };
      setOptions(combine, Object.keys(labels).slice(separate ? 0 : 1).map((mode) => [mode, labels[mode], isDisabled[mode]]));
      combine.value = separate && app.state.combine === "each" ? "each" : app.combineMode();
      group.hidden = names.length < 2 || app.state.view === "grid";
      combineField.hidden = app.state.view === "grid" || (names.length < 2 && !canRollout && !app.canAverageLayers());
    },
  };
}

function displayControls(app) {
  const slider = (name, label, min, max, toState, fromState) => {
    const value = element("output", {});
    const oninput = () => app.set({ [name]: toState(Number(input.value)) });
    const input = element("input", { type: "range", min, max, step: "any", ariaLabel: label, oninput });
    const update = () => {
      input.value = fromState(app.state[name]);
      value.textContent = app.state[name].toFixed(2);
    };
    return { node: field(label, input, value), update };
  };
  const opacity = slider("opacity", "Opacity", 0, 1, (x) => x, (x) => x);
  const fromLog = (x) => (Math.abs(x) < 0.02 ? 1 : +(10 ** x).toFixed(3)); // snaps to 1 in the middle
  const temperature = slider("temperature", "Temperature", -1, 1, fromLog, Math.log10);
  const checkbox = (name, label, others = {}) => {
    const input = element("input", { type: "checkbox", onchange: () => app.set({ [name]: input.checked, ...others }) });
    return { input, node: element("label", { className: "check" }, input, label) };
  };
  const [smooth, hide] = [checkbox("smooth", "Smooth"), checkbox("hide", "Hide special tokens")];
  const join = checkbox("join", "Join subwords", { query: null, key: null }); // words have other positions
  const oneScale = checkbox("oneScale", "One scale");
  oneScale.node.title = "Maps that are shown together have the same scale";
  const choice = (name, label, texts) => {
    const input = element("select", { ariaLabel: label, onchange: () => app.set({ [name]: input.value }) });
    setOptions(input, texts);
    return { input, node: field(label, input) };
  };
  const lines = choice("lines", "Lines", LINES.map((rule) => [rule, lineText(rule)]));
  const sentences = choice("sentences", "Sentences", SENTENCES.map((pair) => [pair, pair === "all" ? "All" : `${pair[0]} → ${pair[1]}`]));
  const zoomButton = (ariaLabel, factor, text) =>
    button({ className: "step", ariaLabel, onclick: () => app.viewport.zoom(factor || 1 / app.state.zoom) }, text);
  const zoom = element("span", { className: "stepper zoom" },
    zoomButton("Zoom out", 0.8, "−"), zoomButton("Reset zoom", 0, ""), zoomButton("Zoom in", 1.25, "+"));
  const reset = button({ className: "tool changed", title: "Show the recorded weights", onclick: () => app.set({ temperature: 1 }) });
  return {
    node: element("div", { className: "group" }, lines.node, sentences.node, temperature.node, opacity.node, smooth.node, oneScale.node, join.node, hide.node, reset),
    zoom,
    update() {
      const { view } = app.state;
      [opacity, temperature].forEach((control) => control.update());
      [[smooth, "smooth"], [hide, "hide"], [join, "join"], [oneScale, "oneScale"]].forEach(([control, name]) => (control.input.checked = app.state[name]));
      [lines.input.value, sentences.input.value] = [app.state.lines, app.state.sentences];
      const has = (property) => ["query", "key"].some((role) => app.tokenSequence(role)[property]);
      lines.node.hidden = !["heads", "alignment"].includes(view);
      sentences.node.hidden = !has("segments");
      join.node.hidden = !has("words");
      oneScale.node.hidden = !["grid", "image"].includes(view);
      opacity.node.hidden = smooth.node.hidden = view !== "image";
      temperature.node.hidden = view !== "temperature";
      hide.node.hidden = !(app.sequence("query").special.length || app.sequence("key").special.length);
      zoom.hidden = !app.view().scale;
      zoom.children[1].textContent = `${Math.round(100 * app.state.zoom)} %`;
      reset.hidden = app.state.temperature === 1;
      reset.textContent = view === "temperature" ? "Reset" : `Temperature ${app.state.temperature.toFixed(2)}, reset`;
    },
  };
}

function lineText(rule) {
  if (rule === "auto") return "Strongest";
  return rule.includes(".") ? `Weights from ${rule}` : `${rule} per query`;
}

function createSearch(app) {
  const [count, label] = [element("output", { className: "count" }), "Find a token"];
  const onkeydown = (event) => {
    if (event.key === "Enter") app.selectResult(event.shiftKey ? -1 : 1);
    if (event.key !== "Escape") return;
    app.search((input.value = ""));
    event.stopPropagation();
  };
  const oninput = () => app.search(input.value);
  const input = element("input", { type: "search", placeholder: label, ariaLabel: label, spellcheck: false, autocomplete: "off", oninput, onkeydown });
  const node = element("div", { className: "search" }, count, input);
  return {
    node,
    update() {
      node.hidden = app.state.view === "grid";
      const results = app.searchResults().length;
      count.textContent = app.searchText ? (results ? `${results} found` : "none") : "";
    },
  };
}

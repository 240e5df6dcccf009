// Everything above the drawing: tabs, what to look at, and how.

import { button, clamp, el, shown } from "./dom.js";
import { exportView } from "./export.js";
import { VIEWS } from "./state.js";

const ALONE = "Click to switch; double-click, or Shift and Enter, to see it alone";
const KINDS = ["encoder", "decoder", "cross"];

export function openControls(app) {
  const tabs = openTabs(app);
  const finder = search(app);
  const groups = [picks(app), heads(app), looks(app)];
  const toolbar = el("div", { className: "toolbar", role: "group", ariaLabel: "What to look at" }, ...groups.map(({ node }) => node));
  const other = () => (app.mode === "dark" ? "light" : "dark");
  const theme = button({ className: "tool", onclick: () => app.set({ theme: other() }) });
  const save = (format) => {
    const does = `Save this view as ${format}`;
    return button({ className: "tool", title: does, ariaLabel: does, onclick: () => exportView(app, format.toLowerCase()) }, format);
  };
  const header = el("header", {},
    el("h1", { textContent: app.meta.title, title: app.meta.title }), tabs.node,
    el("div", { className: "tools" }, finder.node, save("SVG"), save("PNG"), theme));
  return {
    header, toolbar, zoom: groups[2].zoom,
    update() {
      tabs.update();
      [...groups, finder].forEach((part) => part.update());
      theme.textContent = capital(other());
      theme.ariaLabel = `Use ${other()} colors`;
    },
  };
}

const capital = (word) => word[0].toUpperCase() + word.slice(1);

function openTabs(app) {
  const buttons = VIEWS.map((view) => button({
    role: "tab", id: `tab-${view}`, "aria-controls": "stage", onclick: () => app.set({ view, from: null }),
  }, capital(view)));
  const node = el("div", { className: "tabs", role: "tablist", ariaLabel: "Views" }, ...buttons);
  node.addEventListener("keydown", (event) => {
    const open = app.views();
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const view = open[(open.indexOf(app.state.view) + step + open.length) % open.length];
    app.set({ view, from: null });
    buttons[VIEWS.indexOf(view)].focus();
  });
  return {
    node,
    update: () => buttons.forEach((button, i) => {
      const on = app.state.view === VIEWS[i];
      button.hidden = !app.views().includes(VIEWS[i]);
      button.setAttribute("aria-selected", on);
      button.tabIndex = on ? 0 : -1;
    }),
  };
}

const field = (label, ...inner) => el("label", { className: "field" }, el("span", { textContent: label }), ...inner);

// The end of a long name tells more than its start.
const tail = (name) => (name.length > 30 ? `…${name.slice(-29).replace(/^[^.]*\./, "")}` : name);

// Fill a select only when its choices change, so that an open one stays open.
function choices(select, options) {
  const id = JSON.stringify(options);
  if (select.dataset.id === id) return;
  select.dataset.id = id;
  select.replaceChildren(...options.map(([value, text, off]) => el("option", { value, disabled: Boolean(off) }, text)));
}

function picks(app) {
  const pick = (ariaLabel, onchange) => el("select", { ariaLabel, onchange });
  const fresh = { token: null, key: null };
  const example = pick("Example", () => app.set({ example: Number(example.value), ...fresh }));
  const kind = pick("Attention", () => app.set({ layer: app.layersOfKind(kind.value)[0], ...fresh }));
  const layer = pick("Layer", () => app.set({ layer: Number(layer.value) }));
  const step = (by) => {
    const list = app.layersOfKind();
    app.set({ layer: list[clamp(list.indexOf(app.state.layer) + by, 0, list.length - 1)] });
  };
  const back = button({ className: "tool", onclick: () => app.view().escape() }, "‹ All heads");
  const token = pick("Token", () => app.set({ token: Number(token.value) }));
  const stepper = el("span", { className: "stepper" },
    button({ className: "step", ariaLabel: "Layer before", onclick: () => step(-1) }, "‹"), layer,
    button({ className: "step", ariaLabel: "Next layer", onclick: () => step(1) }, "›"));
  const fields = [field("Example", example), field("Attention", kind), field("Layer", stepper), field("Token", token)];
  return {
    node: el("div", { className: "group" }, back, ...fields),
    update() {
      const { layers } = app.example();
      const kinds = KINDS.filter((one) => layers.some((other) => other.kind === one));
      choices(example, app.meta.examples.map(({ name }, i) => [i, shown(name)]));
      choices(kind, kinds.map((one) => [one, capital(one)]));
      choices(layer, app.layersOfKind().map((i) => [i, `${app.depth(i)} · ${tail(shown(layers[i].name))}`]));
      layer.title = shown(app.layer().name);
      [example.value, kind.value, layer.value] = [app.state.example, app.layer().kind, app.state.layer];
      const { view, from } = app.state;
      const hidden = [app.meta.examples.length < 2, kinds.length < 2, view === "grid", view !== "temperature"];
      hidden.forEach((off, i) => (fields[i].hidden = off));
      back.hidden = from !== "grid";
      if (view !== "temperature") return;
      choices(token, app.rows().map((row) => [row, shown(app.queryNames()[row])]));
      token.value = app.view().query();
    },
  };
}

function heads(app) {
  const chips = el("div", { className: "chips", role: "group", ariaLabel: "Heads" });
  const combine = el("select", { ariaLabel: "Combine", onchange: () => app.set({ combine: combine.value }) });
  let made = "";
  const alone = (head) => app.set({ heads: [head] });
  const toggle = (head) => {
    const on = app.headsOn();
    if (on.length === 1 && on[0] === head) (app.notice = "The last head stays on."), app.refresh();
    else app.set({ heads: on.includes(head) ? on.filter((one) => one !== head) : [...on, head].sort((a, b) => a - b) });
  };
  const group = el("div", { className: "heads" }, el("span", { className: "legend", textContent: "Heads" }), chips);
  const how = field("Combine", combine);
  return {
    node: el("div", { className: "group" }, group, how),
    update() {
      const names = app.layer().heads;
      const id = [app.mode, ...names].join(" ");
      if (made !== id) {
        made = id;
        chips.replaceChildren(...names.map((name, head) => {
          const dot = el("span", { className: "dot" });
          dot.style.background = app.color(head);
          return button({
            className: "chip", ariaLabel: `Head ${name}`,
            onclick: (event) => (event.shiftKey ? alone : toggle)(head), ondblclick: () => alone(head),
          }, dot, name);
        }), button({ className: "chip", ariaLabel: "All heads", onclick: () => app.set({ heads: null }) }, "all"));
      }
      const [on, all] = [app.headsOn(), app.combining() === "rollout"];
      [...chips.children].forEach((chip, head) => {
        [chip.disabled, chip.title] = all ? [true, "Rollout takes all heads"] : [false, ALONE];
        chip.ariaPressed = head < names.length ? on.includes(head) : on.length === names.length;
      });
      const many = app.canRoll();
      const apart = app.state.view === "heads"; // elsewhere one map is shown, so heads that are on are combined
      const called = { each: "Each head", mean: "Mean", max: "Max", rollout: "Rollout" };
      choices(combine, Object.keys(called).slice(apart ? 0 : 1).map((one) => [one, called[one], one === "rollout" && !many]));
      combine.value = apart && app.state.combine === "each" ? "each" : app.combining();
      group.hidden = names.length < 2 || app.state.view === "grid";
      how.hidden = app.state.view === "grid" || (names.length < 2 && !many);
    },
  };
}

function looks(app) {
  const range = (name, label, min, max, toState, fromState) => {
    const value = el("output", {});
    const oninput = () => app.set({ [name]: toState(Number(input.value)) });
    const input = el("input", { type: "range", min, max, step: "any", ariaLabel: label, oninput });
    const update = () => {
      input.value = fromState(app.state[name]);
      value.textContent = app.state[name].toFixed(2);
    };
    return { node: field(label, input, value), update };
  };
  const opacity = range("opacity", "Opacity", 0, 1, (x) => x, (x) => x);
  const warmth = (x) => (Math.abs(x) < 0.02 ? 1 : +(10 ** x).toFixed(3)); // the middle of the slider is exactly 1
  const temperature = range("temperature", "Temperature", -1, 1, warmth, Math.log10);
  const check = (name, label) => {
    const input = el("input", { type: "checkbox", onchange: () => app.set({ [name]: input.checked }) });
    return { input, node: el("label", { className: "check" }, input, label) };
  };
  const [smooth, hide] = [check("smooth", "Smooth"), check("hide", "Hide special tokens")];
  const step = (ariaLabel, by, text) => button({ className: "step", ariaLabel, onclick: () => app.stage.zoom(by || 1 / app.state.zoom) }, text);
  const zoom = el("span", { className: "stepper zoom" }, step("Zoom out", 0.8, "−"), step("Reset zoom", 0, ""), step("Zoom in", 1.25, "+"));
  const reset = button({ className: "tool changed", title: "Weights are re-sharpened; click to see them as recorded",
    onclick: () => app.set({ temperature: 1 }) });
  return {
    node: el("div", { className: "group" }, temperature.node, opacity.node, smooth.node, hide.node, reset),
    zoom,
    update() {
      const { view } = app.state;
      [opacity, temperature].forEach((one) => one.update());
      [smooth.input.checked, hide.input.checked] = [app.state.smooth, app.state.hide];
      opacity.node.hidden = smooth.node.hidden = view !== "image";
      temperature.node.hidden = view !== "temperature";
      hide.node.hidden = !(app.side("query").special.length || app.side("key").special.length);
      zoom.hidden = !app.view().scale;
      zoom.children[1].textContent = `${Math.round(100 * app.state.zoom)} %`;
      reset.hidden = app.state.temperature === 1;
      reset.textContent = view === "temperature" ? "Reset" : `Temperature ${app.state.temperature.toFixed(2)}, reset`;
    },
  };
}

function search(app) {
  const [count, name] = [el("output", { className: "count" }), "Find a token"];
  const onkeydown = (event) => {
    if (event.key === "Enter") app.findNext(event.shiftKey ? -1 : 1);
    if (event.key !== "Escape") return;
    app.find((input.value = ""));
    event.stopPropagation();
  };
  const oninput = () => app.find(input.value);
  const input = el("input", { type: "search", placeholder: name, ariaLabel: name, spellcheck: false, autocomplete: "off", oninput, onkeydown });
  const node = el("div", { className: "search" }, count, input);
  return {
    node,
    update() {
      node.hidden = app.state.view === "grid";
      const found = app.found().length;
      count.textContent = app.wanted ? (found ? `${found} found` : "none") : "";
    },
  };
}

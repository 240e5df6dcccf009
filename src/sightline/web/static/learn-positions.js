// Sinusoidal positions: the table, one channel as a wave, and how similar positions are.
import { matrixImage } from "../view/colors.js";
import { element, svg } from "../view/elements.js";
import { slider } from "./widgets.js";

const [POSITIONS, CHANNELS] = [64, 64];
const [WIDTH, HEIGHT, LEFT] = [460, 116, 34];

// As `sightline.layers.sinusoids`: sines in even channels, cosines in odd ones.
const value = (position, channel) => {
  const angle = position / 10000 ** ((2 * Math.floor(channel / 2)) / CHANNELS);
  return channel % 2 ? Math.cos(angle) : Math.sin(angle);
};
const TABLE = Array.from({ length: POSITIONS }, (_, position) => Array.from({ length: CHANNELS }, (_, channel) => value(position, channel)));
const similarity = (a, b) => TABLE[a].reduce((sum, x, i) => sum + x * TABLE[b][i], 0) / (CHANNELS / 2); // every position has the length √(CHANNELS / 2)

export function positionsLesson() {
  const state = { position: 20, channel: 10 };
  const matrix = { queries: POSITIONS, keys: CHANNELS, max: 1, data: TABLE.flat() };
  const picture = element("canvas", { width: CHANNELS, height: POSITIONS, role: "img", ariaLabel: "64 positions as rows and 64 channels as columns; orange is positive, blue negative" });
  const cross = element("div", { className: "cross" });
  const table = element("div", { className: "position-table" }, picture, cross);
  const [wave, alike] = [plot("Values of one channel over the positions"), plot("Similarity of one position to all others")];
  const [waveTitle, alikeTitle] = [element("h4", {}), element("h4", {})];
  const summary = element("p", { className: "finding", role: "status" });
  const position = slider({ label: "Position (row)", min: 0, max: POSITIONS - 1, step: 1, value: state.position, onInput: (x) => set({ position: x }) });
  const channel = slider({ label: "Channel (column)", min: 0, max: CHANNELS - 1, step: 1, value: state.channel, onInput: (x) => set({ channel: x }) });

  const fromPointer = (event) => {
    const box = picture.getBoundingClientRect();
    const at = (offset, size, count) => Math.min(count - 1, Math.max(0, Math.floor((offset / size) * count)));
    set({ position: at(event.clientY - box.top, box.height, POSITIONS), channel: at(event.clientX - box.left, box.width, CHANNELS) });
  };
  table.addEventListener("pointerdown", fromPointer);
  table.addEventListener("pointermove", (event) => (event.buttons || event.pointerType === "mouse") && fromPointer(event));

  function set(changes) {
    Object.assign(state, changes);
    position.set(state.position), channel.set(state.channel);
    update();
  }

  function update() {
    cross.style.setProperty("--row", state.position / POSITIONS);
    cross.style.setProperty("--column", state.channel / CHANNELS);
    waveTitle.textContent = `Channel ${state.channel}: a ${state.channel % 2 ? "cosine" : "sine"} with a period of ${period(state.channel)} positions`;
    alikeTitle.textContent = `Similarity of position ${state.position} to all positions`;
    wave.update(TABLE.map((row) => row[state.channel]), state.position);
    const similarities = TABLE.map((_, other) => similarity(state.position, other));
    alike.update(similarities, state.position);
    const next = Math.min(POSITIONS - 1, state.position + 1);
    const far = state.position < POSITIONS / 2 ? POSITIONS - 1 : 0;
    summary.textContent = `Position ${state.position} is most like its neighbors: ${similarities[next].toFixed(2)} to position ${next}, ${similarities[far].toFixed(2)} to position ${far}. This is how a model knows what is near.`;
  }
  const paint = () => {
    const context = picture.getContext("2d");
    context.drawImage(matrixImage(matrix, document.documentElement.dataset.theme ?? "light", true), 0, 0);
  };
  addEventListener("themechange", paint);
  paint();
  update();
  return [
    element("p", {}, "Attention has no order of its own: it would read “dog bites man” and “man bites dog” alike. So every position gets a pattern of waves, added to its word. Left channels change quickly, right ones slowly. Move over the table."),
    element("div", { className: "split" },
      element("div", { className: "stack" }, table, position.node, channel.node),
      element("div", { className: "stack" }, waveTitle, wave.node, alikeTitle, alike.node, summary)),
  ];
}

function period(channel) {
  const length = 2 * Math.PI * 10000 ** ((2 * Math.floor(channel / 2)) / CHANNELS);
  return length < 10 ? length.toFixed(1) : Math.round(length).toLocaleString("en");
}

// A curve over the positions, from -1 to 1, with a mark at one of them.
function plot(label) {
  const across = (i) => LEFT + (i / (POSITIONS - 1)) * (WIDTH - LEFT - 8);
  const up = (x) => 10 + ((1 - x) / 2) * (HEIGHT - 30);
  const line = svg("path", { class: "curve accent" });
  const marker = svg("path", { class: "marker" });
  const dot = svg("circle", { r: 4.5, class: "dot" });
  const grid = [1, 0, -1].flatMap((x) => {
    const mark = svg("text", { x: LEFT - 6, y: up(x) + 4, "text-anchor": "end" });
    mark.textContent = String(x).replace("-", "−");
    return [svg("path", { class: "grid", d: `M${LEFT} ${up(x)}H${WIDTH - 8}` }), mark];
  });
  const marks = [0, 16, 32, 48, 63].map((i) => {
    const mark = svg("text", { x: across(i), y: HEIGHT - 2, "text-anchor": "middle" });
    mark.textContent = String(i);
    return mark;
  });
  const node = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "chart", role: "img", "aria-label": label }, ...grid, ...marks, line, marker, dot);
  const update = (values, at) => {
    line.setAttribute("d", values.map((x, i) => `${i ? "L" : "M"}${across(i).toFixed(1)} ${up(x).toFixed(1)}`).join(""));
    marker.setAttribute("d", `M${across(at)} 10V${HEIGHT - 20}`);
    dot.setAttribute("cx", across(at)), dot.setAttribute("cy", up(values[at]));
  };
  return { node, update };
}

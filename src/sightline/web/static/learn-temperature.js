// The temperature: how much sharper or flatter weights become when scores are divided by it.
import { element, svg } from "../view/elements.js";
import { softmax } from "./softmax.js";
import { barList, percent, slider } from "./widgets.js";

const KEYS = [["tabby cat", 0.9], ["black cat", 0.8], ["small dog", 0.5], ["red car", 0.1]];
const COLORS = ["var(--s0)", "var(--s1)", "var(--s2)", "var(--s3)"];
const [LOW, HIGH, START] = [-2, 1, Math.log10(0.3)]; // powers of ten
const [WIDTH, HEIGHT, LEFT, TOP, BOTTOM] = [460, 230, 40, 12, 34];

const entropy = (weights) => -weights.reduce((sum, weight) => sum + (weight > 0 ? weight * Math.log2(weight) : 0), 0);

export function temperatureLesson() {
  const scores = KEYS.map(([, score]) => score);
  let power = START;
  const bars = barList("Weights at this temperature");
  const across = (p) => LEFT + ((p - LOW) / (HIGH - LOW)) * (WIDTH - LEFT - 8);
  const up = (weight) => TOP + (1 - weight) * (HEIGHT - TOP - BOTTOM);
  const lines = KEYS.map((_, i) => {
    const line = svg("path", { class: "curve" });
    line.style.stroke = COLORS[i];
    return line;
  });
  const marker = svg("path", { class: "marker" });
  const dots = KEYS.map((_, i) => {
    const dot = svg("circle", { r: 4.5 });
    dot.style.fill = COLORS[i];
    return dot;
  });
  const axes = [0, 0.5, 1].flatMap((weight) => [
    svg("path", { class: "grid", d: `M${LEFT} ${up(weight)}H${WIDTH - 8}` }),
    text(percent(weight), LEFT - 6, up(weight) + 4, "end")]);
  const marks = [-2, -1, 0, 1].map((p) => text(String(10 ** p), across(p), HEIGHT - 14, "middle"));
  const chart = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "chart", role: "img", "aria-label": "Weights of the four keys by temperature" },
    ...axes, ...marks, text("temperature", (LEFT + WIDTH) / 2, HEIGHT, "middle"), ...lines, marker, ...dots);
  chart.addEventListener("pointermove", (event) => event.buttons && fromPointer(event));
  chart.addEventListener("pointerdown", (event) => fromPointer(event));
  const summary = element("p", { className: "finding", role: "status" });
  const temperature = slider({ label: "Temperature", min: LOW, max: HIGH, step: 0.01, value: power, format: (p) => (10 ** p).toPrecision(2), onInput: (p) => ((power = p), update()) });
  const similarities = KEYS.map(([name], i) =>
    slider({ label: name, min: -1, max: 1, step: 0.01, value: scores[i], format: (x) => `cosine ${x.toFixed(2)}`, onInput: (x) => ((scores[i] = x), update()) }));

  function fromPointer(event) {
    const box = chart.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * WIDTH;
    power = Math.min(HIGH, Math.max(LOW, LOW + ((x - LEFT) / (WIDTH - LEFT - 8)) * (HIGH - LOW)));
    temperature.set(power);
    update();
  }

  function update() {
    const weights = softmax(scores, 10 ** power);
    const highest = Math.max(...weights);
    bars.update(KEYS.map(([name], i) => ({ name, share: weights[i], text: percent(weights[i]), color: COLORS[i], kind: weights[i] === highest ? "first" : "" })));
    const steps = Array.from({ length: 61 }, (_, i) => LOW + (i / 60) * (HIGH - LOW));
    const rows = steps.map((p) => softmax(scores, 10 ** p));
    lines.forEach((line, i) => line.setAttribute("d", rows.map((row, j) => `${j ? "L" : "M"}${across(steps[j]).toFixed(1)} ${up(row[i]).toFixed(1)}`).join("")));
    marker.setAttribute("d", `M${across(power)} ${TOP}V${HEIGHT - BOTTOM}`);
    dots.forEach((dot, i) => (dot.setAttribute("cx", across(power)), dot.setAttribute("cy", up(weights[i]))));
    const count = 2 ** entropy(weights);
    const feel = count < 1.15 ? "It looks at one key and ignores the rest." : count > 3.5 ? "It looks at everything equally, so it picks out nothing." : "It prefers some keys and still sees the others.";
    summary.textContent = `At temperature ${(10 ** power).toPrecision(2)}, the query looks at about ${count.toFixed(1)} of ${KEYS.length} keys. ${feel}`;
  }
  update();
  return [
    element("p", {}, "Cosines lie between −1 and 1, so they differ by little, and a softmax over them is almost flat. Dividing the scores by a temperature below 1 makes the weights sharper. A model learns its temperature."),
    element("div", { className: "split" },
      element("div", { className: "stack" }, temperature.node, chart, element("p", { className: "note" }, "Drag in the chart to change the temperature.")),
      element("div", { className: "stack" }, element("h4", {}, "Weights for the query “cat”"), bars.node, summary,
        element("details", {}, element("summary", {}, "Change how similar the keys are"), element("div", { className: "stack" }, ...similarities.map(({ node }) => node))))),
  ];
}

function text(content, x, y, anchor) {
  const node = svg("text", { x, y, "text-anchor": anchor });
  node.textContent = content;
  return node;
}

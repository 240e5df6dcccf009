// One step of attention: a query on a dial, keys around it, and values that are colors, so that their average can be seen.
import { element, svg } from "../view/elements.js";
import { softmax } from "./softmax.js";
import { barList, percent, slider } from "./widgets.js";

const KEYS = [["strawberry", 90, [226, 62, 87]], ["lemon", 330, [244, 205, 64]], ["blueberry", 210, [66, 102, 208]]]; // name, angle, color
const TEMPERATURE = 0.35;
const [SIDE, RADIUS] = [320, 104];
const radians = (angle) => (angle * Math.PI) / 180;
const at = (angle, radius) => [SIDE / 2 + radius * Math.cos(radians(angle)), SIDE / 2 - radius * Math.sin(radians(angle))];
const signed = (x) => x.toFixed(1).replace(/^-0\.0$/, "0.0").replace("-", "−");
const css = (color) => `rgb(${color.map(Math.round).join(" ")})`;

export function stepLesson() {
  let angle = 20;
  const bars = barList("Weights of the three keys");
  const arrow = svg("path", { class: "query-arrow" });
  const spokes = KEYS.map(([, keyAngle]) => {
    const [x, y] = at(keyAngle, RADIUS);
    return svg("path", { class: "spoke", d: `M${SIDE / 2} ${SIDE / 2}L${x} ${y}` });
  });
  const keys = KEYS.flatMap(([name, keyAngle, color]) => {
    const [x, y] = at(keyAngle, RADIUS);
    const dot = svg("circle", { cx: x, cy: y, r: 17 });
    dot.style.fill = css(color);
    const label = svg("text", { x, y: y < SIDE / 2 ? y - 26 : y + 36, "text-anchor": "middle" });
    label.textContent = name;
    return [dot, label];
  });
  const middle = svg("circle", { cx: SIDE / 2, cy: SIDE / 2, r: 27, class: "mix" });
  const dial = svg("svg", { viewBox: `0 18 ${SIDE} ${SIDE - 58}`, class: "dial", role: "img", "aria-label": "A query that points between three keys" }, svg("circle", { cx: SIDE / 2, cy: SIDE / 2, r: RADIUS, class: "ring" }), ...spokes, arrow, ...keys, middle);
  const turn = (event) => {
    const box = dial.getBoundingClientRect();
    const scale = SIDE / box.width; // the middle of the dial is not the middle of the picture
    const [x, y] = [(event.clientX - box.left) * scale - SIDE / 2, (event.clientY - box.top) * scale + 18 - SIDE / 2];
    angle = Math.round(((Math.atan2(-y, x) * 180) / Math.PI + 360) % 360);
    control.set(angle);
    update();
  };
  dial.addEventListener("pointerdown", (event) => (dial.setPointerCapture(event.pointerId), turn(event)));
  dial.addEventListener("pointermove", (event) => event.buttons && turn(event));
  const control = slider({ label: "Direction of the query", min: 0, max: 359, step: 1, value: angle, format: (x) => `${x}°`, onInput: (x) => ((angle = x), update()) });
  const swatch = element("div", { className: "mix-swatch", role: "img", ariaLabel: "The average color" });
  const formula = element("p", { className: "finding", role: "status" });

  function update() {
    const cosines = KEYS.map(([, keyAngle]) => Math.cos(radians(angle - keyAngle)));
    const weights = softmax(cosines, TEMPERATURE);
    const mix = [0, 1, 2].map((channel) => KEYS.reduce((sum, [, , color], i) => sum + weights[i] * color[channel], 0));
    const [x, y] = at(angle, RADIUS - 22);
    arrow.setAttribute("d", `M${SIDE / 2} ${SIDE / 2}L${x} ${y}`);
    spokes.forEach((spoke, i) => {
      spoke.style.stroke = css(KEYS[i][2]);
      spoke.style.strokeWidth = `${1 + 22 * weights[i]}px`;
    });
    middle.style.fill = swatch.style.background = css(mix);
    const highest = Math.max(...weights);
    bars.update(KEYS.map(([name, , color], i) => ({ name, share: weights[i], text: `score ${signed(cosines[i] / TEMPERATURE)}, weight ${percent(weights[i])}`, color: css(color), kind: weights[i] === highest ? "first" : "" })));
    formula.textContent = `The result is ${KEYS.map(([name], i) => `${percent(weights[i])} ${name}`).join(" + ")}.`;
  }
  update();
  return [
    element("p", {}, "Three keys stand around a query. Turn the query: the nearer it points to a key, the higher the score and the weight. Here the values are colors, so the average of the values is a color too. In a model they are lists of numbers."),
    element("div", { className: "split" }, element("div", { className: "stack" }, dial, control.node),
      element("div", { className: "stack" }, element("h4", {}, "Scores and weights"), bars.node, element("h4", {}, "The weighted average"), swatch, formula)),
  ];
}

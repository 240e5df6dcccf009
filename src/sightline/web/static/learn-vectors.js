// The magnitude trap: the dot product prefers a long vector, the cosine one with the same direction.
import { button, element, svg } from "../view/elements.js";
import { softmax } from "./softmax.js";
import { barList, percent } from "./widgets.js";

const UNIT = 30; // pixels per unit
const [LEFT, TOP, RIGHT, BOTTOM] = [-2.4, 7.4, 11, -1.6]; // of the plane that is shown
const COSINE_TEMPERATURE = 0.2;
const START = { query: [1.6, 2.4], cat: [4.2, 3.6], dog: [4, 0.5] };
const NAMES = { query: "Query", cat: "Cat", dog: "Dog" };
const MOVES = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };

const dot = (a, b) => a[0] * b[0] + a[1] * b[1];
const length = (a) => Math.hypot(...a);
const cosine = (a, b) => dot(a, b) / (length(a) * length(b));
const degrees = (a) => Math.round((Math.atan2(a[1], a[0]) * 180) / Math.PI);
const toScreen = ([x, y]) => [(x - LEFT) * UNIT, (TOP - y) * UNIT];

export function vectorsLesson() {
  const vectors = structuredClone(START);
  const [width, height] = [(RIGHT - LEFT) * UNIT, (TOP - BOTTOM) * UNIT];
  const plane = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "plane" });
  const [originX, originY] = toScreen([0, 0]);
  for (let x = Math.ceil(LEFT); x <= RIGHT; x++) plane.append(svg("path", { class: x ? "grid" : "axis", d: `M${toScreen([x, 0])[0]} 0v${height}` }));
  for (let y = Math.ceil(BOTTOM); y <= TOP; y++) plane.append(svg("path", { class: y ? "grid" : "axis", d: `M0 ${toScreen([0, y])[1]}h${width}` }));
  const arrows = Object.fromEntries(Object.keys(NAMES).map((name) => [name, arrow(name)]));
  const bars = { dot: barList("Weights by dot product"), cosine: barList("Weights by cosine") };
  const verdicts = { dot: element("p", { className: "verdict" }), cosine: element("p", { className: "verdict" }) };
  const summary = element("p", { className: "finding", role: "status" });

  function arrow(name) {
    const line = svg("path", { class: "shaft" });
    const head = svg("path", { class: "head", d: "M0 0l-13 -5.500v11Z" });
    const label = svg("text", { class: "name" });
    const grip = svg("circle", { class: "grip", r: 17 });
    const limits = { "aria-valuemin": 0, "aria-valuemax": Math.ceil(Math.hypot(RIGHT, TOP)) };
    const node = svg("g", { class: `vector ${name}`, tabindex: 0, role: "slider", "aria-label": `${NAMES[name]} vector`, ...limits }, line, head, label, grip);
    grip.addEventListener("pointerdown", (event) => {
      event.preventDefault();
      node.focus();
      grip.setPointerCapture(event.pointerId);
    });
    grip.addEventListener("pointermove", (event) => {
      if (!grip.hasPointerCapture(event.pointerId)) return;
      const box = plane.getBoundingClientRect();
      const scale = width / box.width / UNIT;
      place(name, [LEFT + (event.clientX - box.left) * scale, TOP - (event.clientY - box.top) * scale]);
    });
    node.addEventListener("keydown", (event) => {
      const move = MOVES[event.key];
      if (!move) return;
      event.preventDefault();
      place(name, vectors[name].map((value, i) => value + 0.25 * move[i]));
    });
    plane.append(node);
    return { node, line, head, label, grip };
  }

  function place(name, [x, y]) {
    const next = [Math.min(RIGHT - 0.4, Math.max(LEFT + 0.4, x)), Math.min(TOP - 0.4, Math.max(BOTTOM + 0.4, y))];
    if (length(next) >= 0.4) vectors[name] = next; // a vector without length has no direction
    update();
  }

  function update() {
    for (const [name, parts] of Object.entries(arrows)) {
      const [x, y] = toScreen(vectors[name]);
      const angle = (Math.atan2(y - originY, x - originX) * 180) / Math.PI;
      const size = Math.hypot(x - originX, y - originY);
      parts.line.setAttribute("d", `M${originX} ${originY}L${originX + ((x - originX) * (size - 9)) / size} ${originY + ((y - originY) * (size - 9)) / size}`);
      parts.head.setAttribute("transform", `translate(${x} ${y}) rotate(${angle})`);
      parts.grip.setAttribute("cx", x), parts.grip.setAttribute("cy", y);
      parts.label.setAttribute("x", x + (x > width - 60 || name === "query" ? -58 : 12)), parts.label.setAttribute("y", y - 10);
      parts.label.textContent = NAMES[name];
      parts.node.setAttribute("aria-valuenow", length(vectors[name]).toFixed(1));
      parts.node.setAttribute("aria-valuetext", `length ${length(vectors[name]).toFixed(1)}, angle ${degrees(vectors[name])} degrees`);
    }
    const { query } = vectors;
    const scores = { dot: ["cat", "dog"].map((name) => dot(query, vectors[name])), cosine: ["cat", "dog"].map((name) => cosine(query, vectors[name])) };
    const weights = { dot: softmax(scores.dot, Math.SQRT2), cosine: softmax(scores.cosine, COSINE_TEMPERATURE) };
    const winners = {};
    for (const [kind, list] of Object.entries(bars)) {
      list.update(["Cat", "Dog"].map((name, i) => ({
        name, share: weights[kind][i], kind: weights[kind][i] > 0.5 ? "first" : "",
        text: `score ${scores[kind][i].toFixed(2)}, weight ${percent(weights[kind][i])}`,
      })));
      winners[kind] = Math.abs(weights[kind][0] - weights[kind][1]) < 0.02 ? "neither" : weights[kind][0] > 0.5 ? "the cat" : "the dog";
      verdicts[kind].textContent = winners[kind] === "neither" ? "prefers neither" : `prefers ${winners[kind]}`;
    }
    const [catAngle, dogAngle] = ["cat", "dog"].map((name) => Math.round((Math.acos(Math.min(1, cosine(query, vectors[name]))) * 180) / Math.PI));
    summary.textContent = winners.dot === winners.cosine
      ? `Both agree. The query is ${catAngle}° from the cat and ${dogAngle}° from the dog. Make the arrow of the ${winners.dot === "the dog" ? "cat" : "dog"} longer without turning it.`
      : `The trap: the query is ${catAngle}° from the cat and ${dogAngle}° from the dog, but the dot product prefers ${winners.dot} because its arrow is longer.`;
  }

  const stretch = (name, factor) => place(name, vectors[name].map((value) => value * factor));
  const controls = element("div", { className: "tools" },
    button({ className: "tool", onclick: () => stretch("dog", 1.5) }, "Longer dog"),
    button({ className: "tool", onclick: () => stretch("dog", 1 / 1.5) }, "Shorter dog"),
    button({ className: "tool quiet", onclick: () => (Object.assign(vectors, structuredClone(START)), update()) }, "Reset"));
  update();
  const column = (kind, title, note) => element("div", {}, element("h4", {}, title, " ", verdicts[kind]), bars[kind].node, element("p", { className: "note" }, note));
  return [
    element("p", {}, "Words and images become arrows. A query attends to the keys that are like it. There are two common ways to compare arrows: the dot product, which grows with their length, and the cosine, which depends on their direction only. Drag the tips."),
    element("div", { className: "split" },
      element("div", {}, plane, controls),
      element("div", { className: "stack" },
        column("dot", "Dot product", "q · k / √D, then softmax."),
        column("cosine", "Cosine", `cos(q, k) / ${COSINE_TEMPERATURE}, then softmax. ${COSINE_TEMPERATURE} is the temperature.`), summary)),
  ];
}

// The Learn tab: how attention works, in pictures that are computed in the page.
import { element } from "../view/elements.js";
import { lengthsLesson } from "./learn-lengths.js";
import { masksLesson } from "./learn-masks.js";
import { positionsLesson } from "./learn-positions.js";
import { stepLesson } from "./learn-step.js";
import { temperatureLesson } from "./learn-temperature.js";
import { vectorsLesson } from "./learn-vectors.js";
import { lead } from "./widgets.js";

const LESSONS = [
  ["lesson-step", "One step of attention", stepLesson],
  ["lesson-vectors", "Direction or length?", vectorsLesson],
  ["lesson-temperature", "Temperature", temperatureLesson],
  ["lesson-masks", "Masks", masksLesson],
  ["lesson-positions", "Positions", positionsLesson],
  ["lesson-lengths", "Why attention?", lengthsLesson],
];
const STEPS = [
  ["Compare", "A query is compared with every key. The result is a score."],
  ["Mask", "Some keys may not be used. Their scores are removed."],
  ["Weigh", "The softmax turns scores into weights that sum to 1."],
  ["Average", "The values are averaged with these weights."],
];

export function start(panel) {
  const steps = element("ol", { className: "steps" }, ...STEPS.map(([name, text]) => element("li", {}, element("b", {}, name), element("span", {}, text))));
  const jump = (id) => document.getElementById(id).scrollIntoView({ behavior: "smooth" });
  const contents = element("nav", { className: "contents", ariaLabel: "Lessons" }, ...LESSONS.map(([id, title]) =>
    element("button", { type: "button", className: "tool", onclick: () => jump(id) }, title)));
  const lessons = LESSONS.map(([id, title, build], i) =>
    element("article", { className: "card lesson", id, ariaLabel: title }, element("h3", {}, element("span", { className: "number" }, String(i + 1)), title), ...build()));
  panel.append(
    lead("How attention works", "Attention lets a model look at the parts that matter. It takes four steps. Change the pictures below and see what each step does."),
    steps, contents, ...lessons);
}

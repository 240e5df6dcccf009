// One context vector against attention, by sentence length: measured translation quality, and what each decoder can look at.
import { element, svg } from "../view/elements.js";
import { slider } from "./widgets.js";

// Lower-cased BLEU by words of the source: German to English, Multi30k, test set of 2016, beam 5. From the first lines of
// benchmarks/results/multi30k-rnn.txt, multi30k-rnn-attention.txt and multi30k-transformer.txt; a test compares them.
export const GROUPS = [["1 to 5", 24], ["6 to 10", 504], ["11 to 15", 364], ["16 to 20", 82], ["21 to 25", 24]];
export const MODELS = [
  { run: "multi30k-rnn", name: "One context vector", color: "var(--s1)", bleu: [27.4, 33.9, 30.9, 23.8, 18.4] },
  { run: "multi30k-rnn-attention", name: "The same with attention", color: "var(--s0)", bleu: [38.7, 40.2, 41.1, 37.4, 24.8] },
  { run: "multi30k-transformer", name: "Transformer (attention only)", color: "var(--s2)", bleu: [38.1, 44.6, 44.9, 41.1, 30.9] },
];
const SENTENCE = "ein kleiner junge mit einer roten mütze sitzt am rand eines brunnens und sieht zwei hunden zu die im wasser miteinander spielen".split(" ");
const LENGTHS = [4, 8, 13, 18, 22]; // words that are drawn for each group
const [WIDTH, HEIGHT, LEFT, TOP, BOTTOM, TALLEST] = [460, 270, 34, 12, 40, 50];

export function lengthsLesson() {
  let group = 1;
  const across = (i) => LEFT + 24 + (i / (GROUPS.length - 1)) * (WIDTH - LEFT - 60);
  const up = (bleu) => TOP + (1 - bleu / TALLEST) * (HEIGHT - TOP - BOTTOM);
  const grid = [0, 10, 20, 30, 40, 50].flatMap((bleu) => [svg("path", { class: "grid", d: `M${LEFT} ${up(bleu)}H${WIDTH - 8}` }), text(bleu, LEFT - 6, up(bleu) + 4, "end")]);
  const marks = GROUPS.map(([name], i) => text(name, across(i), HEIGHT - 22, "middle"));
  const lines = MODELS.flatMap(({ bleu, color }) => {
    const line = svg("path", { class: "curve", d: bleu.map((y, i) => `${i ? "L" : "M"}${across(i)} ${up(y)}`).join("") });
    line.style.stroke = color;
    return [line, ...bleu.map((y, i) => {
      const dot = svg("circle", { cx: across(i), cy: up(y), r: 4 });
      dot.style.fill = color;
      return dot;
    })];
  });
  const band = svg("rect", { class: "band", y: TOP, height: HEIGHT - TOP - BOTTOM, width: 44, rx: 8 });
  const chart = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "chart", role: "img", "aria-label": "Translation quality by sentence length" },
    band, ...grid, ...marks, text("words of the German sentence", (LEFT + WIDTH) / 2, HEIGHT - 4, "middle"), ...lines);
  chart.addEventListener("pointerdown", (event) => {
    const box = chart.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * WIDTH;
    set(Math.min(GROUPS.length - 1, Math.max(0, Math.round(((x - across(0)) / (across(4) - across(0))) * (GROUPS.length - 1)))));
  });
  const length = slider({ label: "Sentence length", min: 0, max: GROUPS.length - 1, step: 1, value: group, format: (i) => `${GROUPS[i][0]} words`, onInput: (i) => set(i) });
  const legend = element("table", { className: "figures" });
  const [words, single, many] = [0, 1, 2].map(() => element("div", { className: "boxes" }));
  const summary = element("p", { className: "finding", role: "status" });

  function set(next) {
    group = next;
    length.set(group);
    band.setAttribute("x", across(group) - 22);
    const [name, pairs] = GROUPS[group];
    legend.replaceChildren(element("caption", {}, `BLEU for sentences of ${name} words (${pairs} sentences)`), element("tbody", {}, ...MODELS.map((model) => {
      const dot = element("span", { className: "swatch" });
      dot.style.setProperty("--color", model.color);
      return element("tr", {}, element("th", { scope: "row" }, dot, model.name), element("td", {}, model.bleu[group].toFixed(1)));
    })));
    const shown = SENTENCE.slice(0, LENGTHS[group]);
    words.replaceChildren(...shown.map((word) => element("span", { className: "word" }, word)));
    single.replaceChildren(element("span", { className: "box squeezed" }, `${shown.length} words → 1 vector`));
    many.replaceChildren(...shown.map((word) => element("span", { className: "box", title: word })));
    const [one, attention] = [MODELS[0].bleu[group], MODELS[1].bleu[group]];
    summary.textContent = `With attention: ${attention.toFixed(1)}. With one vector: ${one.toFixed(1)}, that is ${Math.round(100 * (1 - one / attention))}% less.`;
  }
  set(group);
  return [
    element("p", {}, "Before attention, a translator read the whole sentence into one vector and wrote the translation from that. A short sentence fits. A long one does not. With attention, the translator keeps one vector for each word and looks at the ones it needs, for each word it writes."),
    element("div", { className: "split" },
      element("div", { className: "stack" }, chart, length.node, legend),
      element("div", { className: "stack" }, element("h4", {}, "The sentence"), words, element("h4", {}, "What the decoder sees: one context vector"), single,
        element("h4", {}, "What the decoder sees: attention"), many, summary)),
    element("p", { className: "note" }, "Measured, not invented: lower-cased BLEU (higher is better) on the test set 2016 of Multi30k, German to English, three models trained with this package, one seed. The logs are benchmarks/results/multi30k-rnn.txt, multi30k-rnn-attention.txt and multi30k-transformer.txt. The groups at the ends have only 24 sentences each."),
  ];
}

function text(content, x, y, anchor) {
  const node = svg("text", { x, y, "text-anchor": anchor });
  node.textContent = String(content);
  return node;
}

// Trying the classifier: an image, the live webcam or a drawing as the query; a bar for each class, and the reason.
import { explanationCard } from "../view/explanation-card.js";
import { button, element } from "../view/elements.js";
import { newestOnly, request } from "./api.js";
import { acceptImages, filePicker, prepareImage } from "./images.js";
import { createSketch } from "./sketch.js";
import { createWebcam } from "./webcam.js";
import { isEnabled, setEnabled } from "./focus.js";
import { barList, choice, openDialog, percent, showError } from "./widgets.js";

const LIVE_PAUSE = 120; // milliseconds between an answer and the next picture of the webcam
const pause = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

// Why the image is one of the classes, or none of them: its score beside those of the images of the closest class.
function whyKnown({ known, closest, none_score: noneScore }, { images, mean, highest }) {
  const reason = known ? `It is like the images of ${closest}, the closest class, so it counts as one of your classes.`
    : !images ? `${closest} is the closest class, but not close enough.`
    : mean >= noneScore ? `${closest} is the closest class, but not close enough. Its own images differ as much: add more of them.`
    : `${closest} is the closest class, but the image is less like it than its own images are.`;
  const rows = [{ name: "This image", share: noneScore, text: percent(noneScore), kind: "none first" }];
  if (images) rows.push(
    { name: `Images of ${closest}, each left out in turn: average`, share: mean, text: percent(mean), kind: "none" },
    { name: `The least typical image of ${closest}`, share: highest, text: percent(highest), kind: "none" });
  const bars = barList("Score for none of these");
  bars.update(rows);
  const more = images ? "" : ` ${closest} has one image, so it is not known how much its images differ. Add a second one.`;
  return element("section", { className: "why-known" }, element("h3", {}, known ? `Why not “none of these”?` : `Why “none of these”?`),
    element("p", {}, reason + more), element("p", { className: "note" }, "Score for “none of these”. From 50% on, an image is none of your classes."), bars.node);
}

export function createTry(store) {
  let mode = "image";
  let query = null; // the image that was last sent
  let version = null; // of the classifier that answered
  let timer = null;
  let turn = 0; // counts starts and stops of the live webcam
  const ask = newestOnly();
  const webcam = createWebcam();
  const sketch = createSketch({ label: "Sheet to draw a query on. Draw with a mouse, a finger or a pen.", onStroke: drawn });
  const picker = filePicker({ label: "Image file to try", multiple: false, onFiles: useFiles });
  const preview = element("img", { className: "preview", alt: "The image that is tried", hidden: true });
  const drop = button({ className: "drop-zone", onclick: picker.open }, preview, element("span", {}, "Drop, paste or choose an image"));
  const stage = element("div", { className: "stage" });
  const headline = element("p", { className: "answer", role: "status" });
  const bars = barList("Probability of each class, if it is one of them");
  const question = element("p", { className: "note" }, "If it is one of these, which one?");
  const none = barList("None of these");
  const why = button({ className: "tool", onclick: explain }, "Why?");
  const results = element("div", { className: "results", hidden: true }, headline, none.node, question, bars.node, element("div", { className: "tools" }, why));
  const blocked = element("p", { className: "note blocked" });
  const modes = choice({
    legend: "Try with", name: "try", hideLegend: true, value: mode, onChange: setMode,
    options: [["image", "Image"], ["webcam", "Webcam"], ["sketch", "Drawing"]],
  });
  const node = element("div", { className: "card try-card" }, modes.node, stage, blocked, results, picker.node);
  const isFitted = () => store.state()?.fitted === true;
  acceptImages(node, useFiles, { isFallback: isFitted });

  function setMode(next) {
    mode = next;
    modes.set(mode);
    pauseLive();
    forget();
    if (mode === "image") stage.replaceChildren(drop);
    else if (mode === "sketch") stage.replaceChildren(sketch.node, element("div", { className: "tools" }, button({ className: "tool", onclick: () => (sketch.clear(), forget()) }, "Clear")));
    else startLive();
  }
  function forget() {
    query = null;
    results.hidden = true;
    preview.hidden = true;
    preview.removeAttribute("src");
  }
  async function startLive() {
    const own = ++turn;
    stage.replaceChildren(webcam.node);
    try {
      if (!(await webcam.start())) return;
    } catch (error) {
      showError(error);
      return setMode("image");
    }
    while (own === turn) {
      const image = isFitted() ? await webcam.grab() : null;
      if (image) await predict(image);
      await pause(image ? LIVE_PAUSE : 300);
    }
  }
  function pauseLive() {
    turn++;
    webcam.stop();
    clearTimeout(timer);
  }
  async function useFiles([file]) {
    if (mode !== "image") setMode("image");
    const image = await prepareImage(file);
    preview.src = URL.createObjectURL(image);
    preview.onload = preview.onerror = () => URL.revokeObjectURL(preview.src);
    preview.hidden = false;
    predict(image);
  }
  function drawn() {
    clearTimeout(timer);
    timer = setTimeout(async () => sketch.isEmpty() || predict(await sketch.toFile()), 150);
  }

  async function predict(image) {
    query = image;
    if (!isFitted()) return;
    try {
      const answer = await ask(store.path("/predict"), { form: { image } });
      if (!answer || query !== image) return;
      const [prediction] = answer.predictions;
      if (prediction.error) throw new Error(prediction.error);
      version = answer.version;
      show(prediction);
    } catch (error) {
      showError(error);
      if (mode === "webcam") await pause(2000);
    }
  }
  function show({ known, closest, none_score: noneScore, scores }) {
    results.hidden = false;
    results.classList.toggle("rejected", !known);
    headline.replaceChildren(element("b", {}, known ? closest : "None of these"), element("span", {}, known ? "one of your classes" : `closest: ${closest}`));
    const names = store.state().classes.map(({ name }) => name).filter((name) => name in scores); // in a fixed order
    bars.update(names.map((name) => ({ name, share: scores[name], text: percent(scores[name]), kind: known && name === closest ? "first" : "" })));
    none.update([{ name: "None of these", share: noneScore, text: percent(noneScore), kind: `none ${known ? "" : "first"}` }]);
    none.node.title = "From 50% on, the image is none of your classes";
  }

  async function explain() {
    const [image, live] = [query, mode === "webcam"];
    if (!image || !isEnabled(why)) return;
    setEnabled(why, false); // it keeps the focus, which returns to it from the dialog
    why.textContent = "Looking…";
    try {
      const { explanation, prediction, left_out: leftOut } = await request(store.path("/explain"), { form: { image } });
      const note = element("p", { className: "note" }, "Outlined regions and orange bars speak for the class, dashed regions and blue bars against it. Dimmed regions have little effect. Numbers are differences of log odds: +0.69 doubles the odds.");
      openDialog(live ? "Why? (the last picture)" : "Why?", [whyKnown(prediction, leftOut), explanationCard(explanation, explanation.cards[0], { hasAnswer: false }), note], { wide: true });
    } catch (error) {
      showError(error);
    }
    setEnabled(why, true);
    why.textContent = "Why?";
  }

  function update(state) {
    blocked.hidden = isFitted();
    blocked.textContent = store.activity() || (state?.num_examples ? state.reason ?? "" : "Add images to two classes first.");
    if (!isFitted()) return void (results.hidden = true);
    if (query && mode !== "webcam" && state.version !== version && !store.isBusy()) predict(query);
  }
  store.onOpen(() => (sketch.clear(), forget()));
  setMode(mode);
  return { node, update, pause: () => mode === "webcam" && setMode("image") };
}

// The Captions tab: a sentence for an image, and a map over the image for each word.
import { captionCard } from "../view/caption-card.js";
import { element } from "../view/elements.js";
import { loadModels, newestOnly } from "./api.js";
import { createDrop } from "./drop.js";
import { modelsOf, noModel } from "./text-task.js";
import { lead } from "./widgets.js";

export async function start(panel) {
  panel.append(lead("Captions", "Drop an image and get a sentence that describes it. Point at a word to see where the model looked when it wrote it."));
  const all = await loadModels();
  const models = modelsOf(all, "captioning");
  if (!models.length) return void panel.append(noModel(all, {
    tasks: ["captioning"], what: "describes images", training: "Train one on drawn shapes, in about 90 seconds on two cores.", commands: ["sightline train task=captioning"], runs: ["runs/shapes"],
  }));
  let [model] = models;
  let image = null;
  const ask = newestOnly();
  const drop = createDrop({ what: "the image to describe", onImage: (file) => ((image = file), send()) });
  const select = element("select", { ariaLabel: "Model", onchange: () => ((model = models.find(({ name }) => name === select.value)), drop.describe(model), image && send()) },
    ...models.map(({ name, title }) => element("option", { value: name }, title ?? name)));
  const output = element("div", { className: "output" }, element("p", { className: "note" }, "The sentence appears here."));
  output.setAttribute("aria-live", "polite");

  async function send() {
    output.replaceChildren(element("p", { className: "note" }, "Looking…"));
    try {
      const result = await ask(`api/models/${encodeURIComponent(model.name)}/predict-image`, { form: { image, attention: "packed" } });
      if (!result) return;
      const [prediction] = result.predictions;
      if (prediction.error) throw new Error(prediction.error);
      const { captions } = prediction.inspection;
      output.replaceChildren(captionCard(captions, captions.cards[0]));
    } catch (error) {
      output.replaceChildren(element("p", { className: "refusal", role: "alert" }, error.message));
    }
  }
  drop.describe(model);
  panel.append(element("div", { className: "caption-row" },
    element("section", { className: "card", ariaLabel: "Input" }, element("div", { className: "card-head" }, element("h3", {}, "Image"), models.length > 1 ? select : null), drop.node),
    element("section", { className: "card", ariaLabel: "Caption" }, element("h3", {}, "Caption"), output)));
  return { hide: drop.close };
}

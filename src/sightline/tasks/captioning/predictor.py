"""A trained captioner: captions, their scores, and where the model attended for each word."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ... import config, limits, zoo
from ...attention import Record, record_attention
from ...data.captions.datasets import CaptionedImages, CaptionSplits
from ...data.images.datasets import as_array
from ...data.images.occlusion import cell_mask, fill_cells
from ...data.images.paths import expand_image_paths
from ...data.images.reading import read_image
from ...data.sources import same_source
from ...data.text.tokenizers import Tokenizer
from ...decoding import decoder_inputs
from ...errors import SightlineError, check, check_int, check_max
from ...files import CONFIG, stored_fingerprint
from ...layers.backbones import BACKBONES
from ...models.captioner import Captioner
from ...names import printable
from ...predictor import FineTuned, InputToken, Predictor, Progress
from ...results import Prediction
from ...view.captions import CaptionCard, WordMap, caption_gif, captions_data, captions_page
from ...view.inspection import Inspection
from ...view.page import check_path as check_page_path
from ...weights import read_weights
from ..figures import FigureFiles, training_curves
from ..text_data import TOKENIZER, read_tokenizers
from .config import CaptioningTaskConfig
from .evaluate import CaptionEvaluation, GeneratedCaption, count_pointing, examples_page, generate, score_captions
from .inputs import ImageInputs

if TYPE_CHECKING:
    from ...view.page import Page

RECORDING_BATCH = 64
"""Captions whose attention is recorded together."""
BACKBONE_LICENSE = "Apache License 2.0"
"""Of the weights of EfficientNet-Lite."""


@dataclass(frozen=True, eq=False)
class Caption:
    """The caption of one image."""

    text: str
    score: float
    """Log-probability of the caption, divided by its length to the power of the length penalty."""
    alternatives: "tuple[Caption, ...]" = ()
    """Further captions, the best first."""
    words: tuple[WordMap, ...] = field(default=(), repr=False)
    """The words of the caption and the attention behind each; empty unless requested, or without attention."""
    finished: bool = True
    """The caption ends by itself; False if it was cut at the maximum length."""
    error: None = None

    def to_dict(self) -> dict[str, Any]:
        alternatives = [other._own_values() for other in self.alternatives]
        return {**self._own_values(), "alternatives": alternatives, "error": self.error}

    def _own_values(self) -> dict[str, Any]:
        return {"text": self.text, "score": self.score, "finished": self.finished}

    def summary(self, top: int | None = None) -> str:
        """The best caption, or one line for each of the `top` best with its score."""
        best = [self, *self.alternatives][: top or 1]
        scores = [f"  ({caption.score:.3f})" if top else "" for caption in best]
        return "\n  ".join(f"{printable(caption.text)}{score}" for caption, score in zip(best, scores, strict=True))

    def __str__(self) -> str:
        return self.text


class CaptioningPredictor(Predictor):
    """A trained captioner."""

    batch_size = 32
    input_kind = "image"
    evaluate_options = frozenset({"show"})
    predict_options = frozenset({"num_beams"})
    needs_data_fingerprint = True
    config: CaptioningTaskConfig
    model: Captioner

    def __init__(self, folder: Path, config: CaptioningTaskConfig, tokenizer: Tokenizer, model: Captioner):
        self.folder, self.config, self.tokenizer = folder, config, tokenizer
        self.model, self.device = model.eval(), torch.device("cpu")
        self.external_model = config.data.embedder
        if (backbone := config.model.backbone) not in (*BACKBONES, "none"):
            self.fine_tuned = FineTuned("backbone.", f"`{backbone}`, trained on ImageNet, {BACKBONE_LICENSE}")
        self._inputs: ImageInputs | None = None
        self.has_attention = config.model.kind != "rnn"

    @classmethod
    def load(cls, path: str | Path) -> "CaptioningPredictor":
        folder = Path(path)
        task_config = config.build(CaptioningTaskConfig, config.read(folder / CONFIG))
        [tokenizer] = read_tokenizers(folder, task_config.tokenizer, [TOKENIZER])
        model, size, file = task_config.model, len(tokenizer), folder / TOKENIZER
        check(model.vocab_size == size, f"{file} must have {model.vocab_size} tokens, as the model, got {size}")
        depth = model.encoder_layers + model.decoder_layers
        return cls(folder, task_config, tokenizer, read_weights(folder, lambda: Captioner(model), depth=depth))

    @property
    def inputs(self) -> ImageInputs:
        """How images become what the model takes. An encoder with fixed weights is loaded on first use."""
        if self._inputs is None:
            on_device = replace(self.config.training, device=str(self.device))
            task_config = replace(self.config, training=on_device)
            self._inputs = ImageInputs(task_config, allow_download=self.allow_download)
        return self._inputs

    def to(self, device: str | torch.device) -> "CaptioningPredictor":
        self._inputs = None
        return super().to(device)

    def check_ready(self) -> None:
        self.inputs.encoder  # noqa: B018 - loads it

    def parse_inputs(self, arguments: Sequence[str]) -> list[Path]:
        return expand_image_paths(arguments)

    def prepare(self, item: Any) -> Tensor:
        """An image -> uint8 (C, side, side)"""
        size, channels = self.inputs.size_and_channels
        return read_image(item, size=size, channels=channels)

    def predict_batch(
        self,
        prepared: list[Tensor],
        *,
        top_k: int | None = None,
        num_beams: int | None = None,
        attention: bool = False,
    ) -> list[Caption]:
        """Captions of prepared images.

        `top_k` is the number of captions of each image (default: one per beam). `attention` records the attention of
        the best caption in a further forward pass.
        """
        inputs = self.inputs.from_pixels(torch.stack(prepared)).to(self.device)
        found = self._search(inputs, top_k, num_beams)
        maps = self.word_maps(inputs, [best for best, *_ in found]) if attention else [()] * len(found)
        predictions = []
        for captions, words in zip(found, maps, strict=True):
            best, *rest = [
                Caption(c.text, c.hypothesis.normalized_score, finished=c.hypothesis.finished) for c in captions
            ]
            predictions.append(replace(best, alternatives=tuple(rest), words=tuple(words)))
        return predictions

    def _search(self, inputs: Tensor, top_k: int | None, num_beams: int | None) -> list[list[GeneratedCaption]]:
        if top_k is not None:
            check_int(1, top_k=top_k)
            check_max(limits.MAX_BEAMS, top_k=top_k)
        if num_beams is None:
            num_beams = max(self.config.search.num_beams, top_k or 1)
        search = replace(self.config.search, num_beams=num_beams)
        top_k = search.num_beams if top_k is None else top_k
        check(
            top_k <= search.num_beams,
            f"top_k (--top) must be at most num_beams (--beams), {search.num_beams}, got {top_k}",
        )
        options = {"n_best": top_k, **config.plain(search)}
        return generate(self.model, inputs, self.tokenizer, self.config.data.max_tokens, **options)

    def _record(self, inputs: Tensor, captions: Sequence[GeneratedCaption]) -> Record:
        """The attention over the regions for each token of captions."""
        special = self.tokenizer.special_tokens
        hypotheses = [caption.hypothesis for caption in captions]
        target = decoder_inputs(hypotheses, bos=special.id("bos"), pad=special.id("pad")).to(self.device)
        with torch.inference_mode(), record_attention(self.model, cpu=True) as record:
            self.model(inputs, target)
        return record.of("cross")

    def word_maps(self, inputs: Tensor, captions: Sequence[GeneratedCaption]) -> list[list[WordMap]]:
        """The words of each caption with their maps, averaged over the tokens of a word."""
        if not self.has_attention:
            return [[WordMap(word, None) for word in caption.text.split()] for caption in captions]
        results = []
        for start in range(0, len(captions), RECORDING_BATCH):
            part = captions[start : start + RECORDING_BATCH]
            record = self._record(inputs[start : start + RECORDING_BATCH], part)
            weights = torch.stack([m.weights for m in record], 1).float().numpy()  # (B, layers, heads, T, R)
            for row, caption in enumerate(part):
                groups = self.tokenizer.word_groups(caption.hypothesis.tokens)
                grid = self.config.model.grid
                results.append(
                    [
                        WordMap(word, weights[row][:, :, tokens].mean(2).reshape(*weights.shape[1:3], *grid))
                        for word, tokens in groups
                    ]
                )
        return results

    def explain_batch(
        self,
        prepared: list[Tensor],
        inputs: list[Any],
        *,
        progress: Progress | None = None,
        top_k: int | None = None,
        num_beams: int | None = None,
    ) -> "tuple[list[Caption], Page]":
        captions = self.predict_batch(prepared, top_k=top_k, num_beams=num_beams, attention=True)
        names = (Path(item).name if isinstance(item, str | Path) else "image" for item in inputs)
        cards = [self._card(*values) for values in zip(captions, prepared, names, strict=True)]
        return captions, captions_page(cards)

    def _card(self, caption: Caption, pixels: Tensor, name: str = "image") -> CaptionCard:
        """The caption of prepared pixels for a page."""
        others = [(other.text, other.score) for other in (caption, *caption.alternatives)]
        return CaptionCard(name, as_array(pixels), caption.words, others, self.has_attention)

    def inspect_batch(
        self, prepared: list[Tensor], *, top_k: int | None = None, **options: Any
    ) -> list[tuple[Caption, Inspection]]:
        captions = self.predict_batch(prepared, top_k=top_k, attention=True, **options)
        results = []
        for caption, pixels in zip(captions, prepared, strict=True):
            data = captions_data([self._card(caption, pixels)])
            words = {"generated": [word.word for word in caption.words]}
            values = {"grid": list(self.config.model.grid), "captions": data}
            results.append((caption, Inspection(words, values=values)))
        return results

    def input_tokens(self, prepared: Tensor) -> list[InputToken]:
        rows, columns = self.config.model.grid
        return [InputToken(f"{i + 1},{j + 1}", True) for i in range(rows) for j in range(columns)]

    def _without_tokens(self, prepared: Tensor, positions: frozenset[int]) -> Tensor:
        return fill_cells(prepared, cell_mask(self.config.model.grid, positions)[None])[0]

    def show(self, inputs: Sequence[Any] = (), out: str | Path | None = None, *, format: str = "png") -> FigureFiles:
        """Write the training curves, and for each image an animation (.gif) of its caption, to a folder.

        An empty caption has no animation.
        """
        files = FigureFiles.create(self.folder, out, format)
        prepared, inputs = files.usable(self, inputs)
        explained = self.explain_batch(prepared, inputs) if prepared else None
        files.add("training", training_curves, self.folder, "cider")
        if explained is not None:
            for i, (caption, pixels) in enumerate(zip(explained[0], prepared, strict=True), start=1):
                path = files.folder / f"caption-{i}.gif"
                if caption.words:  # none to animate in an empty caption
                    files.files.append(caption_gif(as_array(pixels), caption.words, path))
            files.add_page(explained[1])
        return files

    def details(self) -> dict[str, Any]:
        model = self.config.model
        encoder = self.config.data.embedder or model.backbone
        return {
            "model": model.kind,
            "encoder": encoder,
            "regions": model.num_regions,
            "vocabulary": len(self.tokenizer),
        }

    def portable(self) -> tuple[CaptioningTaskConfig, dict[str, Any]]:
        task_config, state = super().portable()
        return replace(task_config, data=replace(task_config.data, weights=None)), state

    def columns(self, top: int | None = None) -> list[str]:
        further = (f"{name}.{i}" for i in range(2, (top or 1) + 1) for name in ("text", "score"))
        return ["text", "score", "finished", *further]

    def csv_values(self, prediction: Prediction) -> dict[str, Any]:
        values = prediction.to_dict()
        for i, alternative in enumerate(values.pop("alternatives", ()), start=2):
            values |= {f"{name}.{i}": value for name, value in alternative.items()}
        return values

    def evaluate(
        self,
        data: str | Path | CaptionSplits | None = None,
        *,
        progress: Progress | None = None,
        show: str | Path | None = None,
    ) -> CaptionEvaluation:
        """Metrics on the run's test set, or its validation set if it has none; for other data, on its test set or all.

        `show` is the path of a page with the best, the worst and random examples.
        """
        page = None if show is None else check_page_path(Path(show))
        return self.evaluate_images(*self.evaluation_images(data), progress=progress, page=page)

    def evaluate_images(
        self, images: CaptionedImages, split: str, *, progress: Progress | None = None, page: Path | None = None
    ) -> CaptionEvaluation:
        """Caption these images and compare with their references."""
        inputs, best = self.caption_images(images, progress)
        texts, pointing = [caption.text for caption in best], None
        if images.objects and self.has_attention:
            maps = self.word_maps(inputs.to(self.device), best)
            means = [[(word.word, word.mean().ravel()) for word in words] for words in maps]
            pointing = count_pointing(images, texts, means, self.config.model.grid)
        evaluation = score_captions(split, images, texts, pointing=pointing, **config.plain(self.config.search))
        if page is not None:
            examples_page(evaluation, images, texts, lambda i: self._picture(images, i)).save(page)
        return evaluation

    def caption_images(
        self, images: CaptionedImages, progress: Progress | None = None
    ) -> tuple[Tensor, list[GeneratedCaption]]:
        """What the model takes for each image, and the best caption of each by the search of the config."""
        inputs, max_tokens = self.inputs.load(images, progress), self.config.data.max_tokens
        options: dict[str, Any] = {"n_best": 1, **config.plain(self.config.search)}
        found = generate(self.model, inputs, self.tokenizer, max_tokens, progress=progress, **options)
        return inputs, [captions[0] for captions in found]

    def _picture(self, images: CaptionedImages, index: int) -> Any:
        one = images.take([index])
        return as_array(one.load(*self.inputs.size_and_channels)[0] if one.pixels is None else one.pixels[0])

    def evaluation_images(self, data: str | Path | CaptionSplits | None = None) -> tuple[CaptionedImages, str]:
        """The images that `evaluate` uses, and the name of their split."""
        own = self.config.data
        source = own.source if data is None or isinstance(data, CaptionSplits) else str(data)
        if isinstance(data, CaptionSplits):
            splits, is_own = data, False
        else:
            self.check_data(source, data is not None or Path(source).expanduser().exists())
            is_own = data is None or same_source(source, own.source)
            splits = own.read(None if is_own else source)
        digests = [stored_fingerprint(self.folder, name, "digest") for name in ("test", "validation")]
        held_out = own.hold_out(splits, self.config.seed)
        is_own = is_own or any(x and x.digest() in digests for x in (held_out.test, held_out.validation))
        if is_own:
            images, split = (held_out.validation, "validation") if held_out.test is None else (held_out.test, "test")
            if images is None:
                raise SightlineError(f"data must have a test or validation set, got neither in {own.source!r}")
            if images is not getattr(splits, split):  # held out, which depends on all of the data
                rule = f"the data of {zoo.display_name(self.folder)} must be as in training"
                fix = f"got other content in {source!r}; pass --data PATH"
                is_same = images.digest() == stored_fingerprint(self.folder, split, "digest")
                check(is_same, f"{rule} to hold out the same {split} set, {fix}")
            return images, split
        # of other data; "validation" would be the set that selected the weights
        candidates = {"test": splits.test, "val": splits.validation, "full": splits.train}
        split, images = next((name, images) for name, images in candidates.items() if images is not None)
        is_new = images.digest() != stored_fingerprint(self.folder, "train", "digest")
        check(is_new, "data must not be the training data of the run, got the same captions; pass a test set")
        return images, split

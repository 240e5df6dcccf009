"""FewShotClassifier: the predictor of a few-shot model that is fitted to a few images per class."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import RLock
from typing import Any, Literal, Self
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor

from .. import config, limits, zoo
from ..data.images.reading import expand_image_paths
from ..errors import MissingDependencyError, SightlineError, check, check_choice, check_max, one_of
from ..files import CONFIG, warn_unfinished
from ..models.embedders import (
    EMBEDDERS,
    CustomEmbedder,
    ExternalEmbedder,
    ImageEmbedder,
    as_embedder,
    load_embedder,
    make_embedder,
)
from ..models.few_shot import FewShot, nearest_mean_model
from ..models.text_embedders import PACKAGES, TextEmbedder, check_text, is_text_model
from ..names import printable, shortened
from ..predictor import Predictor, Progress
from ..tasks.few_shot.predictor import FewShotPredictor
from ..tasks.text_predictor import parse_texts
from ..view.explanations import ExplanationCard, explanation_data, explanation_page
from ..view.inspection import Inspection
from ..view.page import Page
from ..view.page import check_path as check_page_path
from . import file
from .calibration import MIN_ESTIMATE_IMAGES, Calibration, classify
from .choice import AUTO
from .evaluate import evaluate
from .evaluation import ClassifierEvaluation
from .explanation import explain
from .fitted import Fitted
from .methods import METHODS
from .model_choice import ModelChoice, choose_model, few_shot_models
from .predictions import Estimate, FewShotPrediction
from .support import (
    MIN_CLASSES,
    SupportSet,
    as_label,
    check_embeddings,
    check_labels,
    list_examples,
    read_pixels,
    read_support,
)

MAX_LISTED_CLASSES = 3


class FewShotClassifier(Predictor):
    """A classifier that is fitted to a few examples per class. It detects unknown images and explains predictions.

    `FewShotClassifier.pretrained(name)` classifies images. `FewShotClassifier(embedder=function)` classifies images
    with any torch module or callable as their encoder; a `CustomEmbedder` says how images are prepared for it.
    `FewShotClassifier()` classifies embeddings of any encoder, of images, text or sound, by cosine similarity to the
    class mean.

    Methods can be called from several threads. A fitted classifier is pickled as the content of its file, so it can be
    sent to other processes, where it is on the CPU.

    Predictions do not depend on the other images of a call, up to rounding errors of float32: scores of one image alone
    and in a list agree to about 1e-6.
    """

    evaluate_options = frozenset({"show"})
    model: FewShot | None

    def __init__(self, model: FewShot | None = None, embedder: Any = None):
        rule, kind = "model must be a few-shot model of Sightline", type(model).__name__
        is_valid = model is None or isinstance(model, FewShot)
        check(is_valid, f"{rule}, got {kind}; for an image encoder use FewShotClassifier(embedder=...)")
        self.model = None if model is None else model.eval().requires_grad_(False)
        self.device = torch.device("cpu")
        self._embedder = None if model is None else make_embedder(model)
        if embedder is not None:
            self._embedder = as_embedder(embedder)
            is_unused = isinstance(self._embedder, CustomEmbedder) and model is not None and model.backbone is not None
            check(not is_unused, "embedder must be left out for a model with a backbone, got one")
        self._lock = RLock()
        self._fitted: Fitted | None = None
        self._pretrain: Callable[[str], Self] | None = None  # loads a model by its name, if one is to be chosen
        self.model_choice: ModelChoice | None = None
        """The pretrained model that was chosen in place of `auto`, and why."""
        self.model_name: str | None = None
        """The name that `pretrained` was called with; that of the chosen model in place of `auto`."""
        _classifiers.add(self)

    @classmethod
    def pretrained(cls, name: str | Path, *, weights: str | Path | None = None, allow_download: bool = False) -> Self:
        """A classifier to fit, with a pretrained model, the folder of a few-shot run, or an embedder.

        With `auto`, `fit` chooses the installed pretrained model that classifies held-out examples best.

        An embedder is `efficientnet_lite0`, or a Hugging Face vision model by its folder or by `hub:owner/name`.
        A BERT-style text encoder classifies texts: `minilm`, a folder, or `text:hub:owner/name`.
        `weights` is another weight file of EfficientNet-Lite0. An embedder that is named here is downloaded if
        necessary, one that is named in the config of a run only with `allow_download`.
        """
        if is_text_model(name):
            check(weights is None, "weights must be left out for a text encoder, got a file")
            text_embedder = TextEmbedder(str(name))
            return cls(nearest_mean_model(text_embedder.encoder.embed_dim), text_embedder)._named(name)
        zoo.warn_if_hidden(name)
        folder, weights = zoo.folder(name), None if weights is None else str(weights)
        if str(name) == AUTO and not (folder / CONFIG).is_file():
            check(weights is None, f"weights must be left out if the model is {AUTO}, got {weights!r}")
            classifier = cls()
            classifier._pretrain = partial(cls.pretrained, allow_download=allow_download)
            return classifier
        if not (folder / CONFIG).is_file():
            return cls(*_load_encoder(str(name), weights))._named(name)
        task = config.read(folder / CONFIG).get("task", "few_shot")
        fix = "train one with sightline train task=few_shot"
        check(task == "few_shot", f"model must be a few-shot model, got {str(name)!r} of task {task!r}; {fix}")
        warn_unfinished(folder)
        run = FewShotPredictor.load(folder)
        model, data = run.model, run.config.data
        model.classifier, model.config = None, replace(model.config, num_classes=0)  # only training needs it
        weights = data.weights if weights is None else weights
        embedder = make_embedder(model, data.embedder, weights, allow_download=allow_download)
        return cls(model, embedder)._named(zoo.display_name(folder))

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        weights: str | Path | None = None,
        allow_download: bool = False,
        embedder: Any = None,
    ) -> Self:
        """Read the file that `save` wrote.

        If the file names an external embedder on the hub, it is read from the local cache; it is downloaded only with
        `allow_download`. `weights` is the weight file of the embedder, if it has moved. `embedder` is required if the
        classifier was fitted to images with a custom embedder, which is not in the file.
        """
        return cls._restored(file.read(Path(path)), embedder, weights=weights, allow_download=allow_download)

    def _named(self, name: str | Path) -> Self:
        self.model_name = str(name)
        return self

    def save(self, path: str | Path) -> Path:
        """Write the weights, the support set and the calibration to one `.sightline` file.

        A custom embedder is not part of it.
        """
        content, _ = file.to_bytes(self._ready(), self.model_name)
        return file.write(Path(path), content)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the content of the file; a custom embedder is pickled with it."""
        return type(self)._from_bytes, file.to_bytes(self._ready(), self.model_name)

    @classmethod
    def _from_bytes(cls, data: bytes, embedder: CustomEmbedder | None) -> Self:
        return cls._restored(file.from_bytes(data), embedder)

    @classmethod
    def _restored(
        cls,
        content: file.Content,
        embedder: Any = None,
        *,
        weights: str | Path | None = None,
        allow_download: bool = False,
    ) -> Self:
        """The classifier of a file."""
        metadata, model, support = content
        embedder = file.restore_embedder(content, embedder, weights=weights, allow_download=allow_download)
        classifier = cls(model, embedder)
        classifier.model_name = metadata.model_name
        choice, calibration = metadata.choice, metadata.calibration
        method = AUTO if choice.is_automatic else choice.method
        classifier._fitted = Fitted(model, support, classifier._embedder, method, calibration.reject)
        classifier._fitted.choice, classifier._fitted.calibration = choice, calibration
        return classifier

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes."""
        return tuple(self.counts)

    @property
    def counts(self) -> dict[str, int]:
        """The number of examples of each class."""
        fitted = self._fitted
        if fitted is None:
            return {}
        return dict(zip(fitted.support.classes, fitted.support.counts.tolist(), strict=True))

    @property
    def kind(self) -> str:
        return "a fitted classifier"

    @property
    def data_source(self) -> str:
        return ""

    @property
    def folder(self) -> Path:  # type: ignore[override]
        """Raises SightlineError: a classifier is one file."""
        raise SightlineError("a model must be a run to be shared as a folder, got a fitted classifier; use save(path)")

    @property
    def calibration(self) -> Calibration:
        """The calibration of the confidence and of the known threshold."""
        return self._ready().calibration

    def to(self, device: str | torch.device) -> Self:
        with self._lock:
            self.device = torch.device(device)
            if self.model is not None:
                self.model.to(self.device)
            if isinstance(self._embedder, ExternalEmbedder | CustomEmbedder):
                self._embedder.to(self.device)
            if self._fitted is not None:
                self._fitted = copy(self._fitted)
                for name in ("head", "state"):  # computed again on the new device
                    vars(self._fitted).pop(name, None)
        return self

    def fit(
        self, examples: Any, *, method: str = AUTO, reject: float | None = None, progress: Progress | None = None
    ) -> Self:
        """Fit the classifier. No weights of the model are trained.

        `examples` is a folder with one folder of images per class (or any data set that `sightline data` reads), or
        {label: images}, where an image is a path, a PIL image, an array or a tensor; or {label: embeddings (n, M)}.
        With a text encoder it is {label: texts}, or a tab-separated file of texts and labels. Integer labels become
        text.

        `method` is `head`, `prototypes`, `ridge`, `logistic` or `blend`; `auto` chooses one by the held-out examples.
        `reject` is the fraction of images of known classes that may be rejected as unknown, above 0 and below 1. By
        default the threshold is between known and unknown images.
        """
        check_choice("method", method, (AUTO, *METHODS))
        is_rate = reject is None or (isinstance(reject, int | float) and 0 < reject < 1)
        check(is_rate, f"reject must be a rate above 0 and below 1, got {reject!r}")
        if self._pretrain is not None:
            return self._fit_chosen_model(self._pretrain, examples, method=method, reject=reject, progress=progress)
        support = read_support(examples, self._embedder, self._embed_dim(), progress, min_classes=2).checked()
        return self.fit_support(support, method=method, reject=reject)

    def fit_support(self, support: SupportSet, *, method: str = AUTO, reject: float | None = None) -> Self:
        """Fit the classifier to a support set whose embeddings are those of its own embedder."""
        embed_dim, model = support.embeddings.shape[-1], self.model
        if model is None or (self._embedder is None and model.embed_dim != embed_dim):
            model = nearest_mean_model(embed_dim).to(self.device)
        rule = f"embedder must give embeddings of dimension {model.embed_dim}, as the head of the model takes"
        check(model.embed_dim == embed_dim, f"{rule}, got {embed_dim}")
        fitted = Fitted(model, support, self._embedder, method, reject)
        fitted.calibration  # noqa: B018 - errors are raised before the state changes
        with self._lock:
            self.model, self._fitted = model, fitted
        return self

    def _fit_chosen_model(self, pretrain: Callable[[str], Self], examples: Any, **options: Any) -> Self:
        """Fit every installed pretrained model and keep the best."""
        if isinstance(examples, Mapping):  # generators are read once, for all models
            examples = {label: list_examples(values, f"class {label!r}") for label, values in examples.items()}
        choice, chosen = choose_model(examples, lambda name: pretrain(name).to(self.device).fit(examples, **options))
        with self._lock:
            self.model, self._embedder, self._fitted = chosen.model, chosen._embedder, chosen._fitted
            self.model_choice, self.model_name = choice, chosen.model_name
        return self

    @property
    def image_embedder(self) -> ImageEmbedder:
        """What embeds images; an error for a classifier of texts or of embeddings."""
        embedder = self._embedder
        if embedder is None or isinstance(embedder, TextEmbedder):
            raise SightlineError("a classifier must embed images here, got one that does not")
        return embedder

    @property
    def fitted(self) -> Fitted:
        """The model with its support set, encoding and calibration."""
        return self._ready()

    def add(self, label: str | int, examples: Any) -> Self:
        """Add a class, or examples of a class."""
        before, label = self._current().support, as_label(label)
        new = read_support({label: examples}, self._embedder, before.embeddings.shape[-1])
        with self._lock:
            fitted = self._current()
            check_labels([*(name for name in fitted.support.classes if name != label), label])
            self._fitted = fitted.changed(fitted.support.merged(new))
        return self

    def remove(self, label: str | int) -> Self:
        """Remove a class."""
        with self._lock:
            fitted = self._current()
            rest = fitted.support.without_class(label := as_label(label))
            got = f"got {label!r} to remove of 2; add another first"
            check(len(rest.classes) >= MIN_CLASSES, f"a classifier must keep {MIN_CLASSES} classes, {got}")
            self._fitted = fitted.changed(rest)
        return self

    def estimate(self) -> Estimate:
        """The expected accuracy on new images of the classes, by cross-validation on the support set."""
        with self._lock:
            return self._current().estimate()

    def check_above_chance(self, fix: str = "or try another model") -> None:
        """Raise SightlineError if held-out images are not classified better than by chance."""
        fitted = self._ready()
        if int(fitted.support.counts.max()) == 1:
            return
        with self._lock:
            estimate = fitted.estimate()
        chance = 1 / len(fitted.support.classes)
        accuracy = sum(estimate.per_class.values()) / len(estimate.per_class)  # balanced: classes can differ in size
        error = (chance * (1 - chance) / estimate.images) ** 0.5
        noun, source = self.input_kind, "labels" if self.input_kind == "text" else "folders"
        rule = f"held-out {noun}s must be classified better than by chance"
        got = f"got {accuracy:.1%} on average over classes ({estimate.images:,} {noun}s), where chance is {chance:.1%}"
        fix = f"check the {source}, add {noun}s of each class, {fix}"
        check(accuracy > chance + error, f"{rule}, {got}; {fix}")

    def summary(self) -> str:
        """A few lines: the classes, the expected accuracy and the calibration."""
        fitted, noun = self._ready(), self.input_kind
        calibration, counts = fitted.calibration, fitted.support.counts
        low, high = int(counts.min()), int(counts.max())
        per_class = f"{low}" if low == high else f"{low} to {high}"
        lines = [f"{len(counts):,} classes, {len(fitted.support):,} examples ({per_class} per class)"]
        lines += [f"model       {self.model_choice}"] if self.model_choice is not None else []
        lines.append(f"method      {fitted.choice.describe(noun)}")
        if high > 1:
            with self._lock:
                estimate = fitted.estimate()
            lone = [name for name, count in zip(fitted.support.classes, counts, strict=True) if count == 1]
            without = f"; without classes of one {noun}: {_listed(lone)}" if lone else ""
            lines.append(f"estimated   {estimate.describe(noun)}{without}")
            worst = [f"{name} {accuracy:.0%}" for name, accuracy in estimate.per_class.items() if accuracy < 1]
            lines += [f"lowest      {_listed(worst)}"] if worst else []
        else:
            lines.append(f"estimated   accuracy unknown: one {noun} per class; add a second {noun} of some class")
        copies = f"augmented copies of the {noun}s"
        single = f"{'data' if noun == 'text' else 'image'} sets of many kinds" if fitted.head.has_regression else copies
        source = f"held-out {noun}s" if high > 1 else single
        lines.append(f"confidence  logits scaled by {calibration.scale:.2f}, calibrated on {source}")
        unknowns = f"against unknowns: {len(fitted.support):,} examples, each class left out in turn"
        has_enough = fitted.num_held_out >= MIN_ESTIMATE_IMAGES
        area = f"AUROC {calibration.auroc:.1%} {unknowns}" if has_enough else f"too few {noun}s to estimate the AUROC"
        lines.append(f"unknown     {area}")
        if calibration.rejected_known is not None:  # None in files of earlier versions
            lines.append(f"rejection   {calibration.rejection(fitted.num_held_out, noun)}")
        return "\n".join(lines)

    @property
    def max_page_inputs(self) -> int:
        return limits.MAX_EXPLAINED_IMAGES

    def parse_inputs(self, arguments: Sequence[str]) -> Iterable[Any]:
        return parse_texts(arguments) if isinstance(self._embedder, TextEmbedder) else expand_image_paths(arguments)

    def prepare(self, item: Any) -> Any:
        """An image -> uint8 (C, image_size, image_size), an embedding -> float32 (T, M), or a text itself"""
        support = self._current().support
        if isinstance(self._embedder, TextEmbedder):
            return check_text(item)
        if support.images is not None:
            assert self._embedder is not None
            return read_pixels([item], self._embedder)[0]
        num_tokens, embed_dim = support.embeddings.shape[1:]
        try:
            embedding = torch.as_tensor(item).detach().cpu()[None]
        except (TypeError, ValueError, RuntimeError) as error:
            kind = "a path" if isinstance(item, str | Path) else type(item).__name__
            rule = f"inputs must be embeddings of dimension {embed_dim}, as the classifier was fitted to"
            raise SightlineError(f"{rule}, got {kind}") from error
        embedding = check_embeddings(embedding, embed_dim, "the input")[0]
        count = len(embedding)
        check(count == num_tokens, f"embeddings must have {num_tokens} tokens, as the examples, got {count}")
        return embedding

    def predict(
        self, inputs: Any, *, progress: Progress | None = None, transductive: bool = False, **options: Any
    ) -> Any:
        """A prediction for one image or embedding, or a list for a list or an array with a batch dimension.

        Predictions do not depend on each other, unless `transductive` is set, for a head that was trained for it.
        """
        items = self._as_list(inputs)
        if not transductive:
            return super().predict(inputs if items is None else items, progress=progress, **options)
        rule = "transductive must be False for a head that was not trained with model.transductive=true"
        check(self._current().model.config.transductive, f"{rule}, got True")
        method, fix = self._ready().choice.method, "call fit(..., method='head')"
        check(method == "head", f"method must be head for transductive predictions, got {method!r}; {fix}")
        if not items:
            raise SightlineError("inputs of a transductive prediction must be a list of images, got one image or none")
        check_max(limits.MAX_TRANSDUCTIVE_IMAGES, inputs=len(items))
        self.check_ready()
        return self.predict_together(items, transductive=True)

    @torch.no_grad()
    def predict_batch(
        self, prepared: list[Tensor], *, top_k: int | None = None, transductive: bool = False
    ) -> list[FewShotPrediction]:
        fitted = self._ready()
        query, pixels = self._embed(fitted, prepared)
        head, support = fitted.model.head, fitted.support
        if transductive:
            episode = (x[None].to(head.device) for x in (support.embeddings, support.labels, query))
            logits = head(*episode, way=len(support.classes))[0].cpu()
        else:
            logits = classify(fitted.head, fitted.state, query)
        return _predictions(fitted, logits, query, pixels, transductive=transductive)

    @property
    def input_kind(self) -> Literal["text", "image"]:  # type: ignore[override]
        """What one input is."""
        return "text" if isinstance(self._embedder, TextEmbedder) else "image"

    def inspect_batch(
        self, prepared: list[Any], *, top_k: int | None = None, **options: Any
    ) -> list[tuple[FewShotPrediction, Inspection]]:
        """Predictions with their explanations; `options` are those of `FewShotPrediction.explain`."""
        predictions, results = self.predict_batch(prepared), list[tuple[FewShotPrediction, Inspection]]()
        for prediction in predictions:
            explanation = explanation_data([prediction.explain(**options).card()])
            results.append((prediction, Inspection(values={"explanation": explanation})))
        return results

    def explain_batch(
        self, prepared: list[Tensor], inputs: list[Any], *, progress: Progress | None = None, top_k: int | None = None
    ) -> tuple[list[FewShotPrediction], Page]:
        fitted, predictions, cards = self._ready(), list[FewShotPrediction](), list[ExplanationCard]()
        for start in range(0, len(prepared), self.batch_size):
            query, pixels = self._embed(fitted, prepared[start : start + self.batch_size])
            batch = _predictions(fitted, classify(fitted.head, fitted.state, query), query, pixels)
            predictions += batch
            for explanation in explain(fitted, query, pixels, batch):
                item = inputs[len(cards)]
                name = str(item) if isinstance(fitted.embedder, TextEmbedder) else None
                name = Path(item).name if name is None and isinstance(item, str | Path) else name
                cards.append(explanation.card(name=name))
            if progress is not None:
                progress(len(cards), len(prepared))
        return predictions, explanation_page(cards, title=str(predictions[0]))

    def _embed(self, fitted: Fitted, prepared: list[Any]) -> tuple[Tensor, Any]:
        """Embeddings (N, T, M) of prepared inputs, and their pixels (N, C, side, side) or texts; None if none."""
        if isinstance(fitted.embedder, TextEmbedder):
            return fitted.embedder.embed(prepared).cpu(), prepared
        stacked = torch.stack(prepared)
        if fitted.support.images is None:
            return stacked, None
        assert fitted.embedder is not None
        return fitted.embedder.embed(stacked).cpu(), stacked

    def details(self) -> dict[str, Any]:
        """The model and its embedder, the classes with their numbers of examples, and the calibration.

        Rates that are estimated on fewer than `MIN_ESTIMATE_IMAGES` held-out images are None.
        """
        fitted = self._ready()
        name = None if fitted.embedder is None else getattr(fitted.embedder, "name", None)
        model = None if self.model_name is None else printable(self.model_name)
        values = {"model": model, "embedder": name, "method": fitted.choice.describe(self.input_kind)}
        values |= {"examples": len(fitted.support), "classes": self.counts}
        calibration = config.plain(fitted.calibration) | {"held_out_images": fitted.num_held_out}
        if fitted.num_held_out < MIN_ESTIMATE_IMAGES:
            calibration |= dict.fromkeys(("auroc", "rejected_known", "accepted_unknown"))
        return values | {"calibration": calibration}

    def columns(self, top: int | None = None) -> list[str]:
        return ["label", "closest", "confidence", "known", "known_score", *(f"scores.{name}" for name in self.classes)]

    def evaluate(
        self, data: Any = None, *, progress: Progress | None = None, show: str | Path | None = None
    ) -> ClassifierEvaluation:
        """Accuracy, calibration, rejection and mistakes on labeled images.

        `data` is a folder with one folder of images per class (or any data set that `sightline data` reads), or
        {label: images or embeddings}; of texts, a tab-separated file or {label: texts}. Images of classes that the
        classifier does not have are unknown images. `show` is the path of a page to write.
        """
        noun, source = self.input_kind, "file" if self.input_kind == "text" else "folder"
        rule = f"data must be a {source} of labeled {noun}s for a fitted classifier"
        fix = (
            f"pass data= (--data {source.upper()}); estimate() returns the accuracy estimated from the support {noun}s"
        )
        check(data is not None, f"{rule}, got none; {fix}")
        page = None if show is None else check_page_path(Path(show))
        evaluation = evaluate(self, self._ready().support, self._embedder, data, progress)
        if page is not None:
            evaluation.page().save(page)
        return evaluation

    def show(self, *args: Any, **options: Any) -> Any:
        """Raises SightlineError: predictions of a classifier are explained on a page."""
        fix = "sightline predict FILE IMAGE --show page.html explains its predictions"
        raise SightlineError(f"run must be the folder of a run to draw figures of, got a fitted classifier; {fix}")

    def __repr__(self) -> str:
        counts = self.counts
        size = f"{len(counts)} classes, {sum(counts.values())} examples" if counts else "not fitted"
        return f"FewShotClassifier({size})"

    def _embed_dim(self) -> int | None:
        """The dimension that embeddings must have; None for any."""
        if self.model is None or (self._embedder is None and self.model.config.depth == 0):
            return None
        return self.model.embed_dim

    def _current(self) -> Fitted:
        fitted = self._fitted
        if fitted is None:
            raise SightlineError("a classifier must be fitted first, got one without classes; call fit(folder)")
        return fitted

    def _ready(self) -> Fitted:
        """The current state with its encoding and calibration, which one thread computes at a time."""
        with self._lock:
            fitted = self._current()
            fitted.state, fitted.calibration  # noqa: B018 - computed on first use
        return fitted

    def check_ready(self) -> None:
        """Raise errors that concern all inputs before any input is read."""
        if self._current().has_inputs and isinstance(self._embedder, ExternalEmbedder):
            self._embedder.encoder  # noqa: B018 - loads it

    def _as_list(self, inputs: Any) -> list[Any] | None:
        """The items of a list, a tuple or an array with a batch dimension; None for a single item."""
        support = self._current().support
        if isinstance(inputs, list | tuple):
            return list(inputs)
        if isinstance(inputs, np.ndarray | Tensor):
            item_dimensions = 3 if support.images is not None else 1 if support.embeddings.shape[1] == 1 else 2
            return list(inputs) if inputs.ndim > item_dimensions else None
        if isinstance(inputs, Mapping | set):
            raise SightlineError(f"inputs must be one image or a list of images, got {type(inputs).__name__}")
        return None


def _predictions(
    fitted: Fitted, logits: Tensor, query: Tensor, pixels: Any, *, transductive: bool = False
) -> list[FewShotPrediction]:
    """Predictions from logits (N, way), embeddings (N, T, M) and pixels or texts of the queries."""
    calibration, classes = fitted.calibration, fitted.support.classes
    probabilities = (calibration.scale * logits.double()).softmax(-1)
    order = probabilities.argsort(dim=-1, descending=True, stable=True).tolist()
    known_scores = calibration.known_score(logits).tolist()
    predictions = []
    for i, row in enumerate(probabilities.tolist()):
        best, image = order[i][0], None if pixels is None else pixels[i : i + 1]
        predictions.append(
            FewShotPrediction(
                label=classes[best],
                confidence=row[best],
                known=known_scores[i] >= 0.5,
                scores={classes[j]: row[j] for j in order[i]},
                known_score=known_scores[i],
                transductive=transductive,
                _explain=partial(explain, fitted, query[i : i + 1], image),
            )
        )
    return predictions


def _load_encoder(name: str, weights: str | None) -> tuple[FewShot, ExternalEmbedder]:
    """An embedder by its name, and a nearest-mean model for its embeddings."""
    try:
        encoder = load_embedder(name, weights=weights)
    except MissingDependencyError:
        raise
    except SightlineError as error:
        if name in EMBEDDERS:
            raise
        reason = f" ({error})" if "/" in name or Path(name).is_dir() else ""
        rule = "model must be the folder of a few-shot run or of a Hugging Face model, hub:owner/name, or"
        known = [AUTO, *few_shot_models(), *EMBEDDERS, *PACKAGES]
        raise SightlineError(f"{rule} {one_of(name, known)}{reason}") from error
    model = nearest_mean_model(encoder.embed_dim)
    embedder = ExternalEmbedder(name, model.config, weights)
    embedder.loaded = encoder
    return model, embedder


_classifiers: WeakSet[FewShotClassifier] = WeakSet()


def _repair_after_fork() -> None:
    """Make classifiers usable in a forked process, in which the other threads of its parent do not exist.

    Locks that such a thread held are replaced. Torch would wait forever for its own threads, so it gets one only.
    """
    for classifier in _classifiers:
        classifier._lock = RLock()
        if isinstance(classifier._embedder, ExternalEmbedder):
            classifier._embedder.renew_lock()
    if _classifiers:
        torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_repair_after_fork)


def _listed(names: Sequence[str]) -> str:
    """The first names, and the number of the others."""
    more = len(names) - MAX_LISTED_CLASSES
    listed = ", ".join(shortened(name, 40) for name in names[:MAX_LISTED_CLASSES])
    return listed + (f" and {more} more" if more > 0 else "")

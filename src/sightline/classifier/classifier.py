"""FewShotClassifier: the predictor of a few-shot model that is fitted to a few images per class."""

from collections.abc import Callable, Mapping
from copy import copy
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any, Self

import torch

from .. import zoo
from ..errors import check, check_choice
from ..files import CONFIG, warn_unfinished
from ..models.embedders import CustomEmbedder, ExternalEmbedder, as_embedder, make_embedder
from ..models.few_shot import FewShot, nearest_mean_model
from ..models.text_embedders import is_text_model
from ..predictor import Progress
from . import file
from .choice import AUTO
from .duplicates import warn_repeated
from .fitted import Fitted
from .fitted_predictor import FittedPredictor
from .methods import METHODS, SPATIAL
from .model_choice import PHOTOS, ModelChoice, choose_model
from .pretrained import load_image_encoder, load_run, load_text_encoder
from .support import MIN_CLASSES, SupportSet, as_label, check_labels, list_examples, read_support


class FewShotClassifier(FittedPredictor):
    """A classifier that is fitted to a few examples per class. It detects unknown images and explains predictions.

    `FewShotClassifier.pretrained(name)` classifies images. `FewShotClassifier(embedder=function)` classifies images
    with any torch module or callable as their encoder; a `CustomEmbedder` says how images are prepared for it.
    `FewShotClassifier()` classifies embeddings of any encoder, of images, text or sound.

    Methods can be called from several threads. A fitted classifier is pickled as the content of its file, so it can be
    sent to other processes, where it is on the CPU.

    Predictions do not depend on the other images of a call, up to rounding errors of float32: scores of one image alone
    and in a list agree to about 1e-6.
    """

    model: FewShot | None

    def __init__(self, model: FewShot | None = None, embedder: Any = None):
        rule, kind = "model must be a few-shot model of Sightline", type(model).__name__
        is_valid = model is None or isinstance(model, FewShot)
        check(is_valid, f"{rule}, got {kind}; for an image encoder use FewShotClassifier(embedder=...)")
        own = None if model is None else make_embedder(model)
        super().__init__(own if embedder is None else as_embedder(embedder))
        is_unused = own is not None and isinstance(self._embedder, CustomEmbedder)
        check(not is_unused, "embedder must be left out for a model with a backbone, got one")
        self.model = None if model is None else model.eval().requires_grad_(False)
        self._pretrain: Callable[[str], Self] | None = None  # loads a model by its name, if one is to be chosen

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
            return cls(*load_text_encoder(str(name), weights))._named(name)
        zoo.warn_if_hidden(name)
        folder = zoo.folder(name)
        if (folder / CONFIG).is_file():
            classifier = cls(*load_run(folder, name, weights, allow_download=allow_download))
            warn_unfinished(folder)
            return classifier._named(zoo.display_name(folder))
        if str(name) != AUTO:
            return cls(*load_image_encoder(str(name), weights))._named(name)
        check(weights is None, f"weights must be left out if the model is {AUTO}, got {str(weights)!r}")
        classifier = cls()
        classifier._pretrain = partial(cls.pretrained, allow_download=allow_download)
        return classifier

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

        `method` is `head`, `prototypes`, `ridge`, `spatial`, `logistic` or `blend`; `auto` chooses one by the held-out
        examples.
        `reject` is the fraction of images of known classes that may be rejected as unknown, above 0 and below 1. By
        default the threshold is between known and unknown images.
        """
        check_choice("method", method, (AUTO, *METHODS))
        rate: Any = reject  # of any numeric type, such as those of NumPy
        is_rate = rate is None or (isinstance(rate, Real) and 0 < float(rate) < 1)
        check(is_rate, f"reject must be a rate above 0 and below 1, got {reject!r}")
        reject = None if reject is None else float(reject)
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

        def fit(name: str) -> FewShotClassifier:
            return pretrain(name).to(self.device).fit(examples, **options)

        if options["method"] == SPATIAL:
            choice, chosen = ModelChoice(PHOTOS, f"the model with the method {SPATIAL}"), fit(PHOTOS)
        else:
            choice, chosen = choose_model(examples, fit)
        with self._lock:
            self.model, self._embedder, self._fitted = chosen.model, chosen._embedder, chosen._fitted
            self.model_choice, self.model_name = choice, chosen.model_name
        return self

    def add(self, label: str | int, examples: Any) -> Self:
        """Add a class, or examples of a class. Duplicates are reported by a `SightlineWarning`."""
        before, label = self._current().support, as_label(label)
        new = read_support({label: examples}, self._embedder, before.embeddings.shape[-1])
        with self._lock:
            fitted = self._current()
            check_labels([*(name for name in fitted.support.classes if name != label), label])
            self._fitted = fitted.changed(support := fitted.support.merged(new))
            self.model_choice = None  # its accuracies are those of other examples
        warn_repeated(fitted.support, support, are_texts=self.input_kind == "text")
        return self

    def remove(self, label: str | int) -> Self:
        """Remove a class."""
        with self._lock:
            fitted = self._current()
            rest = fitted.support.without_class(label := as_label(label))
            got = f"got {label!r} to remove of 2; add another first"
            check(len(rest.classes) >= MIN_CLASSES, f"a classifier must keep {MIN_CLASSES} classes, {got}")
            self._fitted = fitted.changed(rest)
            self.model_choice = None
        return self

    def __repr__(self) -> str:
        counts = self.counts
        size = f"{len(counts)} classes, {sum(counts.values())} examples" if counts else "not fitted"
        return f"FewShotClassifier({size})"

    def _embed_dim(self) -> int | None:
        """The dimension that embeddings must have; None for any."""
        if self.model is None or (self._embedder is None and self.model.config.depth == 0):
            return None
        return self.model.embed_dim

"""The interface of a trained model: inputs in; predictions, explanations and evaluations out.

The command line uses a model through this interface only.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self

from . import hub, limits, zoo
from .errors import MissingDependencyError, SightlineError, check, check_page_size
from .progress import Progress as Progress
from .results import Explanations, FailedPrediction, Prediction, list_failures, merge_predictions

if TYPE_CHECKING:
    import torch

    from .view.inspection import Inspection
    from .view.page import Page

SELECTION_NOTES = {"validation": "; it also selected the model, so expect less on new data"}
"""What a report says about a split that was used in training."""
SPLIT_NOTES = {"validation": "; it also selected and calibrated the model, so expect less on new data"}
"""The same for a model whose confidence is calibrated."""


class InputToken(NamedTuple):
    """A token, or a patch, of a prepared input."""

    text: str
    is_removable: bool


class FineTuned(NamedTuple):
    """A part of a model that had been trained before on other data."""

    prefix: str
    """Of the names of its tensors."""
    origin: str
    """What it was before, with the data and the license of its weights."""


class Predictor(ABC):
    """A trained model, ready to use.

    A subclass implements `load` and `evaluate`; and `parse_inputs`, `prepare`, `predict_batch` and `explain_batch`
    unless its `check_ready` always raises.
    """

    batch_size: ClassVar[int] = 64
    """Inputs that are prepared and predicted together."""
    evaluate_options: ClassVar[frozenset[str]] = frozenset()
    """Names of the options that `evaluate` accepts."""
    predict_options: ClassVar[frozenset[str]] = frozenset()
    """Names of the options that `predict` accepts beside `top_k`."""
    allow_download: bool = False
    """Whether an external model that a file or config names may be downloaded from the hub."""
    needs_data_fingerprint: ClassVar[bool] = False
    """Whether a pretrained model keeps the fingerprint of its training data."""
    input_kind: Literal["text", "image"] = "text"
    """What one input is."""
    has_attention: bool = True
    """Whether `inspect_batch` has attention to show."""
    external_model: str | None = None
    """The model whose output this one takes, if that is not part of its files."""
    fine_tuned: FineTuned | None = None
    """The part of the model that its training started from."""

    folder: Path
    """The run's folder."""
    config: Any
    model: Any
    device: "torch.device"

    @classmethod
    @abstractmethod
    def load(cls, path: str | Path) -> Self:
        """Read a trained model from a folder or file."""

    def to(self, device: "str | torch.device") -> Self:
        """Move the model to a device."""
        import torch

        self.device = torch.device(device)
        self.model.to(self.device)
        return self

    @property
    def kind(self) -> str:
        """What it is, in error messages."""
        return f"a run of {self.config.task}"

    @property
    def data_source(self) -> str:
        """The data that it was trained on, as its config names it; empty for a fitted classifier."""
        return str(self.config.data.source)

    @property
    def max_page_inputs(self) -> int:
        """Inputs that `explain` shows on one page."""
        return limits.MAX_EXAMPLES_PER_PAGE

    @property
    def max_input_tokens(self) -> int | None:
        """Tokens of a text that the model reads, without special ones; None if there is no such limit."""
        return None

    def check_ready(self) -> None:  # noqa: B027  # most models are always ready
        """Raise errors that concern all inputs before any input is read."""

    def check_predict_options(self, run: str | Path, options: Mapping[str, Any]) -> None:
        """Raise an error for an option that this model does not take; `run` is its name in the message."""
        for name in options:
            flag, is_supported = name.removeprefix("num_"), name in self.predict_options
            check(is_supported, f"--{flag} must be left out for {self.kind}, got it for {run}")

    def parse_inputs(self, arguments: Sequence[str]) -> Iterable[Any]:
        """Inputs from command-line arguments, such as paths, folders or text."""
        self.check_ready()
        raise NotImplementedError

    def prepare(self, item: Any) -> Any:
        """Turn one input into what `predict_batch` takes, or raise SightlineError."""
        raise NotImplementedError

    def prepare_all(self, inputs: Iterable[Any]) -> list[Any]:
        """Prepared inputs, with a `FailedPrediction` in place of each that cannot be used."""
        return [self._prepared(item) for item in inputs]

    def predict_batch(self, prepared: list[Any], *, top_k: int | None = None) -> list[Any]:
        """Predictions for prepared inputs, in order; `top_k` is the number of alternatives, if the task searches."""
        raise NotImplementedError

    def predict(self, inputs: Any, *, progress: Progress | None = None, **options: Any) -> Any:
        """A prediction for one input, or a list of predictions for a list or tuple of inputs.

        In a list, an input that cannot be used gets a prediction whose `error` is set. A single such input raises
        SightlineError.
        """
        if isinstance(inputs, list | tuple):
            return list(self.stream(inputs, progress=progress, total=len(inputs), **options))
        [prediction] = self.stream([inputs], **options)
        if prediction.error is not None:
            raise SightlineError(prediction.error)
        return prediction

    def stream(
        self, inputs: Iterable[Any], *, progress: Progress | None = None, total: int | None = None, **options: Any
    ) -> Iterator[Prediction]:
        """Predictions for inputs of any number, in order; at most `batch_size` inputs are in memory."""
        self.check_ready()
        items, done = iter(inputs), 0
        while batch := list(islice(items, self.batch_size)):
            yield from self.predict_together(batch, **options)
            done += len(batch)
            if progress is not None and total is not None:
                progress(done, total)

    def predict_together(self, inputs: Sequence[Any], **options: Any) -> list[Any]:
        """Predictions for inputs as one batch, whatever their number."""
        prepared = self.prepare_all(inputs)
        usable = [item for item in prepared if not isinstance(item, FailedPrediction)]
        return list(merge_predictions(prepared, self.predict_batch(usable, **options) if usable else ()))

    def explain(self, inputs: Any, *, progress: Progress | None = None, **options: Any) -> Explanations:
        """Predictions for one input, or a list or tuple of a few inputs, and a page that explains them."""
        self.check_ready()
        inputs = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
        check_page_size(self.max_page_inputs, inputs=len(inputs))
        prepared = self.prepare_all(inputs)
        usable = [pair for pair in zip(prepared, inputs, strict=True) if not isinstance(pair[0], FailedPrediction)]
        if not usable:
            return Explanations(inputs, prepared, None)
        predictions, page = self.explain_batch(*map(list, zip(*usable, strict=True)), progress=progress, **options)
        failures = list_failures(inputs, prepared)
        page = page.with_failures(failures) if failures else page
        return Explanations(inputs, list(merge_predictions(prepared, predictions)), page)

    def explain_batch(
        self, prepared: list[Any], inputs: list[Any], *, progress: Progress | None = None, top_k: int | None = None
    ) -> "tuple[list[Any], Page]":
        """Predictions for prepared inputs, and a page of them; `inputs` are what they were prepared from."""
        raise NotImplementedError

    def inspect_batch(
        self, prepared: list[Any], *, top_k: int | None = None, **options: Any
    ) -> "list[tuple[Any, Inspection]]":
        """Predictions for prepared inputs, each with its tokens and attention as plain values."""
        raise SightlineError(f"attention must be left out for {self.kind}, got it; this model has none to show")

    def input_tokens(self, prepared: Any) -> list[InputToken]:
        """The tokens of a prepared input, or the patches of an image row by row; none if they cannot be removed."""
        return []

    def remove_tokens(self, prepared: Any, positions: Sequence[int]) -> Any:
        """A prepared input without the tokens at these positions of `input_tokens`, of which some must remain."""
        tokens, removed = self.input_tokens(prepared), frozenset(positions)
        removable = {i for i, token in enumerate(tokens) if token.is_removable}
        wrong = sorted(removed - removable)
        rule = f"remove_tokens must be positions of the {len(tokens)} tokens of the input, without special tokens"
        check(not wrong, f"{rule}, got {wrong[:10]}")
        is_partial = not removed or removed < removable
        check(is_partial, f"remove_tokens must leave at least one token, got all {len(removed)}")
        return self._without_tokens(prepared, removed) if removed else prepared

    def _without_tokens(self, prepared: Any, positions: frozenset[int]) -> Any:
        raise NotImplementedError

    @abstractmethod
    def evaluate(self, data: Any = None, *, progress: Progress | None = None) -> Any:
        """Metrics on the test set of the run's data, or on other data: a path or a loaded data set."""

    def check_data(self, source: str, exists: bool) -> None:
        """Check that the data to evaluate on exists; generated data always does."""
        from .data.fetching.catalog import fetch_hint
        from .data.sources import BUILTIN_SOURCES

        rule = f"the data of {zoo.display_name(self.folder)} must exist for an evaluation, got {source!r}"
        is_available = exists or source in BUILTIN_SOURCES
        fix = f"pass its path, or other data, with --data PATH{fetch_hint(source)}"
        check(is_available, f"{rule}, which does not; {fix}")

    def columns(self, top: int | None = None) -> list[str] | None:
        """Keys of the flattened `csv_values` of every prediction: the columns of a CSV file.

        `top` is the number of alternatives. None takes the keys of the first prediction.
        """
        return None

    def csv_values(self, prediction: Prediction) -> dict[str, Any]:
        """The values of a prediction, or of a failed one, in a CSV file."""
        return prediction.to_dict()

    def show(self, inputs: Sequence[Any] = (), out: str | Path | None = None, *, format: str = "png") -> Any:
        """Write figures of the model, and of its attention on these inputs, to a folder."""
        raise SightlineError(f"figures must be of a trained run, got {type(self).__name__}, which has none")

    def details(self) -> dict[str, Any]:
        """What `sightline info` shows beside size and training: plain JSON values."""
        return {}

    def portable(self) -> tuple[Any, dict[str, Any]]:
        """The config and state dict of a pretrained model, without what only training needs."""
        return replace(self.config, out=None), self.model.state_dict()

    def save_pretrained(self, folder: str | Path) -> Path:
        """Copy the files of the model into a folder."""
        return hub.copy_run(self.folder, Path(folder))

    def push_to_hub(
        self, name: str, *, private: bool = False, token: str | None = None, revision: str | None = None
    ) -> str:
        """Upload the model to the Hugging Face Hub as `owner/name`; returns the address of the commit."""
        return hub.upload(self.folder, name, private=private, token=token, revision=revision)

    @classmethod
    def from_pretrained(cls, name: str | Path, *, revision: str | None = None, token: str | None = None) -> Self:
        """Load from a folder, or from the Hugging Face Hub by `hub:owner/name`."""
        return cls.load(hub.resolve(name, revision=revision, token=token))

    def _prepared(self, item: Any) -> Any:
        from .data.images.paths import check_not_image_file

        try:
            if self.input_kind == "text":
                check_not_image_file(item)
            return self.prepare(item)
        except MissingDependencyError:
            raise
        except SightlineError as error:
            return FailedPrediction(str(error))

"""What trained text encoders share: predictions for sentences, with the attention behind them."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..attention import Record, record_attention
from ..data.text.tokenizers import Tokenizer
from ..predictor import InputToken, Progress
from ..view.inspection import Inspection
from .figures import FigureFiles, training_curves
from .text_predictor import (
    TextPredictor,
    attention_figure,
    input_batch,
    inspection,
    padded,
    sentence_tokens,
    without_padding,
    without_positions,
)

if TYPE_CHECKING:
    from ..view.page import Page


class CutTokens(list[int]):
    """Token ids of a text that is longer than the model reads."""

    def __init__(self, ids: Iterable[int], num_cut: int):
        super().__init__(ids)
        self.num_cut = num_cut


class EncoderPredictor(TextPredictor):
    """A trained text encoder with a head. A prepared input is the token ids of a sentence.

    Predictions are frozen dataclasses with the fields `tokens` and `attention`.
    """

    tokenizer: Tokenizer

    @property
    def max_input_tokens(self) -> int:
        return int(self.config.data.max_tokens) - 2  # and the start and end token

    @abstractmethod
    def predictions(self, prepared: list[list[int]], logits: Tensor, top_k: int | None) -> list[Any]:
        """Predictions from the logits of prepared sentences."""

    @abstractmethod
    def page_name(self, text: str, prediction: Any) -> str:
        """The name of a text on a page."""

    @abstractmethod
    def page_scores(self, prediction: Any) -> dict[str, Any]:
        """The answers beside the picture of a text, as `Record.view` takes them."""

    @abstractmethod
    def shown_tokens(self, prediction: Any) -> Sequence[str]:
        """The tokens of a prediction as a page and a figure show them."""

    def predict_batch(
        self, prepared: list[list[int]], *, top_k: int | None = None, attention: bool = False
    ) -> list[Any]:
        """Predictions for prepared texts. `attention` records the attention."""
        if not attention:
            return self.predictions(prepared, self.logits(prepared), top_k)
        logits, record = self._recorded(prepared)
        predictions = self.predictions(prepared, logits, top_k)
        return [
            replace(prediction, attention=without_padding(record, i, len(prepared[i])))
            for i, prediction in enumerate(predictions)
        ]

    def logits(self, prepared: list[list[int]]) -> Tensor:
        """float32 (B, ...) on the CPU"""
        pad_id = self.tokenizer.special_tokens.id("pad")
        with torch.inference_mode():
            logits: Tensor = self.model(*input_batch(prepared, pad_id, self.device))
        return logits.float().cpu()

    def _recorded(self, prepared: list[list[int]]) -> tuple[Tensor, Record]:
        with record_attention(self.model, cpu=True) as record:
            logits = self.logits(prepared)
        return logits, record

    def explain_batch(
        self,
        prepared: list[list[int]],
        inputs: list[Any],
        *,
        progress: Progress | None = None,
        top_k: int | None = None,
    ) -> "tuple[list[Any], Page]":
        logits, record = self._recorded(prepared)
        predictions = self.predictions(prepared, logits, top_k)
        return predictions, self._page(inputs, predictions, record)

    def inspect_batch(
        self, prepared: list[list[int]], *, top_k: int | None = None, **options: Any
    ) -> list[tuple[Any, Inspection]]:
        predictions, special = self.predict_batch(prepared, top_k=top_k, attention=True), self.tokenizer.special_tokens
        return [(p, inspection(p.attention, {"source": p.tokens}, special)) for p in predictions]

    def input_tokens(self, prepared: list[int]) -> list[InputToken]:
        return sentence_tokens(self.tokenizer, prepared)

    def _without_tokens(self, prepared: list[int], positions: frozenset[int]) -> list[int]:
        kept = without_positions(prepared, positions)
        return CutTokens(kept, prepared.num_cut) if isinstance(prepared, CutTokens) else kept

    def _page(self, texts: Sequence[str], predictions: Sequence[Any], record: Record) -> "Page":
        """The viewer with one example per text."""
        special, length = self.tokenizer.special_tokens, max(len(prediction.tokens) for prediction in predictions)
        names = [self.page_name(text, prediction) for text, prediction in zip(texts, predictions, strict=True)]
        return record.view(
            [padded(self.shown_tokens(prediction), length) for prediction in predictions],
            batch=list(range(len(predictions))),
            special_tokens={special.tokens[i] for i in special.control_ids},
            scores=[self.page_scores(prediction) for prediction in predictions],
            title=names[0] if len(names) == 1 else f"{len(names)} texts",
            names=names,
        )

    def show(self, inputs: Sequence[str] = (), out: str | Path | None = None, *, format: str = "png") -> FigureFiles:
        """Write figures of the training curves, and of the attention on these texts, to a folder."""
        files = FigureFiles.create(self.folder, out, format)
        prepared, inputs = files.usable(self, inputs)
        files.add("training", training_curves, self.folder, "accuracy")
        if prepared:
            for i, prediction in enumerate(self.predict_batch(prepared, attention=True), start=1):
                tokens = self.shown_tokens(prediction)
                files.add(f"text-{i}", attention_figure, prediction.attention, tokens, str(prediction))
            files.add_page(self.explain_batch(prepared, inputs)[1])
        return files

"""A trained masked language model: the best words for masked positions, and the attention behind them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ... import config
from ...attention import Record
from ...data.text.masking import TokenMasker
from ...data.text.tokenizers import Tokenizer
from ...errors import check, check_int
from ...files import CONFIG
from ...models.masked_lm import MaskedLM
from ...names import printable, shortened
from ...predictor import Progress
from ...results import Prediction
from ...weights import read_weights
from ..encoder_predictor import EncoderPredictor
from ..text_data import TOKENIZER, read_tokenizers
from ..text_predictor import MAX_NAME_CHARS, input_batch
from .config import MaskedLMTaskConfig
from .evaluate import MaskedLMEvaluation, evaluate

DEFAULT_TOP = 5
"""Words for each mask."""
MASK_SPELLINGS = re.compile(r"[\[<({]\s*mask\s*[\]>)}]|(?-i:\bMASK\b)|_{2,}", re.IGNORECASE)
"""What other tools and people write for a masked word."""


@dataclass(frozen=True)
class MaskedPosition:
    """The words predicted for one mask."""

    position: int
    """Index among the tokens of the text."""
    words: tuple[tuple[str, float], ...]
    """The best words and their probabilities, the best first. A part of a word that is not its start begins with ##."""

    def summary(self, top: int | None = None) -> str:
        """The best words on one line."""
        return ", ".join(f"{printable(word)} {probability:.1%}" for word, probability in self.words[:top])


@dataclass(frozen=True)
class FilledText:
    """A text with the best word for each mask."""

    text: str
    """The text with the best word in place of each mask."""
    masks: tuple[MaskedPosition, ...]
    tokens: tuple[str, ...]
    """Tokens of the text as the model read it, with the start and end token."""
    attention: Record | None = None
    """Recorded attention, if requested; one row and column per token."""
    error: None = None

    def to_dict(self) -> dict[str, Any]:
        masks = [
            {"position": m.position, "words": [{"word": word, "probability": p} for word, p in m.words]}
            for m in self.masks
        ]
        return {"text": self.text, "masks": masks, "tokens": list(self.tokens), "error": self.error}

    def summary(self, top: int | None = None) -> str:
        """The best words; with several masks, one line for each after the text."""
        if len(self.masks) == 1:
            return self.masks[0].summary(top)
        lines = [f"  {i}. {mask.summary(top)}" for i, mask in enumerate(self.masks, start=1)]
        return "\n".join([printable(self.text), *lines])

    def labels(self) -> list[str]:
        """The tokens, with the best word and its probability at each mask."""
        best = {mask.position: mask.words[0] for mask in self.masks}
        shown = {i: f"[{word} {probability:.0%}]" for i, (word, probability) in best.items()}
        return [shown.get(i, token) for i, token in enumerate(self.tokens)]

    def __str__(self) -> str:
        return self.text


class MaskedLMPredictor(EncoderPredictor):
    """A trained masked language model."""

    batch_size = 64
    config: MaskedLMTaskConfig
    model: MaskedLM

    def __init__(self, folder: Path, config: MaskedLMTaskConfig, tokenizer: Tokenizer, model: MaskedLM):
        self.folder, self.config, self.tokenizer = folder, config, tokenizer
        self.model, self.device = model.eval(), torch.device("cpu")
        masking = config.masking
        self.masker = TokenMasker(tokenizer, fraction=masking.fraction, whole_words=masking.whole_words)

    @classmethod
    def load(cls, path: str | Path) -> "MaskedLMPredictor":
        folder = Path(path)
        task_config = config.build(MaskedLMTaskConfig, config.read(folder / CONFIG))
        [tokenizer] = read_tokenizers(folder, task_config.tokenizer, [TOKENIZER])
        model_config = config.for_data(task_config.model, vocab_size=len(tokenizer))
        model = read_weights(folder, lambda: MaskedLM(model_config), depth=model_config.dimensions["depth"])
        return cls(folder, task_config, tokenizer, model)

    def to(self, device: str | torch.device) -> "MaskedLMPredictor":
        super().to(device)
        self.masker.to(self.device)
        return self

    def prepare(self, item: Any) -> list[int]:
        """Tokenize one text with at least one mask; token ids with the start and end token."""
        item, special = self.check_text(item, fix="split it into sentences"), self.tokenizer.special_tokens
        [ids] = self.tokenizer.encode_masked([item])
        shown, mask, max_tokens = shortened(item, 40), special.mask, self.max_input_tokens
        other = MASK_SPELLINGS.search(item)
        fix = f"put it in place of {other[0] if other else 'a word'}"
        check(special.id("mask") in ids, f"text must have at least one {mask}, got {shown!r}; {fix}")
        rule = f"text must be at most {max_tokens} tokens, the limit in training"
        check(len(ids) <= max_tokens, f"{rule}, got {len(ids)} in {shown!r}; split it into sentences")
        return [special.id("bos"), *ids, special.id("eos")]

    def logits(self, prepared: list[list[int]]) -> Tensor:
        """float32 (B, N, V) on the CPU, at the N masks of each text, without special tokens

        Positions of a text with fewer masks are 0 at the end.
        """
        masks = [self._mask_positions(ids) for ids in prepared]
        width = max(map(len, masks))
        positions = torch.tensor([[*row, *[0] * (width - len(row))] for row in masks], device=self.device)
        pad_id = self.tokenizer.special_tokens.id("pad")
        with torch.inference_mode():
            logits = self.model(*input_batch(prepared, pad_id, self.device), positions=positions).float().cpu()
            logits[..., : self.masker.num_special] = -torch.inf
        return logits

    def _mask_positions(self, ids: Sequence[int]) -> list[int]:
        return [i for i, token in enumerate(ids) if token == self.masker.mask_id]

    def predictions(self, prepared: list[list[int]], logits: Tensor, top_k: int | None) -> list[FilledText]:
        """The best `top_k` words for each mask (default: 5)."""
        count = DEFAULT_TOP if top_k is None else top_k
        check_int(1, top_k=count)
        count = min(count, len(self.tokenizer) - self.masker.num_special)
        filled = []
        for ids, row in zip(prepared, logits, strict=True):
            masks, best_ids = [], list(ids)
            for position, mask_logits in zip(self._mask_positions(ids), row, strict=False):  # padding is last
                probabilities, best = mask_logits.softmax(-1).topk(count)
                words = (self._word(i) for i in best.tolist())
                masks.append(MaskedPosition(position, tuple(zip(words, probabilities.tolist(), strict=True))))
                best_ids[position] = int(best[0])
            tokens = tuple(self.tokenizer.tokens(ids))
            filled.append(FilledText(self.tokenizer.decode(best_ids), tuple(masks), tokens))
        return filled

    def _word(self, token: int) -> str:
        """A token for display; one inside a word begins with ##."""
        [text] = self.tokenizer.tokens([token])
        is_part = self.config.tokenizer.kind == "bpe" and not self.masker.word_starts[token]
        return f"##{text}" if is_part else text

    def shown_tokens(self, prediction: FilledText) -> list[str]:
        """Each mask has the name of its best word."""
        return prediction.labels()

    def page_name(self, text: str, prediction: FilledText) -> str:
        best = ", ".join(mask.words[0][0] for mask in prediction.masks)
        return shortened(f"{text} → {best}", MAX_NAME_CHARS)

    def page_scores(self, prediction: FilledText) -> dict[str, Any]:
        """The best words for each mask."""
        masks = prediction.masks
        if len(masks) == 1:
            return {"Words for the mask": masks[0].words}
        return {f"Words for mask {i + 1}": mask.words for i, mask in enumerate(masks)}

    def details(self) -> dict[str, Any]:
        return {"vocabulary": len(self.tokenizer), "max_tokens": self.config.data.max_tokens}

    def columns(self, top: int | None = None) -> list[str]:
        return ["text", "words", "probabilities"]

    def csv_values(self, prediction: Prediction) -> dict[str, Any]:
        """In a CSV file, the best words and their probabilities are separated by spaces, one for each mask."""
        values = prediction.to_dict()
        best = [mask["words"][0] for mask in values.pop("masks", ())]
        values |= {"words": " ".join(word["word"] for word in best)} if best else {}
        return values | ({"probabilities": " ".join(f"{word['probability']:.4f}" for word in best)} if best else {})

    def evaluate(self, data: Any = None, *, progress: Progress | None = None) -> MaskedLMEvaluation:
        """Masked accuracy and pseudo-perplexity on the run's test set, or its validation set if it has none.

        For other data: on its test set, or on all of it if it has none.
        """
        return evaluate(self, *self.evaluation_corpus(data), progress)

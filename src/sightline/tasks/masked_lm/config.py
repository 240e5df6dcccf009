"""Config of masked language modeling."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from ...config import Config, at_least, rule
from ...data.text.corpora import MonolingualText, TextSplits, load_monolingual, monolingual_files
from ...data.text.groups import split_groups
from ...errors import check
from ...models.masked_lm import MaskedLMConfig
from ...training.config import TrainingConfig
from ..text_data import CorpusConfig, EncoderTokenizerConfig, TextTaskConfig, check_positions


@dataclass(frozen=True, kw_only=True)
class SentenceData(CorpusConfig):
    """The text to train on."""

    source: str = "sentences"
    """A text file with one sentence per line, a folder of .txt files (train, val and test, or any names), `sentences`,
    which are those of a small grammar, or `numbers`, English number words. Files can be compressed (.gz)."""
    group_stride: Annotated[int, at_least(2)] | None = None
    """Lines i, i + group_stride, i + 2 * group_stride and so on belong together, such as the captions of one image:
    all of them are held out, or none. Null if lines are independent."""

    def read(self, source: str | None = None) -> TextSplits[MonolingualText]:
        return load_monolingual(self.source if source is None else source)

    def files(self, source: str) -> dict[str, frozenset[Path]]:
        return monolingual_files(source)

    def split(self, corpus: Any, test_fraction: float, validation_fraction: float, seed: int) -> TextSplits[Any]:
        if self.group_stride is None or not test_fraction + validation_fraction:
            return super().split(corpus, test_fraction, validation_fraction, seed)
        return split_groups(corpus, self.group_stride, test_fraction, validation_fraction, seed)


@dataclass(frozen=True, kw_only=True)
class MaskingConfig(Config):
    """Which tokens are predicted. Of these, 80% are replaced by the mask token and 10% by a random token."""

    fraction: Annotated[float, rule("above 0 and below 1", lambda value: 0 < value < 1)] = 0.15
    """Fraction of the tokens, or of the words, that are predicted."""
    whole_words: bool = False
    """Choose words, with all of their tokens, instead of tokens."""


@dataclass(frozen=True, kw_only=True)
class MaskedLMTaskConfig(TextTaskConfig):
    """Config of a run that trains a masked language model.

    `training.batch_size` counts tokens, padding included.
    """

    task: Literal["masked_lm"] = "masked_lm"
    data: SentenceData = field(default_factory=SentenceData)
    tokenizer: EncoderTokenizerConfig = field(default_factory=EncoderTokenizerConfig)
    masking: MaskingConfig = field(default_factory=MaskingConfig)
    model: MaskedLMConfig = field(default_factory=MaskedLMConfig)
    training: TrainingConfig = field(default_factory=lambda: TrainingConfig(batch_size=8192))

    @classmethod
    def starter(cls) -> "MaskedLMTaskConfig":
        """The config without a file: learns the sentences of a small grammar."""
        return cls(
            data=SentenceData(max_tokens=32),
            tokenizer=EncoderTokenizerConfig(kind="word", lowercase=True),
            model=MaskedLMConfig(embed_dim=64, ffn_dim=128, num_heads=4, depth=2, max_positions=32, dropout=0.0),
            training=TrainingConfig(
                steps=1200,
                batch_size=2048,
                learning_rate=3e-3,
                warmup_steps=100,
                weight_decay=0.01,
                evaluate_every=200,
                log_every=50,
            ),
        )

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.data.max_tokens >= 3, f"data.max_tokens must be at least 3, got {self.data.max_tokens}")
        has_mask = self.tokenizer.special_tokens.mask is not None
        check(has_mask, "tokenizer.special_tokens.mask must be a token such as [MASK], got null")
        check_positions(self.model, self.data.max_tokens)

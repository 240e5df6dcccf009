"""Config of text classification."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ...config import Fraction
from ...data.text.corpora import TextSplits
from ...data.text.labeled import LabeledText, check_training_labels, labeled_files, load_labeled
from ...errors import check
from ...models.text_classifier import TextClassifierConfig
from ...training.config import TrainingConfig
from ..text_data import Column, CorpusConfig, EncoderTokenizerConfig, TextTaskConfig, check_positions


@dataclass(frozen=True, kw_only=True)
class LabeledData(CorpusConfig):
    """The labeled texts to train on."""

    source: str = "sentences"
    """A tab-separated file with a text and its label in each line, a folder (train.tsv, and perhaps val and test), or
    `sentences`: sentences of a small grammar with their topics. Files can be compressed (.gz)."""
    columns: tuple[Column, Column] = (1, 2)
    """Numbers of the columns of the text and of the label, counted from 1: [2, 1] where the label is first."""
    header: bool = False
    """Skip the first line."""
    validation_fraction: Fraction = 0.1
    """Fraction of the training texts to hold out where the data has no validation set; 0 for none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(len({*self.columns}) == 2, f"columns must be two different columns, got {self.columns[0]} twice")

    def read(self, source: str | None = None) -> TextSplits[LabeledText]:
        return load_labeled(self.source if source is None else source, columns=self.columns, header=self.header)

    def load(self, seed: int) -> TextSplits[LabeledText]:
        """Read the source, check its labels, and hold out test and validation sets."""
        splits = self.read()
        check_training_labels(splits.train, self.source, self.columns)
        return self.hold_out(splits, seed)

    def files(self, source: str) -> dict[str, frozenset[Path]]:
        return labeled_files(source)

    def split(self, corpus: Any, test_fraction: float, validation_fraction: float, seed: int) -> TextSplits[Any]:
        """Hold out fractions of a corpus. Held-out texts of a class without others stay in the training set."""
        splits = super().split(corpus, test_fraction, validation_fraction, seed)
        train, known, kept = splits.train, {*splits.train.labels}, dict[str, LabeledText | None]()
        for name in ("validation", "test"):
            held_out = getattr(splits, name)
            is_known = [] if held_out is None else [label in known for label in held_out.labels]
            if not all(is_known):
                rest = held_out.take([i for i, known_label in enumerate(is_known) if not known_label])
                train = LabeledText(train.texts + rest.texts, train.labels + rest.labels, train.num_dropped)
                indices = [i for i, known_label in enumerate(is_known) if known_label]
                held_out = held_out.take(indices) if indices else None
            kept[name] = held_out
        return TextSplits(train, **kept)


@dataclass(frozen=True, kw_only=True)
class TextClassificationTaskConfig(TextTaskConfig):
    """Config of a run that trains a text classifier.

    `training.batch_size` counts tokens, padding included.
    """

    task: Literal["text_classification"] = "text_classification"
    data: LabeledData = field(default_factory=LabeledData)
    tokenizer: EncoderTokenizerConfig = field(default_factory=EncoderTokenizerConfig)
    model: TextClassifierConfig = field(default_factory=TextClassifierConfig)
    label_smoothing: Fraction = 0.0
    training: TrainingConfig = field(default_factory=lambda: TrainingConfig(batch_size=2048))

    @classmethod
    def starter(cls) -> "TextClassificationTaskConfig":
        """The config without a file: topics of the sentences of a small grammar."""
        return cls(
            data=LabeledData(max_tokens=32),
            tokenizer=EncoderTokenizerConfig(kind="word", lowercase=True),
            model=TextClassifierConfig(embed_dim=64, ffn_dim=128, num_heads=4, depth=2, max_positions=32),
            training=TrainingConfig(
                steps=200, batch_size=1024, learning_rate=1e-3, warmup_steps=20, evaluate_every=50, log_every=20
            ),
        )

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.data.max_tokens >= 3, f"data.max_tokens must be at least 3, got {self.data.max_tokens}")
        check_positions(self.model, self.data.max_tokens)

"""Config of translation."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from ...config import Config, Fraction, at_least, at_most, for_data, rule
from ...data.text.batching import LENGTH_MULTIPLE, padded_length
from ...data.text.corpora import ParallelText, TextSplits, extend_training, load_parallel, source_files
from ...data.text.tokenizers import TokenizerConfig
from ...errors import check
from ...models.seq2seq import RecurrentSeq2SeqConfig, Seq2SeqConfig, TransformerSeq2SeqConfig
from ...training.config import TrainingConfig
from ..text_data import Column, CorpusConfig, SearchConfig, TextTaskConfig

Language = Annotated[
    str, rule("a file suffix such as de", lambda text: text.replace("-", "").replace("_", "").isalnum())
]


@dataclass(frozen=True, kw_only=True)
class TextData(CorpusConfig):
    """The sentence pairs to train on."""

    source: str = "numbers"
    """A folder (train.de and train.en, or train.tsv; val and test likewise), a tab-separated file, two aligned files
    without their suffixes, or `numbers`: German number words, which need no file. Files can be compressed (.gz)."""
    extra_sources: tuple[str, ...] = ()
    """Files with further training pairs, in the form of `source`. Pairs whose target sentence is in the validation or
    test set are left out."""
    languages: tuple[Language, Language] = ("de", "en")
    """Source and target language; the suffixes of aligned files."""
    columns: tuple[Column, Column] = (1, 2)
    """Columns of the source and target sentences in a tab-separated file, counted from 1."""
    header: bool = False
    """Skip the first line of a tab-separated file."""

    max_tokens: Annotated[int, at_least(2), at_most("MAX_SENTENCE_TOKENS")] = 128
    """Maximum number of tokens of a sentence, its end token included. Longer training pairs are left out; longer
    evaluation sentences are cut."""

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.source, *self.extra_sources)

    def __post_init__(self) -> None:
        super().__post_init__()
        check(len({*self.columns}) == 2, f"columns must be two different columns, got {self.columns[0]} twice")
        check(
            len({*self.languages}) == 2, f"languages must be two different languages, got {self.languages[0]!r} twice"
        )

    def read(self, source: str | None = None) -> TextSplits[ParallelText]:
        """Read the source, or another source of the same form."""
        source = self.source if source is None else source
        return load_parallel(source, languages=self.languages, columns=self.columns, header=self.header)

    def files(self, source: str) -> dict[str, frozenset[Path]]:
        return source_files(source, self.languages)

    def load(self, seed: int) -> TextSplits[ParallelText]:
        """Read all sources and hold out test and validation sets."""
        splits = self.hold_out(self.read(), seed)
        held_out = [pairs for pairs in (splits.validation, splits.test) if pairs is not None]
        extra = (self.read(source).train for source in self.extra_sources)
        return replace(splits, train=extend_training(splits.train, extra, held_out))


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Config):
    """The architecture, and one section for each; only the section of the chosen architecture is used."""

    kind: Literal["rnn", "rnn_attention", "transformer"] = "transformer"
    rnn: RecurrentSeq2SeqConfig = field(default_factory=RecurrentSeq2SeqConfig)
    """For `rnn`, which has one context vector, and `rnn_attention`, whose attention defaults to `general`."""
    transformer: TransformerSeq2SeqConfig = field(default_factory=TransformerSeq2SeqConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        attention = self.rnn.attention
        is_valid = self.kind != "rnn" or attention == "none"
        check(is_valid, f"rnn.attention must be none for kind rnn, got {attention!r}; use kind rnn_attention")
        if self.kind == "rnn_attention" and attention == "none":
            object.__setattr__(self, "rnn", replace(self.rnn, attention="general"))

    @property
    def chosen(self) -> Seq2SeqConfig:
        """The section of the chosen architecture."""
        return self.transformer if self.kind == "transformer" else self.rnn

    def with_vocab_sizes(self, source: int, target: int) -> "ModelConfig":
        """The config with these vocabulary sizes in the section of the chosen architecture."""
        sized: Any = for_data(self.chosen, source_vocab_size=source, target_vocab_size=target)
        return replace(self, transformer=sized) if self.kind == "transformer" else replace(self, rnn=sized)


@dataclass(frozen=True, kw_only=True)
class TranslationTaskConfig(TextTaskConfig):
    """Config of a run that trains a translator.

    `training.batch_size` counts tokens, padding included, on the longer side of a batch.
    """

    task: Literal["translation"] = "translation"
    data: TextData = field(default_factory=TextData)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    label_smoothing: Fraction = 0.0
    search: SearchConfig = field(default_factory=SearchConfig)
    training: TrainingConfig = field(default_factory=lambda: TrainingConfig(batch_size=4096))

    @classmethod
    def starter(cls) -> "TranslationTaskConfig":
        """The config without a file: translates German number words to English."""
        return cls(
            tokenizer=TokenizerConfig(vocab_size=340),
            model=ModelConfig(
                transformer=TransformerSeq2SeqConfig(embed_dim=64, ffn_dim=128, encoder_layers=2, decoder_layers=2)
            ),
            training=TrainingConfig(
                steps=400,
                batch_size=1024,
                learning_rate=4e-3,
                schedule="inverse_sqrt",
                warmup_steps=100,
                betas=(0.9, 0.98),
                ema_decay=0.99,
                evaluate_every=100,
                log_every=20,
            ),
        )

    def __post_init__(self) -> None:
        super().__post_init__()
        rule = "training.fsdp must be false for translation, which decodes with whole weights"
        check(not self.training.fsdp, f"{rule}, got true")
        is_shared = self.model.chosen.tie_embeddings != "all" or self.tokenizer.shared_vocab
        rule = "tokenizer.shared_vocab must be true if the model's tie_embeddings is all, one table for both languages"
        check(is_shared, f"{rule}, got false")
        transformer, longest = self.model.transformer, int(padded_length(self.data.max_tokens))
        is_limited = self.model.kind == "transformer" and transformer.positions == "learned"
        check(
            not is_limited or transformer.max_positions >= longest,
            f"model.transformer.max_positions must be at least {longest}, data.max_tokens rounded up to a multiple of "
            f"{LENGTH_MULTIPLE}, for learned positions, got {transformer.max_positions}",
        )

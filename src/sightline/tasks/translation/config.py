"""Config of translation."""

from dataclasses import dataclass, field, replace
from typing import Literal

from ... import limits
from ...config import Config, Seed
from ...data.text.batching import LENGTH_MULTIPLE, padded_length
from ...data.text.corpora import ParallelText, TextSplits, extend_training, load_parallel, split
from ...data.text.tokenizers import TokenizerConfig
from ...errors import SightlineError, check_fraction, check_int, check_max
from ...models.seq2seq import RecurrentSeq2SeqConfig, Seq2Seq, Seq2SeqConfig, TransformerSeq2SeqConfig
from ...training.config import TrainingConfig


@dataclass(frozen=True, kw_only=True)
class TextData:
    """The sentence pairs to train on."""

    source: str = "numbers"
    """A folder (train.de and train.en, or train.tsv; val and test likewise), a tab-separated file, two aligned files
    without their suffixes, or `numbers`: German number words, which need no file. Files can be compressed (.gz)."""
    extra_sources: tuple[str, ...] = ()
    """Files with further training pairs, in the form of `source`. Pairs whose target sentence is in the validation or
    test set are left out."""
    languages: tuple[str, str] = ("de", "en")
    """Source and target language; the suffixes of aligned files."""
    columns: tuple[int, int] = (1, 2)
    """Columns of the source and target sentences in a tab-separated file, counted from 1."""
    header: bool = False
    """Skip the first line of a tab-separated file."""
    validation_fraction: float = 0.05
    """Fraction of the training pairs to hold out where the data has no validation set; 0 for none."""
    test_fraction: float = 0.0
    """Fraction to hold out where the data has no test set. No target sentence is in two sets."""
    max_tokens: int = 128
    """Maximum number of tokens of a sentence, its end token included. Longer training pairs are left out; longer
    evaluation sentences are cut."""

    def __post_init__(self) -> None:
        check_fraction(validation_fraction=self.validation_fraction, test_fraction=self.test_fraction)
        check_int(1, **{f"columns[{i}]": column for i, column in enumerate(self.columns)})
        check_int(2, max_tokens=self.max_tokens)
        check_max(limits.MAX_SENTENCE_TOKENS, max_tokens=self.max_tokens)
        if self.columns[0] == self.columns[1]:
            raise SightlineError(f"columns must be two different columns, got {self.columns[0]} twice")
        for language in self.languages:
            if not language or not language.replace("-", "").replace("_", "").isalnum():
                raise SightlineError(f"languages must be two file suffixes such as de and en, got {language!r}")
        if self.languages[0] == self.languages[1]:
            raise SightlineError(f"languages must be two different languages, got {self.languages[0]!r} twice")

    def read(self, source: str | None = None) -> TextSplits[ParallelText]:
        """Read the source, or another source of the same form."""
        source = self.source if source is None else source
        return load_parallel(source, languages=self.languages, columns=self.columns, header=self.header)

    def hold_out(self, splits: TextSplits[ParallelText], seed: int) -> TextSplits[ParallelText]:
        """Hold out a test set and a validation set of the training pairs where the data has none."""
        train, test, validation = splits.train, splits.test, splits.validation
        test_fraction = self.test_fraction if test is None else 0.0
        validation_fraction = self.validation_fraction if validation is None else 0.0
        if test_fraction + validation_fraction >= 1:
            raise SightlineError(
                f"validation_fraction and test_fraction must sum to less than 1, got {validation_fraction} and "
                f"{test_fraction}"
            )
        if test_fraction:
            train, test = split(train, test_fraction, seed)
        if validation_fraction:
            train, validation = split(train, validation_fraction / (1 - test_fraction), seed)
        return TextSplits(replace(train, num_dropped=splits.train.num_dropped), validation, test)

    def load(self, seed: int) -> TextSplits[ParallelText]:
        """Read all sources and hold out test and validation sets."""
        splits = self.hold_out(self.read(), seed)
        held_out = [pairs for pairs in (splits.validation, splits.test) if pairs is not None]
        extra = (self.read(source).train for source in self.extra_sources)
        return replace(splits, train=extend_training(splits.train, extra, held_out))


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The architecture, and one section for each; only the section of the chosen architecture is used."""

    kind: Literal["rnn", "rnn_attention", "transformer"] = "transformer"
    rnn: RecurrentSeq2SeqConfig = field(default_factory=RecurrentSeq2SeqConfig)
    """For `rnn`, which has one context vector, and `rnn_attention`, whose attention defaults to `general`."""
    transformer: TransformerSeq2SeqConfig = field(default_factory=TransformerSeq2SeqConfig)

    def __post_init__(self) -> None:
        if self.kind == "rnn" and self.rnn.attention != "none":
            raise SightlineError(
                f"rnn.attention must be none for kind rnn, got {self.rnn.attention!r}; use kind rnn_attention"
            )
        if self.kind == "rnn_attention" and self.rnn.attention == "none":
            object.__setattr__(self, "rnn", replace(self.rnn, attention="general"))

    @property
    def chosen(self) -> Seq2SeqConfig:
        """The section of the chosen architecture."""
        return self.transformer if self.kind == "transformer" else self.rnn

    def with_vocab_sizes(self, source: int, target: int) -> "ModelConfig":
        """The config with these vocabulary sizes in the section of the chosen architecture."""
        if self.kind == "transformer":
            return replace(self, transformer=self.transformer.with_vocab_sizes(source, target))
        return replace(self, rnn=self.rnn.with_vocab_sizes(source, target))

    def build(self) -> Seq2Seq:
        """A model with random weights."""
        return Seq2Seq(self.chosen)


@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """Decoding of a trained model."""

    num_beams: int = 5
    """Beams of the beam search; 1 for greedy decoding."""
    length_penalty: float = 1.0
    """Exponent of the length by which log-probabilities are divided: 0 compares sums, 1 compares means over tokens."""

    def __post_init__(self) -> None:
        check_int(1, num_beams=self.num_beams)
        check_max(limits.MAX_BEAMS, num_beams=self.num_beams)
        if not 0 <= self.length_penalty <= 10:
            raise SightlineError(f"length_penalty must be from 0 to 10, got {self.length_penalty}")


@dataclass(frozen=True, kw_only=True)
class TranslationTaskConfig(Config):
    """Config of a run that trains a translator.

    `training.batch_size` counts tokens, padding included, on the longer side of a batch.
    """

    task: Literal["translation"] = "translation"
    out: str | None = None
    """Folder of the run; null for runs/NAME."""
    seed: Seed = 0
    data: TextData = field(default_factory=TextData)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    label_smoothing: float = 0.0
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
        check_max(limits.MAX_TOKEN_BATCH_SIZE, **{"training.batch_size": self.training.batch_size})
        check_fraction(label_smoothing=self.label_smoothing)
        if self.training.fsdp:
            raise SightlineError(
                "training.fsdp must be false for translation, which decodes with whole weights, got true"
            )
        if self.model.chosen.tie_embeddings == "all" and not self.tokenizer.shared_vocab:
            raise SightlineError(
                "tokenizer.shared_vocab must be true if the model's tie_embeddings is all, which uses one embedding "
                "table for both languages, got false"
            )
        transformer, longest = self.model.transformer, int(padded_length(self.data.max_tokens))
        learned = self.model.kind == "transformer" and transformer.positions == "learned"
        if learned and transformer.max_positions < longest:
            raise SightlineError(
                f"model.transformer.max_positions must be at least {longest}, data.max_tokens rounded up to a "
                f"multiple of {LENGTH_MULTIPLE}, for learned positions, got {transformer.max_positions}"
            )

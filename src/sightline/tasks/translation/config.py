"""Config of translation."""

from dataclasses import dataclass, field, replace
from typing import Literal

from torch import nn

from ... import limits
from ...data.text.batching import padded_length
from ...data.text.corpora import ParallelText, TextSplits, extend_training, load_parallel, split
from ...data.text.tokenizers import TokenizerConfig
from ...errors import SightlineError, check_fraction, check_int, check_max
from ...models.rnn_translator import RNNTranslator, RNNTranslatorConfig
from ...models.translator import Translator, TranslatorConfig
from ...training.config import TrainingConfig


@dataclass(frozen=True, kw_only=True)
class TextData:
    """Which sentences to learn from."""

    source: str = "numbers"
    """A folder (train.de and train.en, or train.tsv; val and test likewise), a tab-separated file, two aligned files
    less their endings, or numbers: German number words, which need no file. Any file may end in .gz."""
    more: tuple[str, ...] = ()
    """Further pairs to learn from alone, phrases of your own for instance: tab-separated files, or aligned ones less
    their endings. None whose target sentence is data_fingerprint out is learned from."""
    languages: tuple[str, str] = ("de", "en")
    """From and to; the endings of aligned files."""
    columns: tuple[int, int] = (1, 2)
    """Where the two languages stand in a tab-separated file, counted from 1."""
    header: bool = False
    """Whether the first line of a tab-separated file names its columns."""
    validation: float = 0.05
    """Share of the training pairs to hold out for validation where the set brings none; 0 for none."""
    test: float = 0.0
    """Share to hold out for the test, likewise. No target sentence stands on both sides."""
    max_tokens: int = 128
    """Tokens of a sentence with its end. Longer pairs are not learned from; to be evaluate_on they are cut."""

    def __post_init__(self) -> None:
        check_fraction(validation=self.validation, test=self.test)
        check_int(1, **{f"columns[{i}]": column for i, column in enumerate(self.columns)})
        check_int(2, max_tokens=self.max_tokens)
        check_max(limits.MAX_SENTENCE_TOKENS, max_tokens=self.max_tokens)
        if self.columns[0] == self.columns[1]:
            raise SightlineError(f"columns must be two different ones, got {self.columns[0]} twice")
        for language in self.languages:
            if not language or not language.replace("-", "").replace("_", "").isalnum():
                raise SightlineError(f"languages must be two endings such as de and en, got {language!r}")
        if self.languages[0] == self.languages[1]:
            raise SightlineError(f"languages must be two different ones, got {self.languages[0]!r} twice")

    def load(self, source: str | None = None) -> TextSplits[ParallelText]:
        """Read the source, or another of the same form."""
        source = self.source if source is None else source
        return load_parallel(source, languages=self.languages, columns=self.columns, header=self.header)


@dataclass(frozen=True, kw_only=True)
class Model:
    """Which of the translators, and how it is built; of the two sections that of the chosen kind counts."""

    kind: Literal["rnn", "rnn_attention", "transformer"] = "transformer"
    rnn: RNNTranslatorConfig = field(default_factory=RNNTranslatorConfig)
    """For rnn, one context vector, and rnn_attention, whose attention is `general` if none is told."""
    transformer: TranslatorConfig = field(default_factory=TranslatorConfig)

    def __post_init__(self) -> None:
        if self.kind == "rnn" and self.rnn.attention != "none":
            raise SightlineError(
                f"rnn.attention must be none where kind is rnn, got {self.rnn.attention!r}; choose kind rnn_attention"
            )
        if self.kind == "rnn_attention" and self.rnn.attention == "none":
            object.__setattr__(self, "rnn", replace(self.rnn, attention="general"))

    def of_data(self, source_vocab_size: int, target_vocab_size: int) -> "Model":
        """With these vocabularies in the section that counts."""
        name = "transformer" if self.kind == "transformer" else "rnn"
        sizes = {"source_vocab_size": source_vocab_size, "target_vocab_size": target_vocab_size}
        return replace(self, **{name: getattr(self, name).of_data(**sizes)})

    @property
    def depth(self) -> int:
        """Blocks or layers, all of them together."""
        form = self.transformer.form
        return form["encoder_layers"] + form["decoder_layers"] if self.kind == "transformer" else self.rnn.num_layers

    def build(self) -> nn.Module:
        """With weights that know nothing."""
        return Translator(self.transformer) if self.kind == "transformer" else RNNTranslator(self.rnn)


@dataclass(frozen=True, kw_only=True)
class Search:
    """How a trained model looks for a translation."""

    beams: int = 5
    """Hypotheses that grow side by side; 1 takes the likeliest token at every step."""
    length_penalty: float = 1.0
    """0 compares sums of log-probabilities, which favors the short; 1 their means over tokens."""

    def __post_init__(self) -> None:
        check_int(1, beams=self.beams)
        check_max(limits.MAX_BEAMS, beams=self.beams)
        if not 0 <= self.length_penalty <= 10:
            raise SightlineError(f"length_penalty must be from 0 to 10, got {self.length_penalty}")


@dataclass(frozen=True, kw_only=True)
class TranslationTaskConfig:
    """All that is to be known to train a translator. `training.batch_size` counts tokens here, filling included, on the
    side of a batch that has more; `training.epochs` are rounds through all pairs."""

    task: Literal["translation"] = "translation"
    out: str | None = None
    """The folder of the run; null for runs/ and the name of the recipe."""
    seed: int = 0
    data: TextData = field(default_factory=TextData)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    model: Model = field(default_factory=Model)
    search: Search = field(default_factory=Search)
    label_smoothing: float = 0.0
    training: TrainingConfig = field(default_factory=lambda: TrainingConfig(batch_size=4096))

    @classmethod
    def starter(cls) -> "TranslationTaskConfig":
        """What is trained where no recipe is given: German number words into English ones."""
        return cls(
            tokenizer=TokenizerConfig(vocab_size=340),
            model=Model(transformer=TranslatorConfig(embed_dim=64, ffn_dim=128, encoder_layers=2, decoder_layers=2)),
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
        check_int(0, seed=self.seed)
        check_max(limits.MAX_SEED, seed=self.seed)
        check_fraction(label_smoothing=self.label_smoothing)
        check_max(limits.MAX_TOKEN_BATCH_SIZE, **{"training.batch_size": self.training.batch_size})
        if self.training.fsdp:
            raise SightlineError(
                "training.fsdp must be false for translation, whose decoding needs whole weights, got true"
            )
        section = self.model.transformer if self.model.kind == "transformer" else self.model.rnn
        if section.tie_embeddings == "all" and not self.tokenizer.shared_vocab:
            raise SightlineError("tokenizer.shared_vocab must be true where tie_embeddings is all, got false")
        form, longest = self.model.transformer, int(padded_length(self.data.max_tokens))
        if self.model.kind == "transformer" and form.positions == "learned" and form.max_positions < longest:
            raise SightlineError(
                f"model.transformer.max_positions must be at least data.max_tokens, filled up to {longest}, where "
                f"positions are learned, got {form.max_positions}"
            )


def divide(data: TextData, seed: int) -> TextSplits[ParallelText]:
    """The data, with shares of the training pairs data_fingerprint out where it brings no test or validation set."""
    splits = data.load()
    train, test, validation = splits.train, splits.test, splits.validation
    shares = data.test if test is None else 0.0, data.validation if validation is None else 0.0
    if sum(shares) >= 1:
        raise SightlineError(
            f"validation and test must leave something to learn from, got {data.validation} and {data.test}"
        )
    if shares[0]:
        train, test = split(train, shares[0], seed)
    if shares[1]:
        train, validation = split(train, shares[1] / (1 - shares[0]), seed)
    train = replace(train, num_dropped=splits.train.num_dropped)
    held_out = [one for one in (validation, test) if one is not None]
    return TextSplits(extend_training(train, (data.load(path).train for path in data.more), held_out), validation, test)

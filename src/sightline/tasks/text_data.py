"""What the tasks on text share: configs, held-out sets, tokenizers of earlier runs, fingerprints."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from .. import config, hub, limits, zoo
from ..config import Config, Fraction, NonNegativeInt, at_least, at_most, rule
from ..data.text.batching import LENGTH_MULTIPLE, padded_length
from ..data.text.corpora import Corpus, TextSplits, split
from ..data.text.tokenizers import SpecialTokens, Tokenizer, TokenizerConfig
from ..errors import check, check_max
from ..files import CONFIG, read_json
from ..models.encoders import TextEncoderConfig
from ..training.config import DataConfig, TaskConfig, TrainingConfig

Column = Annotated[int, at_least(1), "the number of a column, counted from 1"]
TOKENIZER = "tokenizer.json"
"""The tokenizer file of a run with one vocabulary."""


@dataclass(frozen=True, kw_only=True)
class EncoderTokenizerConfig(TokenizerConfig):
    """Config of the tokenizer of an encoder of one language, with special tokens as in BERT."""

    special_tokens: SpecialTokens = field(
        default_factory=lambda: SpecialTokens(pad="[PAD]", bos="[CLS]", eos="[SEP]", unk="[UNK]", mask="[MASK]")
    )
    """Special tokens. A sentence starts with `bos` and ends with `eos`."""


@dataclass(frozen=True, kw_only=True)
class CorpusConfig(DataConfig):
    """Base class of the config of a corpus."""

    validation_fraction: Fraction = 0.05
    """Fraction of the training data to hold out where the data has no validation set; 0 for none."""
    test_fraction: Fraction = 0.0
    """Fraction to hold out where the data has no test set. No sentence is in two sets."""
    max_tokens: Annotated[int, at_least(2), at_most("MAX_SENTENCE_TOKENS")] = 128
    """Maximum number of tokens of a sentence, special tokens included. Longer sentences are cut."""

    def read(self, source: str | None = None) -> TextSplits[Any]:
        """Read the source, or another source of the same form."""
        raise NotImplementedError

    def files(self, source: str) -> dict[str, frozenset[Path]]:
        """The files of each split of a source, resolved; empty if it has none."""
        raise NotImplementedError

    def split(self, corpus: Any, test_fraction: float, validation_fraction: float, seed: int) -> TextSplits[Any]:
        """Hold out fractions of a corpus."""
        train, test, validation = corpus, None, None
        if test_fraction:
            train, test = split(train, test_fraction, seed)
        if validation_fraction:
            train, validation = split(train, validation_fraction / (1 - test_fraction), seed)
        return TextSplits(replace(train, num_dropped=corpus.num_dropped), validation, test)

    def hold_out(self, splits: TextSplits[Any], seed: int) -> TextSplits[Any]:
        """Hold out a test set and a validation set of the training data where the data has none."""
        test_fraction = self.test_fraction if splits.test is None else 0.0
        validation_fraction = self.validation_fraction if splits.validation is None else 0.0
        fractions = f"{validation_fraction} and {test_fraction}"
        is_below_1 = test_fraction + validation_fraction < 1
        check(is_below_1, f"validation_fraction and test_fraction must sum to less than 1, got {fractions}")
        held_out = self.split(splits.train, test_fraction, validation_fraction, seed)
        validation, test = splits.validation or held_out.validation, splits.test or held_out.test
        return TextSplits(held_out.train, validation, test)

    def load(self, seed: int) -> TextSplits[Any]:
        """Read the source and hold out test and validation sets."""
        return self.hold_out(self.read(), seed)


@dataclass(frozen=True, kw_only=True)
class SearchConfig(Config):
    """Decoding of a trained model."""

    num_beams: Annotated[int, at_least(1), at_most("MAX_BEAMS")] = 5
    """Beams of the beam search; 1 follows the most probable token, which is greedy decoding."""
    length_penalty: Annotated[float, rule("from 0 to 10", lambda penalty: 0 <= penalty <= 10)] = 1.0
    """Exponent of the length by which log-probabilities are divided: 0 compares sums, 1 compares means over tokens."""
    no_repeat_ngram_size: NonNegativeInt = 0
    """No sequence of this many tokens occurs twice in a text; 0 for no limit."""


def describe_search(num_beams: int, no_repeat_ngram_size: int) -> str:
    """How texts were decoded, for reports."""
    beams = "greedy" if num_beams == 1 else f"{num_beams} beams"
    return f"{beams}, no repeated {no_repeat_ngram_size}-grams" if no_repeat_ngram_size else beams


@dataclass(frozen=True, kw_only=True)
class TextTaskConfig(TaskConfig):
    """Base class of the config of a task with a tokenizer. `training.batch_size` counts tokens, padding included."""

    inherited_sections: ClassVar[tuple[str, ...]] = ("model", "tokenizer")

    def __post_init__(self) -> None:
        super().__post_init__()
        training: TrainingConfig = vars(self)["training"]  # a field of every task
        check_max(limits.MAX_TOKEN_BATCH_SIZE, **{"training.batch_size": training.batch_size})


def data_fingerprint(splits: TextSplits[Any], noun: str, **dropped: int) -> dict[str, Any]:
    """Counts and digests of a corpus of `noun`; `dropped` are counts of what is left out of the training set."""
    result: dict[str, Any] = {}
    for name in ("train", "validation", "test"):
        corpus: Corpus | None = getattr(splits, name)
        result[name] = {noun: 0} if corpus is None else {noun: len(corpus), "sentences": corpus.digest()}
    result["train"] |= {"dropped_empty": splits.train.num_dropped, **dropped}
    return result


def read_tokenizers(folder: Path, tokenizer_config: TokenizerConfig, names: Sequence[str]) -> list[Tokenizer]:
    """The tokenizers of a run from its files of these names."""
    return [Tokenizer.from_json(tokenizer_config, read_json(folder / name), str(folder / name)) for name in names]


def earlier_tokenizers(task_config: Any, names: Sequence[str]) -> list[Tokenizer] | None:
    """The tokenizers of the run that training starts from, whose config must be the same; None without such a run.

    When a run is resumed, they are read from its own folder.
    """
    if task_config.start_from is None:
        return None
    own = task_config.out  # a folder with a config is that of a resumed run
    folder = Path(own) if own and (Path(own) / CONFIG).is_file() else hub.run_folder(task_config.start_from)
    ours, theirs = config.plain(task_config.tokenizer), config.read(folder / CONFIG).get("tokenizer")
    rule = f"tokenizer must be that of {zoo.display_name(folder)}, which training starts from"
    check(ours == theirs, f"{rule}, got another one; leave the section tokenizer out")
    return read_tokenizers(folder, task_config.tokenizer, names)


def earlier_tokenizer(task_config: Any) -> Tokenizer | None:
    """The one tokenizer of the run that training starts from; None without such a run."""
    tokenizers = earlier_tokenizers(task_config, [TOKENIZER])
    return None if tokenizers is None else tokenizers[0]


def check_positions(model: TextEncoderConfig, max_tokens: int) -> None:
    """Learned positions must suffice for `max_tokens` tokens, rounded up to the multiple of padded batches."""
    longest = int(padded_length(max_tokens))
    check(
        model.positions != "learned" or model.max_positions >= longest,
        f"model.max_positions must be at least {longest}, data.max_tokens rounded up to a multiple of "
        f"{LENGTH_MULTIPLE}, for learned positions, got {model.max_positions}",
    )

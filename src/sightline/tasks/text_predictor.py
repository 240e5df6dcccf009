"""What trained models of text share: texts from the command line, and the data to evaluate on."""

import os
import re
import sys
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import torch
from torch import Tensor

from .. import limits, zoo
from ..attention import Record
from ..data.sources import same_source
from ..data.text.batching import PackedSequences
from ..data.text.corpora import TextSplits
from ..data.text.reading import STDIN, open_text, stream_lines
from ..data.text.tokenizers import SpecialTokens, Tokenizer
from ..errors import SightlineError, check
from ..files import stored_fingerprint
from ..names import display_path
from ..predictor import InputToken, Predictor
from ..view.inspection import Inspection, Layer

if TYPE_CHECKING:
    from gzip import GzipFile

    from matplotlib.figure import Figure

MAX_NAME_CHARS = 400
"""Characters of the name of a text and its answer on a page."""
PATH = re.compile(r"[^\s\0]{1,255}\.(txt|tsv|tab|csv|jsonl?|gz)|[^\s\0]*/[^\s\0]*\.\w{1,5}")
"""Arguments of the command line that are paths, not sentences; files that exist are, too."""
TEXT_FILES = (".txt", ".txt.gz")
"""Endings of files with one text per line."""


def parse_texts(arguments: Sequence[str]) -> Iterator[str | Path]:
    """Texts from arguments; see `TextPredictor.parse_inputs`."""
    for argument in arguments:
        if argument == "-":
            yield from _texts(sys.stdin.buffer, STDIN)
        elif argument.endswith(TEXT_FILES) and os.path.isfile(argument):  # noqa: PTH113 - false for an invalid path
            with open_text(Path(argument)) as file:
                yield from _texts(file, argument)
        elif PATH.fullmatch(argument) or os.path.exists(argument):  # noqa: PTH110 - false for an invalid path
            yield Path(argument)
        else:
            lines = [line for line in argument.split("\n") if line.strip()]
            yield from lines or [argument]


class TextPredictor(Predictor):
    """A trained model whose inputs are texts."""

    batch_size = 512
    needs_data_fingerprint = True

    def parse_inputs(self, arguments: Sequence[str]) -> Iterator[str | Path]:
        """Texts from arguments: text, the path of a .txt file with one text per line, or - for standard input.

        Files can be compressed (.txt.gz) and are read lazily. Empty lines are skipped. The path of another file is
        yielded as it is.
        """
        return parse_texts(arguments)

    def check_text(self, item: Any, *, fix: str) -> str:
        """The text itself, if it is one; `fix` ends the message about a text that is too long."""
        if isinstance(item, Path):
            state = "is a folder" if item.is_dir() else "is another file" if item.exists() else "does not exist"
            fix = "; write one text per line to a .txt file" if item.is_file() else ""
            rule = f"a file of sentences must be a .txt file, got {display_path(item)!r}"
            raise SightlineError(f"{rule}, which {state}{fix}")
        if not isinstance(item, str):
            raise SightlineError(f"text must be a string, got {type(item).__name__}")
        limit = limits.MAX_LINE_CHARS
        check(len(item) <= limit, f"text must be at most {limit:,} characters, got {len(item):,}; {fix}")
        return item

    def evaluation_corpus(self, data: Any = None) -> tuple[Any, str]:
        """The corpus that `evaluate` uses, and the name of its split.

        That is the test set of the run's own data, or its validation set if it has none. Of other data, a path or
        loaded `TextSplits`, it is the test set, or all of it if it has none. Training data is refused.
        """
        own, run = self.config.data, zoo.display_name(self.folder)
        if isinstance(data, TextSplits):
            splits, is_own, name = data, False, "loaded data"
        else:
            source = own.source if data is None else str(data)
            self.check_data(source, data is not None or any(self._files(source).values()))
            splits, is_own, name = own.read(source), same_source(source, own.source), repr(source)
        held_out = self._held_out(splits, is_own)
        if held_out is not None:
            corpus, split = (held_out.validation, "validation") if held_out.test is None else (held_out.test, "test")
            if corpus is None:
                raise SightlineError(f"data must have a test or validation set, got neither in {own.source!r}")
            was_drawn = getattr(splits, split) is None  # from the training data, by the run's seed
            is_same = not was_drawn or self._digest(split) in (None, corpus.digest())
            rule = f"the data of {run} must be as in training to hold out the same {split} set"
            check(is_same, f"{rule}, got other content in {name}; pass a test set with --data PATH")
            return corpus, split
        corpus, split = (splits.train, "full") if splits.test is None else (splits.test, "test")
        trained_on = frozenset().union(*(self._files(source)["train"] for source in own.sources))
        files = [] if isinstance(data, TextSplits) else self._files(str(data))["train" if split == "full" else split]
        is_new = trained_on.isdisjoint(files) and corpus.digest() != self._digest("train")
        check(is_new, f"data must not be the training data of {run}, got {name}; pass a test set")
        return corpus, split

    def _held_out(self, splits: TextSplits[Any], is_own: bool) -> TextSplits[Any] | None:
        """The splits with the run's held-out sets if the data is the run's own, by source or by digest; else None."""
        digests = [self._digest(name) for name in ("test", "validation")]
        try:
            held_out: TextSplits[Any] = self.config.data.hold_out(splits, self.config.seed)
        except SightlineError:  # too few sentences to split
            if is_own:
                raise
            return None
        sets = (held_out.test, held_out.validation)
        return held_out if is_own or any(corpus and corpus.digest() in digests for corpus in sets) else None

    def _digest(self, split: str) -> Any:
        """The digest of a split of the run's data."""
        return stored_fingerprint(self.folder, split, "sentences")

    def _files(self, source: str) -> dict[str, frozenset[Path]]:
        """The files of each split of a source; without files, there is no such split."""
        return defaultdict(frozenset, self.config.data.files(source))


def _texts(file: "IO[bytes] | GzipFile", name: str) -> Iterator[str]:
    """Lines of a UTF-8 file that are not blank, one at a time."""
    is_empty = True
    for line in stream_lines(file, name):
        if line.strip():
            is_empty = False
            yield line
    if is_empty:
        raise SightlineError(f"{name} must have at least one line of text, got none")


def padded(tokens: Sequence[str], size: int) -> list[str | None]:
    """Tokens followed by None up to this size."""
    return [*tokens, *[None] * (size - len(tokens))]


def input_batch(sequences: Sequence[Sequence[int]], pad_id: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Token ids int64 (B, T), padded, and attention_mask bool (B, T), on a device."""
    packed = PackedSequences(sequences, pad_id).to(device)
    return packed.take(torch.arange(len(sequences), device=device), int(packed.lengths.max()))


def without_padding(record: Record, row: int, length: int) -> Record:
    """One row of a recorded batch of self-attention, with its first `length` tokens."""
    maps = [replace(m, weights=m.weights[row : row + 1, :, :length, :length].clone()) for m in record]
    return Record(record.model, maps)


def inspection(record: Record | None, tokens: Mapping[str, Sequence[str]], special: SpecialTokens) -> Inspection:
    """The attention of one text, from a record with one row, and the names of its tokens."""
    layers = [Layer(m.name, m.kind, m.weights[0].float().numpy()) for m in record or ()]
    return Inspection(tokens, layers, [special.tokens[i] for i in special.control_ids])


def sentence_tokens(tokenizer: Tokenizer, ids: Sequence[int]) -> list[InputToken]:
    """The tokens of a sentence; the start token, the end token and masks cannot be removed."""
    special = tokenizer.special_tokens
    fixed = {i for name, i in special.ids.items() if name != "unk"}
    return [InputToken(text, i not in fixed) for text, i in zip(tokenizer.tokens(ids), ids, strict=True)]


def without_positions(ids: Sequence[int], positions: Collection[int]) -> list[int]:
    """Ids without those at these positions."""
    return [token for i, token in enumerate(ids) if i not in positions]


def attention_figure(record: Record, tokens: Sequence[str], title: str) -> "Figure":
    """Attention of the last layer, averaged over heads: rows are queries, columns keys."""
    return record.plot(-1, "mean", tokens=tokens, title=title)

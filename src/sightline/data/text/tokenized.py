"""Text as token ids, with the tokenizers that were trained on it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import check
from .batching import EncodedPairs, PackedSequences
from .corpora import ParallelText, TextSplits
from .tokenizers import Tokenizer, TokenizerConfig, train_tokenizer


@dataclass(frozen=True, eq=False)
class TokenizedText:
    """The tokenizers of both languages, and the token ids of a training and a validation set."""

    tokenizers: tuple[Tokenizer, Tokenizer]
    """The same one twice if the vocabulary is shared."""
    train: EncodedPairs
    """Without pairs of `max_tokens` tokens or more."""
    validation: EncodedPairs | None

    @classmethod
    def of(
        cls,
        splits: TextSplits[ParallelText],
        config: TokenizerConfig,
        max_tokens: int,
        trained: Sequence[Tokenizer] | None = None,
    ) -> "TokenizedText":
        """The token ids of a corpus. They are kept with it, so that a second task does not tokenize it again.

        Without `trained` tokenizers, one for both languages or one for each, they are trained on the corpus.
        """
        key = config, max_tokens, *(tokenizer.to_json() for tokenizer in trained or ())
        if key not in splits.tokenized:
            sides = [[*splits.train.source, *splits.train.target]] if config.shared_vocab else splits.train.sides
            trained = trained or [train_tokenizer(config, side) for side in sides]
            tokenizers = trained[0], trained[-1]
            train, validation = encode_pairs(splits.train, tokenizers, max_tokens, drop_long=True), None
            if splits.validation is not None:
                validation = encode_pairs(splits.validation, tokenizers, max_tokens)
            splits.tokenized[key] = cls(tokenizers, train, validation)
        text: TokenizedText = splits.tokenized[key]
        return text


def encode_pairs(
    pairs: ParallelText, tokenizers: tuple[Tokenizer, Tokenizer], max_tokens: int, *, drop_long: bool = False
) -> EncodedPairs:
    """Pairs in order. Sentences of `max_tokens` tokens or more are cut, or their pairs dropped."""
    sides = (tokenizer.encode(side) for tokenizer, side in zip(tokenizers, pairs.sides, strict=True))
    rows = list(zip(*sides, strict=True))
    if drop_long:
        rows = [row for row in rows if all(0 < len(ids) < max_tokens for ids in row)]
        check(rows, f"data must have a pair of at most {max_tokens} tokens, data.max_tokens, got none")
    source, target = ([row[i][: max_tokens - 1] for row in rows] for i in range(2))
    return EncodedPairs(source, target, tokenizers[0].special_tokens)


@dataclass(frozen=True, eq=False)
class TokenizedSentences:
    """A tokenizer, and the token ids of the sentences of a training and a validation set."""

    tokenizer: Tokenizer
    train: PackedSequences
    validation: PackedSequences | None
    num_cut: int
    """Sentences of the training set that are cut."""

    @classmethod
    def of(
        cls, splits: TextSplits[Any], config: TokenizerConfig, max_tokens: int, trained: Tokenizer | None = None
    ) -> "TokenizedSentences":
        """The token ids of a corpus of one language, kept with it.

        Without a `trained` tokenizer, it is trained on the training set.
        """
        key = config, max_tokens, None if trained is None else trained.to_json()
        if key not in splits.tokenized:
            tokenizer = train_tokenizer(config, splits.train.keys) if trained is None else trained
            ids, held_out = tokenizer.encode(splits.train.keys), splits.validation
            validation = None if held_out is None else encode_sentences(held_out.keys, tokenizer, max_tokens)
            num_cut = sum(len(sentence) > max_tokens - 2 for sentence in ids)
            splits.tokenized[key] = cls(tokenizer, pack_sentences(ids, tokenizer, max_tokens), validation, num_cut)
        text: TokenizedSentences = splits.tokenized[key]
        return text

    def notes(self, max_tokens: int) -> tuple[str, ...]:
        """What training reports about the sentences."""
        found = f"{self.num_cut:,} of {len(self.train):,} training lines are longer than {max_tokens} tokens"
        return (f"{found} (data.max_tokens) and are cut",) if self.num_cut else ()


def encode_sentences(texts: Sequence[str], tokenizer: Tokenizer, max_tokens: int) -> PackedSequences:
    """Sentences with `bos` and `eos`, cut to `max_tokens` tokens."""
    return pack_sentences(tokenizer.encode(texts), tokenizer, max_tokens)


def pack_sentences(ids: Sequence[Sequence[int]], tokenizer: Tokenizer, max_tokens: int) -> PackedSequences:
    """The same of sentences that are token ids."""
    bos, eos, pad = (tokenizer.special_tokens.id(name) for name in ("bos", "eos", "pad"))
    return PackedSequences([[bos, *sentence[: max_tokens - 2], eos] for sentence in ids], pad)

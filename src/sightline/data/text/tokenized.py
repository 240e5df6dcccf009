"""Parallel text as token ids, with the tokenizers that were trained on it."""

from dataclasses import dataclass

from ...errors import check
from .batching import EncodedPairs
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
    def of(cls, splits: TextSplits[ParallelText], config: TokenizerConfig, max_tokens: int) -> "TokenizedText":
        """The token ids of a corpus. They are kept with it, so that a second task does not tokenize it again."""
        key = config, max_tokens
        if key not in splits.tokenized:
            sides = [[*splits.train.source, *splits.train.target]] if config.shared_vocab else splits.train.sides
            trained = [train_tokenizer(config, side) for side in sides]
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

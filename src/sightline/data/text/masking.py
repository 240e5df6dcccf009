"""Masking of tokens for masked language models, on any device and without a synchronization with the host.

Shapes: B batch, T tokens, N masked positions of a row, padding included.
"""

from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from ...errors import check_fraction
from ...kernels.cross_entropy import IGNORE_INDEX
from .tokenizers import Tokenizer

MASK_FRACTION, RANDOM_FRACTION = 0.8, 0.1
"""Fractions of the chosen tokens that are replaced by the mask token and by a random token; the others are kept."""
WORD_TOKENS = 6
"""Tokens by which the words chosen in a row may exceed twice their expected number; further tokens are not masked."""


@dataclass(frozen=True, eq=False)
class MaskedBatch:
    """Token sequences with masked tokens."""

    tokens: Tensor
    """int64 (B, T), with masked tokens."""
    attention_mask: Tensor
    """bool (B, T), True for tokens, False for padding."""
    positions: Tensor
    """int64 (B, N), where tokens were chosen."""
    labels: Tensor
    """int64 (B, N), the original tokens; `IGNORE_INDEX` for positions that were not chosen."""

    def take(self, rows: slice) -> "MaskedBatch":
        """Some rows of the batch."""
        return MaskedBatch(*(x[rows] for x in (self.tokens, self.attention_mask, self.positions, self.labels)))


class TokenMasker:
    """Chooses a fraction of the tokens, at least one in each row, and replaces them.

    The number of chosen tokens of a row is rounded at random, so that its expectation is the fraction. Special tokens
    are never chosen. With `whole_words`, words are chosen instead, with all of their tokens. N depends on T only.
    """

    def __init__(self, tokenizer: Tokenizer, *, fraction: float = 0.15, whole_words: bool = False):
        check_fraction(fraction=fraction)
        self.fraction, self.whole_words = fraction, whole_words
        self.vocab_size, self.num_special = len(tokenizer), len(tokenizer.special_tokens.tokens)
        self.mask_id = tokenizer.special_tokens.id("mask")
        self.word_starts = torch.tensor(tokenizer.word_starts())
        """bool (V,), whether each token begins a word."""

    def to(self, device: torch.device) -> Self:
        """Move the table of word starts."""
        self.word_starts = self.word_starts.to(device)
        return self

    def mask(
        self, ids: Tensor, attention_mask: Tensor, generator: torch.Generator, *, only_masks: bool = False
    ) -> MaskedBatch:
        """ids int64 (B, T), attention_mask bool (B, T) -> the batch with chosen tokens

        Of the chosen tokens, 80% become the mask token, 10% a random token, and 10% are kept; with `only_masks`, all
        become the mask token.
        """

        def rand(*size: int) -> Tensor:
            return torch.rand(size, generator=generator, device=generator.device).to(ids.device)

        (rows, length), columns = ids.shape, torch.arange(ids.shape[1], device=ids.device)
        is_maskable = attention_mask & (ids >= self.num_special)
        keys, starts = rand(rows, length), is_maskable
        if self.whole_words:  # all tokens of a word have the same key
            is_first = is_maskable.cumsum(1) == 1  # a word by a tokenizer that marks spaces only
            starts = is_maskable & (self.word_starts[ids] | is_first)
            keys = keys.gather(1, starts.cumsum(1).clamp_max(length - 1))
        order = keys.masked_fill(~is_maskable, 2.0).argsort(dim=1, stable=True)  # the maskable tokens first
        wanted = (self.fraction * starts.sum(1, keepdim=True) + rand(rows, 1)).floor().clamp_min(1)
        size = min(length, int(self.fraction * length) + 1)
        is_chosen = columns < is_maskable.sum(1, keepdim=True)
        if self.whole_words:
            size = min(length, 2 * size + WORD_TOKENS)
            is_chosen &= starts.gather(1, order).cumsum(1) <= wanted
        else:
            is_chosen &= columns < wanted
        positions, is_chosen = order[:, :size], is_chosen[:, :size]
        original = ids.gather(1, positions)
        replaced = torch.full_like(original, self.mask_id) if only_masks else self._replacements(original, rand)
        tokens = ids.scatter(1, positions, torch.where(is_chosen, replaced, original))
        return MaskedBatch(tokens, attention_mask, positions, original.masked_fill(~is_chosen, IGNORE_INDEX))

    def _replacements(self, original: Tensor, rand: Any) -> Tensor:
        """The mask token, a random token or the original token at each chosen position: (B, N) -> (B, N)"""
        kind, num_random = rand(*original.shape), self.vocab_size - self.num_special
        random = self.num_special + (rand(*original.shape) * num_random).long().clamp_max(num_random - 1)
        kept = torch.where(kind < MASK_FRACTION + RANDOM_FRACTION, random, original)
        return torch.where(kind < MASK_FRACTION, self.mask_id, kept)

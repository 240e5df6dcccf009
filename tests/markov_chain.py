"""A model for tests of decoding whose next token depends on the last token only."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

BOS, EOS, A, C = 1, 2, 3, 4


@dataclass
class Tables:
    """Encoder output: a table of logits (V, V) for each source."""

    tables: Tensor

    def __len__(self):
        return len(self.tables)

    device = torch.device("cpu")


class MarkovChain:
    """The decoding model; `rows` counts the rows of all steps."""

    rows = 0

    def start(self, encoder_output):
        return encoder_output.tables

    def step(self, state, tokens):
        self.rows += len(tokens)
        return state[torch.arange(len(tokens)), tokens].clone(), state

    def reorder(self, state, indices, *, same_source=False):
        if same_source:
            assert torch.equal(state[indices].nan_to_num(0.5), state.nan_to_num(0.5))
        return state[indices]


def transitions(*probabilities):
    """Tables from {(token, next token): probability}. Other tokens cannot follow a token that is listed."""
    tables = torch.zeros(len(probabilities), 7, 7)
    for table, entries in zip(tables, probabilities, strict=True):
        table[[token for token, _ in entries]] = float("-inf")
        for (token, next_token), probability in entries.items():
            table[token, next_token] = math.log(probability)
    return Tables(tables)


def random_tables(sources=5, vocab_size=7, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return Tables(2 * torch.randn(sources, vocab_size, vocab_size, generator=generator))


GREEDY_TRAP = {(BOS, A): 0.6, (BOS, C): 0.4, (A, 5): 0.5, (A, 6): 0.5, (C, 5): 1.0, (5, EOS): 1.0, (6, EOS): 1.0}
"""The more probable first token leads to a less probable sequence: 0.3 instead of 0.4."""

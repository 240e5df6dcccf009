"""Greedy decoding, beam search and sampling with any model that decodes step by step.

Batches are decoded together, and finished sequences are dropped from the batch.
"""

from .beam_search import beam_search, decode
from .hypotheses import DecodingOptions, Hypothesis, decoder_inputs
from .sampling import greedy, sample

__all__ = ["DecodingOptions", "Hypothesis", "beam_search", "decode", "decoder_inputs", "greedy", "sample"]

"""Greedy, beam and sampled decoding, over anything that can take one step.

Whole batches go together. Each step writes one token of every hypothesis at the price of one token, for the model keeps
what it has seen; sentences that are finished are dropped on the way.
"""

from .beams import beam
from .hypotheses import Hypothesis, Memory, Stepper, as_targets
from .walks import greedy, sample, truncated

__all__ = ["Hypothesis", "Memory", "Stepper", "as_targets", "beam", "greedy", "sample", "truncated"]

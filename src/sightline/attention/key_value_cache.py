"""The key-value cache of step-by-step decoding."""

import torch
from torch import Tensor

from ..errors import SightlineError


class KeyValueCache:
    """Keys, values and per-key biases of one attention layer, each (B, heads, K, channels).

    Create one cache per layer and batch, and pass it at every step. Self-attention appends the tokens of each step.
    Cross-attention fills the cache once. Without gradients, buffers double in size when they are full, so a step copies
    only its own tokens.
    """

    def __init__(self, *tensors: Tensor) -> None:
        self.tensors = list(tensors)
        """Keys, values and the rest, of all tokens so far. Empty before the first step."""
        self._buffers: list[Tensor] = []
        """Storage of `tensors`, with room for more tokens."""
        self._spare_buffers: list[Tensor] = []
        """Storage of the same size, into which `reorder` copies."""

    def __len__(self) -> int:
        """Number of tokens."""
        return self.tensors[0].shape[2] if self.tensors else 0

    def extend(self, new: list[Tensor]) -> list[Tensor]:
        """Append tokens and return the tensors of all tokens."""
        if not self.tensors:
            self._replace(new)
            return new
        for tensor, added in zip(self.tensors, new, strict=True):
            if tensor.shape[:2] != added.shape[:2]:
                rule = "cache must be used with the batch size and heads it was filled with"
                raise SightlineError(f"{rule}, {tuple(tensor.shape[:2])}, got {tuple(added.shape[:2])}")
        if torch.is_grad_enabled():  # the backward pass needs earlier tensors, so nothing is overwritten
            self._replace([torch.cat(pair, 2) for pair in zip(self.tensors, new, strict=True)])
        else:
            self.tensors = self._append(new)
        return self.tensors

    def reorder(self, indices: Tensor) -> None:
        """Select rows of the batch, as beam search does; a row may be selected repeatedly. indices (B',)"""
        count, length = len(indices), len(self)
        if not self._fits(count, length):
            self._replace([tensor.index_select(0, indices) for tensor in self.tensors])
            return
        self._spare_buffers = self._spare_buffers or [torch.empty_like(buffer) for buffer in self._buffers]
        buffers, spare = self._spare_buffers, self._buffers
        self._buffers, self._spare_buffers = ([buffer[:count] for buffer in group] for group in (buffers, spare))
        for tensor, buffer in zip(self.tensors, self._buffers, strict=True):
            torch.index_select(tensor, 0, indices, out=buffer[:, :, :length])
        self.tensors = [buffer[:, :, :length] for buffer in self._buffers]

    def _replace(self, tensors: list[Tensor]) -> None:
        """Hold other tensors, without room for more tokens."""
        self.tensors, self._buffers, self._spare_buffers = tensors, [], []

    def _append(self, new: list[Tensor]) -> list[Tensor]:
        batch, _, start, _ = self.tensors[0].shape
        end = start + new[0].shape[2]
        if not self._fits(batch, end):
            self._buffers = [tensor.new_empty(*tensor.shape[:2], 2 * end, tensor.shape[3]) for tensor in self.tensors]
            self._spare_buffers = []
            for buffer, tensor in zip(self._buffers, self.tensors, strict=True):
                buffer[:, :, :start] = tensor
        for buffer, added in zip(self._buffers, new, strict=True):
            buffer.narrow(2, start, end - start).copy_(added)
        return [buffer.narrow(2, 0, end) for buffer in self._buffers]

    def _fits(self, batch: int, length: int) -> bool:
        """Whether the buffers are large enough, and writable: inference tensors are so in inference mode only."""
        if not self._buffers or torch.is_grad_enabled():
            return False
        buffer = self._buffers[0]
        is_writable = buffer.is_inference() == torch.is_inference_mode_enabled()
        return len(buffer) >= batch and buffer.shape[2] >= length and is_writable

"""The attention layer of x-transformers with normalized queries and keys (`qk_norm`), on torch's fused attention."""

import sys

import torch
from x_transformers.x_transformers import Attention

from benchmarks.clock import Timer, timer
from benchmarks.peers import serve

TIMERS: dict[tuple[object, ...], Timer] = {}


def make_timer(shape: list[int], heads: int, dtype: str, training: bool) -> Timer:
    """A timer of one layer: shape (batch, tokens, embedding dimension)"""
    device, dim = sys.argv[2], shape[-1]
    layer = Attention(dim, heads=heads, dim_head=dim // heads, qk_norm=True, flash=True)
    layer = layer.to(device, getattr(torch, dtype))
    x = torch.randn(shape, device=device, dtype=getattr(torch, dtype), requires_grad=True)
    leaves = [x, *layer.parameters()]

    def train() -> object:
        out = layer(x)
        return torch.autograd.grad(out, leaves, torch.ones_like(out), allow_unused=True)

    @torch.no_grad()
    def forward() -> object:
        return layer(x)

    return timer(train if training else forward, device, graphs=True)


def seconds(**job: object) -> float:
    """Seconds per call."""
    key = tuple(map(str, job.values()))
    if key not in TIMERS:
        TIMERS[key] = make_timer(**job)  # type: ignore[arg-type]
    return TIMERS[key]()


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[1]))
    serve("x_transformers", seconds)

"""Peak memory of attention, measured in a process of its own: `FORKSERVER.Process(target=peak_of_attention, ...)`."""

import ctypes
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.nn.functional as F

from sightline.attention import CosineScore, attend
from sightline.attention.masks import Causal

HEADS, TOKENS, HEAD_DIM = 16, 1024, 64
ATTENTION = {
    "sdpa": F.scaled_dot_product_attention,
    "dot": attend,
    "dot causal": lambda q, k, v: attend(q, k, v, mask=Causal()),
    "cosine": lambda q, k, v: attend(q, k, v, score=CosineScore(num_heads=HEADS)),
}
M_MMAP_THRESHOLD = -3


def peak_of_attention(name: str, train: bool, result: Connection) -> None:
    """Send the bytes that inputs, outputs and gradients take at most, beyond what the process had before."""
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 100_000)  # large blocks are freed at once, so peaks are reproducible
    small = torch.randn(1, HEADS, 64, HEAD_DIM, requires_grad=True)
    ATTENTION[name](small, small, small).sum().backward()  # loads what is loaded on first use
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = _peak()
    with torch.set_grad_enabled(train):
        out = ATTENTION[name](*(torch.randn(1, HEADS, TOKENS, HEAD_DIM, requires_grad=train) for _ in range(3)))
    if train:
        out.backward(torch.ones_like(out))
    result.send(_peak() - before)


def _peak() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

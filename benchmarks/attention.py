"""Time of our attention relative to torch's `scaled_dot_product_attention` (SDPA) and `nn.MultiheadAttention`, to
FlexAttention, to x-transformers with normalized queries and keys, and to cosine attention as Swin-V2 computes it.

Functions take q, k and v as one projection leaves them: heads beside tokens, not contiguous. Training is the forward
and the backward pass to all inputs and parameters. On a GPU everything runs inside CUDA graphs, in bfloat16.
"""

import math
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sightline.attention import CosineScore, MultiHeadAttention, attend
from sightline.attention.functional import observe
from sightline.attention.masks import Causal, Episode, Padding, Window, resolve_mask

from .clock import Samples, alternate, measure, timer
from .record import Report
from .suite import Settings

SHAPES = {
    "tiny": {"7 tokens": (2, 2, 7, 8)},
    "cpu": {
        "64 tokens": (8, 4, 64, 32),
        "400 tokens": (8, 4, 400, 32),
        "1,024 tokens": (2, 8, 1024, 64),
        "5-way episode": (64, 4, 80, 16),
        "translation": (32, 8, 64, 64),
    },
    "gpu": {
        "5-way episode": (1024, 4, 80, 16),
        "20-way episode": (256, 4, 400, 32),
        "translation": (256, 8, 64, 64),
        "ViT": (256, 6, 197, 64),
        "4,096 tokens": (4, 16, 4096, 64),
        "16,384 tokens": (1, 16, 16384, 128),
    },
}
"""(B, H, T, D)"""
MAX_EXPLICIT = 4096
"""Tokens up to which attention with explicit weights fits in memory."""
WINDOW = 128
"""Radius of the window that is compared with FlexAttention."""
MAX_LOGIT_SCALE = math.log(1 / 0.01)
Run = Callable[[], Tensor]


class SwinV2CosineAttention(nn.Module):
    """Cosine attention of Swin Transformer V2: a learned scale of at most 100, and an explicit softmax."""

    def __init__(self, num_heads: int):
        super().__init__()
        self.logit_scale = nn.Parameter(torch.full((num_heads, 1, 1), math.log(10)))

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q, k, v (B, H, T, D) -> (B, H, T, D)"""
        scale = self.logit_scale.clamp(max=MAX_LOGIT_SCALE).exp().to(q.dtype)
        scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT
        return (scores * scale).softmax(-1) @ v


class FlexCosineAttention(nn.Module):
    """The same on FlexAttention."""

    def __init__(self, num_heads: int):
        super().__init__()
        self.logit_scale = nn.Parameter(torch.full((num_heads, 1, 1), math.log(10)))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, block_mask: Any = None) -> Tensor:
        """q, k, v (B, H, T, D) -> (B, H, T, D); block_mask is one of FlexAttention"""
        from torch.nn.attention.flex_attention import flex_attention

        scale = self.logit_scale.clamp(max=MAX_LOGIT_SCALE).exp().to(q.dtype)
        return flex_attention(
            F.normalize(q, dim=-1) * scale, F.normalize(k, dim=-1), v, scale=1.0, block_mask=block_mask
        )


class Observer:
    """Requests all weights and discards them."""

    def is_interested(self) -> bool:
        return True

    def on_attention(self, weights: Tensor, scores: Tensor, **options: Any) -> Tensor:
        """Discard."""
        return weights


def explicit(run: Run) -> Run:
    """Compute the weights, as in a recording."""

    def observed() -> Tensor:
        with observe(observer):
            return run()

    observer = Observer()
    return observed


def in_mode(run: Run, mode: str, leaves: list[Tensor]) -> Callable[[], object]:
    """The forward pass without gradients, or forward and backward pass."""

    @torch.no_grad()
    def forward() -> Tensor:
        return run()

    def train() -> tuple[Tensor, ...]:
        out = run()
        return torch.autograd.grad(out, leaves, torch.ones_like(out), allow_unused=True)

    return forward if mode == "forward" else train


def projected(shape: tuple[int, int, int, int], settings: Settings) -> list[Tensor]:
    """q, k and v as one projection leaves them: (B, H, T, D) over (B, T, 3 H, D)"""
    batch, heads, tokens, dim = shape
    qkv = torch.randn(batch, tokens, 3 * heads, dim, device=settings.device, dtype=settings.dtype)
    return [x.transpose(1, 2).requires_grad_() for x in qkv.chunk(3, 2)]


def run(settings: Settings, report: Report) -> None:
    """All comparisons."""
    rounds = settings.pick(tiny=2, cpu=11, gpu=15)
    for (name, shape), mode in product(SHAPES[settings.pick(tiny="tiny", cpu="cpu", gpu="gpu")].items(), MODES):
        compare_functions(f"{name}, {mode}", shape, mode, rounds, settings, report)
    compare_modules(rounds, settings, report)
    if settings.device == "cuda":
        compare_flex(rounds, settings, report)


MODES = ("forward", "training")
THEIRS = {
    "dot": ("SDPA",),
    "causal": ("SDPA causal",),
    "cosine": ("SDPA",),
    "cosine, causal": ("SDPA causal",),
    "cosine, padding": ("SDPA padding",),
    "cosine, episode mask": ("SDPA", "SDPA with the mask"),
}
"""What each of ours is compared with."""


def compare_functions(
    name: str, shape: tuple[int, int, int, int], mode: str, rounds: int, settings: Settings, report: Report
) -> None:
    """`attend` relative to `scaled_dot_product_attention` and to Swin-V2's cosine attention."""
    q, k, v = projected(shape, settings)
    batch, heads, tokens, _ = shape
    cosine, swin = CosineScore(num_heads=heads).to(settings.device), SwinV2CosineAttention(heads).to(settings.device)
    padding = Padding.from_lengths([tokens - i % (tokens // 4 + 1) for i in range(batch)]).to(settings.device)
    episode = Episode(max(1, tokens // 4))
    mask = resolve_mask(episode, (batch, heads, tokens, tokens), torch.device(settings.device)).allowed
    runs: dict[str, Run] = {
        "SDPA": lambda: F.scaled_dot_product_attention(q, k, v),
        "SDPA causal": lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        "dot": lambda: attend(q, k, v),
        "causal": lambda: attend(q, k, v, mask=Causal()),
        "cosine": lambda: attend(q, k, v, score=cosine),
        "cosine, causal": lambda: attend(q, k, v, score=cosine, mask=Causal()),
        "cosine, padding": lambda: attend(q, k, v, score=cosine, mask=padding),
        "SDPA padding": lambda: F.scaled_dot_product_attention(q, k, v, padding.attention_mask),
        "cosine, episode mask": lambda: attend(q, k, v, score=cosine, mask=episode),
        "SDPA with the mask": lambda: F.scaled_dot_product_attention(q, k, v, mask),
    }
    leaves = [q, k, v, *cosine.parameters(), *swin.parameters()]
    functions = {key: in_mode(function, mode, leaves) for key, function in runs.items()}
    samples = measure(functions, rounds, settings.device, graphs=True)
    for key, others in THEIRS.items():
        label = "dot, causal" if key == "causal" else key
        for other in others:
            report.compare(name, (label, samples[key]), (other, samples[other]))
    if tokens <= MAX_EXPLICIT:  # apart: on a CPU, what follows them waits for the memory that they gave back
        slow = {"explicit": explicit(runs["dot"]), "Swin-V2": lambda: swin(q, k, v)}
        slow_functions = {key: in_mode(function, mode, leaves) for key, function in slow.items()}
        slow_functions |= {key: functions[key] for key in ("SDPA", "cosine")}
        samples = measure(slow_functions, rounds, settings.device, graphs=True)
        report.compare(name, ("dot, weights recorded", samples["explicit"]), ("SDPA", samples["SDPA"]))
        report.compare(name, ("cosine", samples["cosine"]), ("Swin-V2", samples["Swin-V2"]))
    if settings.device == "cuda":
        memory = {key: Samples((peak_memory(functions[key]),)) for key in ("cosine", "SDPA")}
        report.compare(name, ("cosine, memory", memory["cosine"]), ("SDPA, memory", memory["SDPA"]), unit="bytes")


def peak_memory(function: Callable[[], object]) -> float:
    """Peak GPU memory of a call in bytes, with its inputs and outputs."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    outputs = function()
    torch.cuda.synchronize()
    del outputs
    return float(torch.cuda.max_memory_allocated())


def compare_flex(rounds: int, settings: Settings, report: Report) -> None:
    """Cosine and window attention relative to FlexAttention, compiled."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    for (name, shape), mode in product(SHAPES[settings.pick(tiny="tiny", cpu="tiny", gpu="gpu")].items(), MODES):
        torch.compiler.reset()  # dynamo limits the number of compilations of one function
        q, k, v = projected(shape, settings)
        heads, tokens = shape[1:3]
        cosine, module = CosineScore(num_heads=heads).to(settings.device), FlexCosineAttention(heads)
        flex = torch.compile(module.to(settings.device), dynamic=False)
        runs: dict[str, Run] = {
            "cosine": lambda q=q, k=k, v=v, score=cosine: attend(q, k, v, score=score),
            "flex cosine": lambda q=q, k=k, v=v, flex=flex: flex(q, k, v),
        }
        support = max(1, tokens // 4)

        def in_episode(batch: Tensor, head: Tensor, query: Tensor, key: Tensor, support: int = support) -> Tensor:
            return (key < support) | (query == key)

        episode = create_block_mask(in_episode, None, None, tokens, tokens, device=settings.device)
        rule = Episode(support)
        runs["cosine, episode mask"] = lambda q=q, k=k, v=v, score=cosine, rule=rule: attend(
            q, k, v, score=score, mask=rule
        )
        runs["flex episode"] = lambda q=q, k=k, v=v, flex=flex, mask=episode: flex(q, k, v, mask)
        if tokens >= 8 * WINDOW:
            blocks = create_block_mask(_in_window, None, None, tokens, tokens, device=settings.device)
            compiled = torch.compile(flex_attention, dynamic=False)
            runs["dot, window"] = lambda q=q, k=k, v=v: attend(q, k, v, mask=Window(WINDOW))
            runs["cosine, window"] = lambda q=q, k=k, v=v, score=cosine: attend(
                q, k, v, score=score, mask=Window(WINDOW)
            )
            runs["flex window"] = lambda q=q, k=k, v=v, flex=compiled, mask=blocks: flex(q, k, v, block_mask=mask)
        leaves = [q, k, v, *cosine.parameters(), *module.parameters()]
        functions = {key: in_mode(function, mode, leaves) for key, function in runs.items()}
        samples = measure(functions, rounds, settings.device, graphs=True)
        label = f"{name}, {mode}"
        report.compare(label, ("cosine", samples["cosine"]), ("FlexAttention, cosine", samples["flex cosine"]))
        theirs = ("FlexAttention, cosine, episode mask", samples["flex episode"])
        report.compare(label, ("cosine, episode mask", samples["cosine, episode mask"]), theirs)
        for key in ("dot, window", "cosine, window"):
            if key in samples:
                report.compare(label, (key, samples[key]), ("FlexAttention, window", samples["flex window"]))


def _in_window(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return (query - key).abs() <= WINDOW


def compare_modules(rounds: int, settings: Settings, report: Report) -> None:
    """`MultiHeadAttention` relative to `nn.MultiheadAttention` and to the layer of x-transformers."""
    batch, tokens, dim, heads = settings.pick(tiny=(2, 7, 16, 2), cpu=(8, 128, 512, 8), gpu=(64, 128, 512, 8))
    to = {"device": settings.device, "dtype": settings.dtype}
    theirs = nn.MultiheadAttention(dim, heads, batch_first=True).to(**to)
    ours, cosine = MultiHeadAttention(dim, heads).to(**to), MultiHeadAttention(dim, heads, score="cosine").to(**to)
    x = torch.randn(batch, tokens, dim, **to, requires_grad=True)
    leaves = [x, *theirs.parameters(), *ours.parameters(), *cosine.parameters()]
    torch_name, weights_name = "nn.MultiheadAttention", "nn.MultiheadAttention, need_weights"
    with settings.peer("x_transformers", report) as peer:
        for mode in MODES:
            for module in (theirs, ours, cosine):
                module.train(mode == "training")  # torch has a fast path in evaluation mode
            runs: dict[str, Run] = {
                torch_name: lambda: theirs(x, x, x, need_weights=False)[0],
                "dot": lambda: ours(x),
                "cosine": lambda: cosine(x),
                weights_name: lambda: theirs(x, x, x, average_attn_weights=False)[0],
                "recorded": explicit(lambda: ours(x)),
            }
            timers = {
                key: timer(in_mode(function, mode, leaves), settings.device, graphs=True)
                for key, function in runs.items()
            }
            if peer is not None:
                job = {"shape": [batch, tokens, dim], "heads": heads, "training": mode == "training"}
                timers["x-transformers"] = partial(peer.call, dtype=str(settings.dtype).removeprefix("torch."), **job)
                timers["x-transformers"]()
            samples = alternate(timers, rounds)
            name = f"module, {mode}"
            pairs = {"dot": torch_name, "cosine": torch_name, "recorded": weights_name}
            for key, other in pairs.items():
                report.compare(name, (f"MultiHeadAttention, {key}", samples[key]), (other, samples[other]))
            if peer is not None:
                both = (
                    ("MultiHeadAttention, cosine", samples["cosine"]),
                    ("x-transformers, qk_norm", samples["x-transformers"]),
                )
                report.compare(name, *both)

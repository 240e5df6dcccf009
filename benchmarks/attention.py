"""Time and memory of Sightline's attention relative to torch's; below 1 is faster or smaller.

    python benchmarks/attention.py                  on the CPU
    python benchmarks/attention.py --device cuda    on a GPU, in bfloat16, inside CUDA graphs

`bound` is the time of the matrix products alone at the speed of one large product on this machine, relative to torch's
fused attention. `episode` is cosine attention under an episode mask with a quarter of the tokens as support, against
torch's attention without a mask. `explicit` is attention with its weights computed, as in a recording. `memory` is the
peak of cosine attention, including inputs and outputs.
"""

import argparse

import torch
import torch.nn.functional as F
from clock import machine, medians
from torch import nn

from sightline.attention import CosineScore, MultiHeadAttention, attend
from sightline.attention.functional import observe
from sightline.attention.masks import Causal, Episode

SHAPES = {  # B, H, T, D
    "cpu": {
        "64 tokens": (8, 4, 64, 32),
        "400 tokens": (8, 4, 400, 32),
        "1,024 tokens": (2, 8, 1024, 64),
        "5-way episode": (64, 4, 80, 16),
        "translation": (32, 8, 64, 64),
    },
    "cuda": {
        "5-way episode": (1024, 4, 80, 16),
        "20-way episode": (256, 4, 400, 32),
        "ViT": (256, 6, 197, 64),
        "translation": (256, 8, 64, 64),
        "4,096 tokens": (4, 16, 4096, 64),
        "16,384 tokens": (1, 16, 16384, 128),
    },
}


class Observer:
    """Requests all weights and discards them."""

    def is_interested(self):
        return True

    def on_attention(self, weights, scores, *, kind, causal):
        pass


def explicit(run):
    """Run on the explicit path."""

    def observed():
        with observe(observer):
            return run()

    observer = Observer()
    return observed


def with_backward(run, *leaves):
    """Forward and backward pass."""

    def both():
        out = run()
        return torch.autograd.grad(out, leaves, torch.ones_like(out), allow_unused=True)

    return both


def without_gradient(run):
    """Forward pass without gradients."""

    def forward():
        with torch.no_grad():
            return run()

    return forward


def product_rate(device, dtype):
    """Floating-point operations per second of one large matrix product."""
    size = 8192 if device == "cuda" else 1024
    a = torch.randn(size, size, device=device, dtype=dtype)
    return 2 * size**3 / medians({"product": lambda: a @ a}, 10, device)["product"]


def projected(batch, heads, tokens, dim, device, dtype):
    """q, k and v as one projection leaves them: (B, H, T, D) over (B, T, 3 H, D)"""
    qkv = torch.randn(batch, tokens, 3 * heads, dim, device=device, dtype=dtype)
    return [x.transpose(1, 2).requires_grad_() for x in qkv.chunk(3, 2)]


def functions(device, dtype, rounds):
    """`attend` relative to `scaled_dot_product_attention`."""
    rate = product_rate(device, dtype)
    columns = ("SDPA ms", "bound", "dot", "causal", "cosine", "episode", "explicit", "memory")
    print(f"\n{'attend / SDPA':<24} " + " ".join(f"{column:>8}" for column in columns))
    for name, shape in SHAPES[device].items():
        batch, heads, tokens, dim = shape
        q, k, v = projected(*shape, device, dtype)
        cosine, episode = CosineScore(num_heads=heads).to(device), Episode(tokens // 4)
        runs = {
            "sdpa": lambda q=q, k=k, v=v: F.scaled_dot_product_attention(q, k, v),
            "sdpa causal": lambda q=q, k=k, v=v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
            "dot": lambda q=q, k=k, v=v: attend(q, k, v),
            "causal": lambda q=q, k=k, v=v: attend(q, k, v, mask=Causal()),
            "cosine": lambda q=q, k=k, v=v, score=cosine: attend(q, k, v, score=score),
            "episode": lambda q=q, k=k, v=v, score=cosine, mask=episode: attend(q, k, v, score=score, mask=mask),
        }
        if tokens <= 4096:
            runs["explicit"] = explicit(runs["dot"])
        for mode, products in (("forward", 2), ("training", 7)):
            wrapped = {
                key: without_gradient(run) if mode == "forward" else with_backward(run, q, k, v, *cosine.parameters())
                for key, run in runs.items()
            }
            seconds = medians(wrapped, rounds, device, graphs=True)
            base = seconds["sdpa"]
            ratios = {
                "bound": products * 2 * batch * heads * tokens * tokens * dim / rate / base,
                **{key: seconds[key] / base for key in ("dot", "cosine", "episode", "explicit") if key in seconds},
                "causal": seconds["causal"] / seconds["sdpa causal"],
            }
            if device == "cuda":
                ratios["memory"] = peak_memory(wrapped["cosine"]) / peak_memory(wrapped["sdpa"])
            cells = [f"{ratios[column]:8.2f}" if column in ratios else f"{'':>8}" for column in columns[1:]]
            print(f"{name:<15} {mode:<8} {1000 * base:8.3f} " + " ".join(cells))


def peak_memory(run):
    """Peak GPU memory of a call in bytes, with its inputs and outputs."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    outputs = run()
    torch.cuda.synchronize()
    del outputs
    return torch.cuda.max_memory_allocated()


def modules(device, dtype, rounds):
    """`MultiHeadAttention` relative to `nn.MultiheadAttention`, without and with weights."""
    batch, tokens, dim, heads = (64, 128, 512, 8) if device == "cuda" else (8, 128, 512, 8)
    theirs = nn.MultiheadAttention(dim, heads, batch_first=True).to(device, dtype)
    ours = MultiHeadAttention(dim, heads).to(device, dtype)
    cosine = MultiHeadAttention(dim, heads, score="cosine").to(device, dtype)
    x = torch.randn(batch, tokens, dim, device=device, dtype=dtype, requires_grad=True)
    print(f"\n{'ours / nn.MultiheadAttention':<30} {'dot':>6} {'cosine':>7} {'recorded / need_weights':>24}")
    for mode in ("forward", "training"):
        runs = {
            "torch": lambda: theirs(x, x, x, need_weights=False)[0],
            "dot": lambda: ours(x),
            "cosine": lambda: cosine(x),
            "torch weights": lambda: theirs(x, x, x, average_attn_weights=False)[0],
            "recorded": explicit(lambda: ours(x)),
        }
        leaves = [x, *theirs.parameters(), *ours.parameters(), *cosine.parameters()]
        wrapped = {
            key: without_gradient(run) if mode == "forward" else with_backward(run, *leaves)
            for key, run in runs.items()
        }
        seconds = medians(wrapped, rounds, device, graphs=True)
        print(
            f"{mode:<30} {seconds['dot'] / seconds['torch']:6.2f} {seconds['cosine'] / seconds['torch']:7.2f} "
            f"{seconds['recorded'] / seconds['torch weights']:24.2f}"
        )


def main():
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    dtype = torch.bfloat16 if options.device == "cuda" else torch.float32
    torch.manual_seed(0)
    print(f"{machine(options.device)}, {dtype}, medians of {options.rounds} rounds")
    functions(options.device, dtype, options.rounds)
    modules(options.device, dtype, options.rounds)


if __name__ == "__main__":
    main()

"""Time and memory of Sightline's attention relative to torch's; below 1 is faster or smaller.

    python benchmarks/attention.py                  on the CPU
    python benchmarks/attention.py --device cuda    on a GPU, in bfloat16

`bound` is the time of the matrix products alone at the speed of one large product on this machine, relative to torch's
fused attention. `explicit` is attention with its weights computed, as in a recording.
"""

import argparse

import torch
import torch.nn.functional as F
from clock import machine, medians
from torch import nn

from sightline.attention import CosineScore, MultiHeadAttention, attend
from sightline.attention.functional import observe
from sightline.attention.masks import Causal

SHAPES = {  # B, H, T, D
    "cpu": {"5-way episode": (64, 4, 80, 16), "translation": (32, 8, 64, 64), "long": (1, 16, 2048, 64)},
    "cuda": {
        "5-way episode": (1024, 4, 80, 16),
        "20-way episode": (256, 4, 400, 32),
        "ViT": (256, 6, 197, 64),
        "translation": (256, 8, 64, 64),
        "long": (4, 16, 4096, 64),
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
        out.backward(torch.ones_like(out))
        for leaf in leaves:
            leaf.grad = None

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


def functions(device, dtype, rounds):
    """`attend` relative to `scaled_dot_product_attention`."""
    rate = product_rate(device, dtype)
    print(f"\n{'attend / SDPA':<24} {'SDPA ms':>8} {'bound':>6} {'dot':>6} {'causal':>7} {'cosine':>7} {'explicit':>9}")
    for name, (batch, heads, tokens, dim) in SHAPES[device].items():
        q, k, v = (
            torch.randn(batch, heads, tokens, dim, device=device, dtype=dtype, requires_grad=True) for _ in range(3)
        )
        cosine = CosineScore(num_heads=heads).to(device)
        runs = {
            "sdpa": lambda q=q, k=k, v=v: F.scaled_dot_product_attention(q, k, v),
            "sdpa causal": lambda q=q, k=k, v=v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
            "dot": lambda q=q, k=k, v=v: attend(q, k, v),
            "causal": lambda q=q, k=k, v=v: attend(q, k, v, mask=Causal()),
            "cosine": lambda q=q, k=k, v=v, score=cosine: attend(q, k, v, score=score),
        }
        runs["explicit"] = explicit(runs["dot"])
        for mode, products in (("forward", 2), ("training", 7)):
            wrapped = {
                key: without_gradient(run) if mode == "forward" else with_backward(run, q, k, v)
                for key, run in runs.items()
            }
            seconds = medians(wrapped, rounds, device)
            bound = products * 2 * batch * heads * tokens * tokens * dim / rate
            base = seconds["sdpa"]
            print(
                f"{name:<15} {mode:<8} {1000 * base:8.3f} {bound / base:6.2f} {seconds['dot'] / base:6.2f} "
                f"{seconds['causal'] / seconds['sdpa causal']:7.2f} {seconds['cosine'] / base:7.2f} "
                f"{seconds['explicit'] / base:9.2f}"
            )


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
        seconds = medians(wrapped, rounds, device)
        print(
            f"{mode:<30} {seconds['dot'] / seconds['torch']:6.2f} {seconds['cosine'] / seconds['torch']:7.2f} "
            f"{seconds['recorded'] / seconds['torch weights']:24.2f}"
        )


def memory(dtype):
    """Peak GPU memory with 16 heads and 4,096 tokens, including inputs and outputs."""
    score = CosineScore(num_heads=16).to("cuda")
    runs = {
        "sdpa": F.scaled_dot_product_attention,
        "dot": attend,
        "cosine": lambda q, k, v: attend(q, k, v, score=score),
    }
    print(f"\n{'peak memory / SDPA':<30} {'SDPA MiB':>8} {'dot':>6} {'cosine':>7}")
    for mode in ("forward", "training"):
        peaks = {}
        for name, run in runs.items():
            torch.cuda.empty_cache()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            qkv = [torch.randn(1, 16, 4096, 64, device="cuda", dtype=dtype, requires_grad=True) for _ in range(3)]
            if mode == "forward":
                with torch.no_grad():
                    run(*qkv)
            else:
                with_backward(lambda run=run, qkv=qkv: run(*qkv))()
            torch.cuda.synchronize()
            peaks[name] = torch.cuda.max_memory_allocated() - before
            del qkv
        base = peaks["sdpa"]
        print(f"{mode:<30} {base / 2**20:8.0f} {peaks['dot'] / base:6.2f} {peaks['cosine'] / base:7.2f}")


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
    if options.device == "cuda":
        memory(dtype)


if __name__ == "__main__":
    main()

"""Training tokens per second of our Transformer against Marian of Hugging Face transformers with the same size.

Both models train on the same random batch: forward, backward, AdamW. Sentences have nearly equal lengths, as length
buckets give them; only target tokens without padding are counted. On a GPU both compute in bfloat16, and are also
measured compiled.
"""

from collections.abc import Callable
from itertools import product

import torch
from torch import Tensor, nn

from .clock import measure
from .record import Report
from .suite import Settings

VOCAB_SIZE = 8000
TOKENS = 24


def run(settings: Settings, report: Report) -> None:
    """Compare all sizes."""
    if not settings.has_peer("transformers", report):
        return
    sizes = settings.pick(tiny=("tiny",), cpu=("tiny", "small", "base"), gpu=("tiny", "base"))
    for compiled, size in product((False, True) if settings.device == "cuda" else (False,), sizes):
        compare(size, compiled, settings, report)


def compare(size: str, compiled: bool, settings: Settings, report: Report) -> None:
    """Training steps of both models."""
    from .marian import model_pair

    model, marian = (model.train() for model in model_pair(size, VOCAB_SIZE, settings.device))
    run_model, run_marian = (torch.compile(m) for m in (model, marian)) if compiled else (model, marian)
    source, mask, target, labels = random_batch(settings.pick(tiny=2, cpu=64, gpu=256), settings.device)
    count = int((labels >= 0).sum())

    def model_loss() -> Tensor:
        return run_model(source, mask, target, labels=labels) / count

    def marian_loss() -> Tensor:
        return run_marian(input_ids=source, attention_mask=mask.long(), decoder_input_ids=target, labels=labels).loss

    steps = {
        "ours": training_step(model, model_loss, settings.device),
        "Marian": training_step(marian, marian_loss, settings.device),
    }
    rounds = settings.pick(tiny=1, cpu=3 if size == "base" else 5, gpu=7)
    rates = {name: seconds.rate(count) for name, seconds in measure(steps, rounds, settings.device).items()}
    suffix = ", compiled" if compiled else ""
    both = (f"ours{suffix}", rates["ours"]), (f"Marian{suffix}", rates["Marian"])
    report.compare(f"{size}, {len(source)} sentences", *both, unit="tokens/s")


def random_batch(size: int, device: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """source, attention_mask, target and labels, each (size, TOKENS); three quarters to all positions are tokens."""
    from .marian import BOS, PAD

    shape = (size, TOKENS)
    torch.manual_seed(0)
    lengths = torch.randint(TOKENS * 3 // 4, TOKENS + 1, (2, size, 1), device=device)
    attention_mask, is_labeled = torch.arange(TOKENS, device=device) < lengths
    source, tokens = (torch.randint(4, VOCAB_SIZE, shape, device=device) for _ in range(2))
    target = torch.cat((torch.full((size, 1), BOS, device=device), tokens[:, :-1]), 1)
    return source.where(attention_mask, PAD), attention_mask, target, tokens.where(is_labeled, -100)


def training_step(model: nn.Module, loss_function: Callable[[], Tensor], device: str) -> Callable[[], None]:
    """A function that runs forward, backward and the optimizer."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def run() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = loss_function()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return run

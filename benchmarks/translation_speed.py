"""Training tokens a second against Hugging Face's Marian of the same size, in one run and in turns.

    python benchmarks/translation_speed.py [--size small] [--threads 2]      on the CPU
    python benchmarks/translation_speed.py --device cuda [--compile]         on a GPU, in bfloat16

Both see the same random batches, forward, backward and AdamW. Sentences of a batch have nearly the same length, as
bucketing leaves them; only real target tokens are counted. `--compile` compiles both.
"""

import argparse
from collections.abc import Callable

import torch
from clock import machine, medians
from marian import BEGIN, PAD, pair
from torch import Tensor, nn

WORDS = 8000
SENTENCES = {"cpu": 64, "cuda": 256}


def batch(device: str, tokens: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """source, real, target, wanted; from three quarters of `tokens` up to all of them are real."""
    shape = (SENTENCES[device], tokens)
    lengths = torch.randint(tokens * 3 // 4, tokens + 1, (2, shape[0], 1), device=device)
    real, there = torch.arange(tokens, device=device) < lengths
    source, words = (torch.randint(4, WORDS, shape, device=device) for _ in range(2))
    target = torch.cat((torch.full((shape[0], 1), BEGIN, device=device), words[:, :-1]), 1)
    return source.where(real, PAD), real, target, words.where(there, -100)


def step(model: nn.Module, loss: Callable[[], Tensor], device: str) -> Callable[[], None]:
    """Forward, backward and the optimizer."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def run() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            cost = loss()
        cost.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return run


def main() -> None:
    """Print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--size", choices=("tiny", "small", "base"), default="tiny")
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--compile", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    torch.manual_seed(0)
    ours, theirs = (model.train() for model in pair(asked.size, WORDS, asked.device))
    we, they = (torch.compile(model) for model in (ours, theirs)) if asked.compile else (ours, theirs)
    source, real, target, wanted = batch(asked.device, asked.tokens)
    count = int((wanted >= 0).sum())

    def our_loss() -> Tensor:
        return we(source, real, target, wanted=wanted) / count

    def their_loss() -> Tensor:
        return they(input_ids=source, attention_mask=real.long(), decoder_input_ids=target, labels=wanted).loss

    runs = {"ours": step(ours, our_loss, asked.device), "Marian": step(theirs, their_loss, asked.device)}
    times = medians(runs, asked.rounds, asked.device)
    print(f"{machine(asked.device)}, {asked.size}, medians of {asked.rounds} rounds in turns")
    print(f"{len(source)} sentences of {asked.tokens} places, {count} real target tokens")
    for name, seconds in times.items():
        print(f"{name:<8} {count / seconds:12,.0f} tokens/s")
    print(f"ratio    {times['Marian'] / times['ours']:12.2f}")


if __name__ == "__main__":
    main()

"""Training tokens per second against Marian of Hugging Face with the same size.

    python benchmarks/translation_speed.py [--size small] [--threads 2]      on the CPU
    python benchmarks/translation_speed.py --device cuda [--compile]         on a GPU, in bfloat16

Both models train on the same random batch: forward, backward, AdamW. Sentences have nearly equal lengths, as length
buckets give them; only target tokens without padding are counted. `--compile` compiles both models.
"""

import argparse
from collections.abc import Callable

import torch
from clock import machine, medians
from marian import BOS, PAD, model_pair
from torch import Tensor, nn

VOCAB_SIZE = 8000
BATCH_SIZE = {"cpu": 64, "cuda": 256}


def random_batch(device: str, length: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """source, attention_mask, target and labels, each (B, length); three quarters to all positions are tokens."""
    shape = (BATCH_SIZE[device], length)
    lengths = torch.randint(length * 3 // 4, length + 1, (2, shape[0], 1), device=device)
    attention_mask, is_labeled = torch.arange(length, device=device) < lengths
    source, tokens = (torch.randint(4, VOCAB_SIZE, shape, device=device) for _ in range(2))
    target = torch.cat((torch.full((shape[0], 1), BOS, device=device), tokens[:, :-1]), 1)
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


def main() -> None:
    """Print tokens per second and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--size", choices=("tiny", "small", "base"), default="tiny")
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    model, marian = (model.train() for model in model_pair(args.size, VOCAB_SIZE, args.device))
    run_model, run_marian = (torch.compile(m) for m in (model, marian)) if args.compile else (model, marian)
    source, mask, target, labels = random_batch(args.device, args.tokens)
    count = int((labels >= 0).sum())

    def model_loss() -> Tensor:
        return run_model(source, mask, target, labels=labels) / count

    def marian_loss() -> Tensor:
        return run_marian(input_ids=source, attention_mask=mask.long(), decoder_input_ids=target, labels=labels).loss

    steps = {
        "ours": training_step(model, model_loss, args.device),
        "Marian": training_step(marian, marian_loss, args.device),
    }
    times = medians(steps, args.rounds, args.device)
    print(f"{machine(args.device)}, {args.size}, medians of {args.rounds} interleaved rounds")
    print(f"{len(source)} sentences of {args.tokens} positions, {count} target tokens")
    for name, seconds in times.items():
        print(f"{name:<8} {count / seconds:12,.0f} tokens/s")
    print(f"ratio    {times['Marian'] / times['ours']:12.2f}")


if __name__ == "__main__":
    main()

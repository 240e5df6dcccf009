"""Train a small Transformer to reverse a sequence of digits, and plot its cross-attention.

python examples/reverse.py          takes about ten seconds on two cores and writes demo/reverse.png

Shapes: B batch, S source tokens, T target tokens.
"""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sightline import Record, record_attention
from sightline.layers import SinusoidalPositions, Transformer
from sightline.view import figures

DIGITS, BOS, LENGTH = 10, 10, 8


class Reverser(nn.Module):
    """Predicts the digits of the source in reverse order."""

    def __init__(self, embed_dim: int = 32):
        super().__init__()
        self.embedding = nn.Embedding(DIGITS + 1, embed_dim)
        self.positions = SinusoidalPositions(embed_dim)
        self.transformer = Transformer(embed_dim, 2, 64, 1, score="cosine", norm="pre")
        self.head = nn.Linear(embed_dim, DIGITS)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """source (B, S), target (B, T) -> logits of the next digit (B, T, 10)"""
        source, target = (self.positions(self.embedding(ids)) for ids in (source, target))
        return self.head(self.transformer(source, target))


def batch(size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Random sources (B, S), decoder inputs (B, T) and labels (B, T)."""
    source = torch.randint(DIGITS, (size, LENGTH))
    labels = source.flip(1)
    target = torch.cat([torch.full((size, 1), BOS), labels[:, :-1]], 1)
    return source, target, labels


def train(steps: int = 600, seed: int = 0) -> Reverser:
    """Train a new model."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)  # faster for tensors this small
    model = Reverser()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, steps)
    for _ in range(steps):
        source, target, labels = batch(64)
        loss = F.cross_entropy(model(source, target).flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model.eval()


def evaluate(model: Reverser) -> tuple[Record, list[str], list[str], float]:
    """Cross-attention on one sequence, its source and output digits, and the accuracy on 1,000 new sequences."""
    with torch.no_grad():
        source, target, labels = batch(1000)
        accuracy = (model(source, target).argmax(-1) == labels).all(1).float().mean().item()
        with record_attention(model, layers="*cross_attention") as record:
            output = model(source[:1], target[:1]).argmax(-1)[0]
    return record, [str(d) for d in source[0].tolist()], [str(d) for d in output.tolist()], accuracy


def draw(record: Record, source: list[str], output: list[str], path: Path) -> Path:
    """One heat map per head: rows are output digits, columns source digits."""
    weights = record[0].weights[0]
    drawn, axes = figures.figure(1, len(weights), size=(3.2 * len(weights), 3.2))
    for head, axis in enumerate(axes[0]):
        figures.heatmap(
            axis, weights[head], title=f"head {head}", row_labels=output, column_labels=source, annotate=False, vmax=1.0
        )
        axis.set(xlabel="source", ylabel="output" if head == 0 else "")
    return figures.save(drawn, path)


def main() -> None:
    """Train, evaluate and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("demo/reverse.png"))
    parser.add_argument("--steps", type=int, default=600)
    options = parser.parse_args()
    record, source, output, accuracy = evaluate(train(options.steps))
    print(f"{' '.join(source)}  ->  {' '.join(output)}   ({accuracy:.1%} of 1,000 new sequences correct)")
    print(record)
    print(f"wrote {draw(record, source, output, options.out)}")


if __name__ == "__main__":
    main()

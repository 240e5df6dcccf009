"""A small Transformer learns to write a row of digits backwards; its cross-attention shows that it reads from the end.

python examples/reverse.py          about ten seconds on two cores; writes demo/reverse.png
"""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sightline import Record, record_attention
from sightline.layers import SinusoidalPositions, Transformer
from sightline.view import figures as pictures

DIGITS, BEGIN, LENGTH = 10, 10, 8


class Reverser(nn.Module):
    """Digits in, the same digits in reverse out."""

    def __init__(self, width: int = 32):
        super().__init__()
        self.embedding = nn.Embedding(DIGITS + 1, width)
        self.positions = SinusoidalPositions(width)
        self.transformer = Transformer(width, 2, 64, 1, score="cosine", norm="pre")
        self.head = nn.Linear(width, DIGITS)

    def forward(self, source: Tensor, written: Tensor) -> Tensor:
        """source (B, S), written (B, T) -> scores of the next digit (B, T, 10)"""
        source, written = (self.positions(self.embedding(ids)) for ids in (source, written))
        return self.head(self.transformer(source, written))


def batch(size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Random rows, what is already written at each place, and what comes next."""
    source = torch.randint(DIGITS, (size, LENGTH))
    target = source.flip(1)
    written = torch.cat([torch.full((size, 1), BEGIN), target[:, :-1]], 1)
    return source, written, target


def train(steps: int = 600, seed: int = 0) -> Reverser:
    """From nothing to all digits right."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)  # tensors this small are not worth sharing
    model = Reverser()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, steps)
    for _ in range(steps):
        source, written, target = batch(64)
        loss = F.cross_entropy(model(source, written).flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model.eval()


def look(model: Reverser) -> tuple[Record, list[str], list[str], float]:
    """The cross-attention on one row, its digits in and out, and how many of 1,000 fresh rows come out right."""
    with torch.no_grad():
        source, written, target = batch(1000)
        right = (model(source, written).argmax(-1) == target).all(1).float().mean().item()
        with record_attention(model, layers="*cross_attention") as record:
            answer = model(source[:1], written[:1]).argmax(-1)[0]
    return record, [str(d) for d in source[0].tolist()], [str(d) for d in answer.tolist()], right


def draw(record: Record, source: list[str], answer: list[str], path: Path) -> Path:
    """One heat map per head: rows are digits written, columns digits read."""
    weights = record[0].weights[0]
    drawn, axes = pictures.figure(1, len(weights), size=(3.2 * len(weights), 3.2))
    for head, axis in enumerate(axes[0]):
        pictures.heatmap(axis, weights[head], title=f"head {head}", rows=answer, columns=source, numbers=False, top=1.0)
        axis.set(xlabel="reads", ylabel="writes" if head == 0 else "")
    return pictures.save(drawn, path)


def main() -> None:
    """Train, look, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("demo/reverse.png"))
    parser.add_argument("--steps", type=int, default=600)
    asked = parser.parse_args()
    record, source, answer, right = look(train(asked.steps))
    print(f"{' '.join(source)}  ->  {' '.join(answer)}   ({right:.1%} of 1,000 fresh rows right)")
    print(record)
    print(f"wrote {draw(record, source, answer, asked.out)}")


if __name__ == "__main__":
    main()

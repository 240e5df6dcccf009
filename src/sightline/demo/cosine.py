"""Two numeric examples of cosine attention: vector length and temperature."""

import math
from pathlib import Path

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from ..attention import CosineScore, attention_weights
from ..view import figures

TEMPERATURES = (10.0, 1.0, 0.1, 0.05, 0.01)


def magnitude_trap(length: float) -> dict[str, list[float]]:
    """The attention weights of a dark cat on a bright cat and on a dog whose vector has this length.

    The cats have the same direction, the dog has another. The dot product prefers the dog once its vector is long
    enough; the cosine does not depend on lengths.
    """
    dark_cat = torch.tensor([[0.1, 0.1]])
    keys = torch.tensor([[10.0, 10.0], [length, 0.0]])
    return {score: attention_weights(dark_cat, keys, score=score)[0].tolist() for score in ("dot", "cosine")}


def temperature_sweep(similarities: tuple[float, ...] = (0.9, 0.8, 0.1)) -> dict[float, list[float]]:
    """Cosine attention weights at each temperature, of keys with these cosine similarities to the query."""
    query = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    keys = torch.tensor([[s, math.sqrt(1 - s * s)] for s in similarities], dtype=torch.float64)
    scores = {t: CosineScore(temperature=t, learnable=False) for t in TEMPERATURES}
    return {t: attention_weights(query, keys, score=score)[0].tolist() for t, score in scores.items()}


def entropy(weights: list[float]) -> float:
    """The entropy in bits."""
    return -sum(w * math.log2(w) for w in weights if w > 0)


def run(console: Console, out: Path) -> None:
    """Print both examples as tables and write a figure of each."""
    table = Table("length of dog", "dot: cat", "dot: dog", "cosine: cat", "cosine: dog", box=box.SIMPLE)
    for length in (5, 10, 20, 50, 100):
        weights = magnitude_trap(length)
        table.add_row(str(length), *(f"{w:.3f}" for w in weights["dot"] + weights["cosine"]))
    console.print("[bold]Vector length[/]: attention weights of a dark cat on a bright cat and a dog")
    console.print(table)

    table = Table("temperature", "0.9", "0.8", "0.1", "entropy, bits", box=box.SIMPLE)
    for temperature, row in temperature_sweep().items():
        table.add_row(f"{temperature:g}", *(f"{w:.4f}" for w in row), f"{entropy(row):.3f}")
    console.print("[bold]Temperature[/]: attention weights of keys with cosine similarity 0.9, 0.8 and 0.1")
    console.print(table)

    for path in (
        draw_magnitude_trap(out / "magnitude-trap.png"),
        draw_temperature_sweep(out / "temperature-sweep.png"),
    ):
        console.print(f"wrote {path}", markup=False, soft_wrap=True)


def draw_magnitude_trap(path: Path) -> Path:
    """Plot the weight of the cat against the length of the dog's vector."""
    lengths = [5 * 20 ** (i / 60) for i in range(61)]
    fig, axes = figures.figure(size=(6.4, 3.6))
    ax = axes[0, 0]
    for score, color in (("dot", "amber"), ("cosine", "blue")):
        cat_weights = [magnitude_trap(length)[score][0] for length in lengths]
        ax.plot(lengths, cat_weights, color=figures.COLORS[color], linewidth=2.5, label=f"{score} attention")
    ax.axhline(0.5, color=figures.COLORS["gray"], linewidth=1, linestyle=":")
    ax.annotate("above: prefers the cat\nbelow: prefers the dog", (70, 0.52), color=figures.COLORS["gray"], fontsize=8)
    ax.set(
        title="Attention of a dark cat to a bright cat and a dog",
        xlabel="length of the dog's vector",
        ylabel="attention weight of the cat",
        ylim=(-0.03, 1.05),
    )
    ax.legend(frameon=False, loc="center right", bbox_to_anchor=(1, 0.78))
    return figures.save(fig, path)


def draw_temperature_sweep(path: Path) -> Path:
    """Plot the weights at each temperature as a heat map."""
    sweep = temperature_sweep()
    fig, axes = figures.figure(size=(6.4, 3.2))
    figures.heatmap(
        axes[0, 0],
        sweep.values(),
        title="Cosine attention weights at five temperatures",
        row_labels=[f"temperature {t:g}  ({entropy(row):.2f} bits)" for t, row in sweep.items()],
        column_labels=["cosine 0.9", "cosine 0.8", "cosine 0.1"],
        vmax=1.0,
    )
    return figures.save(fig, path)

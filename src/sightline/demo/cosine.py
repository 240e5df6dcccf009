"""Why attention goes by angle, and what a temperature does: two examples that can be checked by hand."""

import math
from pathlib import Path

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from ..attention import CosineScore, attention_weights
from ..view import figures

TEMPERATURES = (10.0, 1.0, 0.1, 0.05, 0.01)


def magnitude_trap(brightness: float) -> dict[str, list[float]]:
    """How a dark cat divides its attention between a bright cat and a dog of growing brightness.

    The dog points elsewhere, yet a dot product follows it once its vector is long enough; an angle does not.
    """
    dark_cat = torch.tensor([[0.1, 0.1]])
    others = torch.tensor([[10.0, 10.0], [brightness, 0.0]])
    return {
        "dot": attention_weights(dark_cat, others, score="dot")[0].tolist(),
        "cosine": attention_weights(dark_cat, others, score="cosine")[0].tolist(),
    }


def temperature_sweep(similarities: tuple[float, ...] = (0.9, 0.8, 0.1)) -> dict[float, list[float]]:
    """Softmax of the same similarities at each temperature, by cosine attention on vectors at those angles."""
    query = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    keys = torch.tensor([[s, math.sqrt(1 - s * s)] for s in similarities], dtype=torch.float64)
    return {
        t: attention_weights(query, keys, score=CosineScore(temperature=t, learnable=False))[0].tolist()
        for t in TEMPERATURES
    }


def entropy(weights: list[float]) -> float:
    """In bits: 0 when one key has it all."""
    return -sum(w * math.log2(w) for w in weights if w > 0)


def tell(console: Console, out: Path) -> None:
    """Print both examples as tables and write a picture of each."""
    trap = Table("brightness of the dog", "dot: cat", "dot: dog", "cosine: cat", "cosine: dog", box=box.SIMPLE)
    for brightness in (5, 10, 20, 50, 100):
        weights = magnitude_trap(brightness)
        trap.add_row(str(brightness), *(f"{w:.3f}" for w in weights["dot"] + weights["cosine"]))
    console.print("[bold]The magnitude trap[/]: a dark cat looks for its like")
    console.print(trap)

    sweep = Table("temperature", "0.9", "0.8", "0.1", "entropy, bits", box=box.SIMPLE)
    for temperature, row in temperature_sweep().items():
        sweep.add_row(f"{temperature:g}", *(f"{w:.4f}" for w in row), f"{entropy(row):.3f}")
    console.print("[bold]The temperature sweep[/]: cosines of 0.9, 0.8 and 0.1")
    console.print(sweep)

    for path in (
        draw_magnitude_trap(out / "magnitude-trap.png"),
        draw_temperature_sweep(out / "temperature-sweep.png"),
    ):
        console.print(f"wrote {path}", markup=False, soft_wrap=True)


def draw_magnitude_trap(path: Path) -> Path:
    """Weight on the cat against the brightness of the dog."""
    brightness = [5 * 20 ** (i / 60) for i in range(61)]
    drawn, axes = figures.figure(size=(6.4, 3.6))
    ax = axes[0, 0]
    for name, color in (("dot", "amber"), ("cosine", "blue")):
        on_cat = [magnitude_trap(b)[name][0] for b in brightness]
        ax.plot(brightness, on_cat, color=figures.COLORS[color], linewidth=2.5, label=f"{name} attention")
    ax.axhline(0.5, color=figures.COLORS["gray"], linewidth=1, linestyle=":")
    ax.annotate(
        "above: looks at the cat\nbelow: looks at the dog", (70, 0.52), color=figures.COLORS["gray"], fontsize=8
    )
    ax.set(
        title="The magnitude trap: a dark cat looks for its like",
        xlabel="length of the dog's vector (its brightness)",
        ylabel="weight on the cat",
        ylim=(-0.03, 1.05),
    )
    ax.legend(frameon=False, loc="center right", bbox_to_anchor=(1, 0.78))
    return figures.save(drawn, path)


def draw_temperature_sweep(path: Path) -> Path:
    """A row of weights for each temperature."""
    sweep = temperature_sweep()
    drawn, axes = figures.figure(size=(6.4, 3.2))
    figures.heatmap(
        axes[0, 0],
        sweep.values(),
        title="One row of cosines, five temperatures",
        row_labels=[f"temperature {t:g}  ({entropy(row):.2f} bits)" for t, row in sweep.items()],
        column_labels=["cos 0.9", "cos 0.8", "cos 0.1"],
        vmax=1.0,
    )
    return figures.save(drawn, path)

"""Draw the figures of docs/attention.md and docs/data.md into docs/images: python docs/figures.py"""

import runpy
from pathlib import Path

import torch
from torch import Tensor

from sightline.attention import NORMALIZERS, SCORES, CosineScore, attention_weights
from sightline.attention.masks import Additive, Allow, Causal, Episode, Mask, Padding, Window
from sightline.attention.normalizers import make_normalizer
from sightline.attention.scores import make_score
from sightline.data.images import glyphs, summary
from sightline.demo import cosine
from sightline.layers import sinusoids
from sightline.view import figures

HERE = Path(__file__).parent
IMAGES = HERE / "images"
NAMES = ["cat", "CAT", "dog", "DOG", "bird", "sky"]


def animals() -> Tensor:
    """Six vectors (6, 2): short and long cats and dogs, a bird between them, and the sky."""
    angles = torch.deg2rad(torch.tensor([10.0, 14.0, 60.0, 64.0, 110.0, 200.0]))
    lengths = torch.tensor([1.0, 4.0, 1.0, 4.0, 2.0, 2.0])
    return lengths[:, None] * torch.stack((angles.cos(), angles.sin()), -1)


def draw_scores() -> None:
    """Attention weights of the six vectors by each score."""
    x = animals()
    torch.manual_seed(3)
    drawn, axes = figures.figure(1, 4, size=(13, 3.5))
    for axis, name in zip(axes[0], SCORES, strict=True):
        score = CosineScore(temperature=0.3) if name == "cosine" else make_score(name, head_dim=2, num_heads=1)
        title = {
            "cosine": "cosine, temperature 0.3",
            "general": "general (untrained)",
            "additive": "additive (untrained)",
        }
        with torch.no_grad():
            weights = attention_weights(x, x, score=score)
        figures.heatmap(axis, weights, title=title.get(name, name), row_labels=NAMES, column_labels=NAMES, vmax=1.0)
    figures.save(drawn, IMAGES / "scores.png")


def draw_normalizers() -> None:
    """Attention weights of the same scores by each normalizer."""
    x = animals()
    drawn, axes = figures.figure(1, 4, size=(13, 3.5))
    for axis, name in zip(axes[0], NORMALIZERS, strict=True):
        weights = attention_weights(
            x, x, score=CosineScore(temperature=0.5), normalizer=make_normalizer(name).eval()
        ).detach()
        signed = name in ("standardize", "identity")
        top = None if signed else 1.0
        figures.heatmap(axis, weights, title=name, row_labels=NAMES, column_labels=NAMES, vmax=top, diverging=signed)
    figures.save(drawn, IMAGES / "normalizers.png")


def draw_masks() -> None:
    """Attention weights of equal scores under each mask."""
    learned = Additive(6)
    torch.manual_seed(1)
    with torch.no_grad():
        learned.table.copy_(torch.randn(6, 6) - torch.arange(6).sub(torch.arange(6)[:, None]).abs())
    allowed = torch.ones(6, 6, dtype=torch.bool)
    allowed[::2, 1::2] = False
    examples: dict[str, tuple[Mask, int]] = {
        "Causal()": (Causal(), 6),
        "Causal(), 2 queries, 6 keys": (Causal(), 2),
        "Padding(attention_mask)": (Padding(torch.tensor([[True] * 4 + [False] * 2])), 6),
        "Window(1)": (Window(1), 6),
        "Episode(3)": (Episode(3), 6),
        "Allow(allowed)": (Allow(allowed), 6),
        "Causal() & Window(1)": (Causal() & Window(1), 6),
        "Causal() & Additive(6), learned": (Causal() & learned, 6),
    }
    drawn, axes = figures.figure(2, 4, size=(13, 6.4))
    for axis, (title, (mask, queries)) in zip(axes.flat, examples.items(), strict=True):
        weights = attention_weights(torch.zeros(1, 1, queries, 2), torch.zeros(1, 1, 6, 2), mask=mask)[0, 0].detach()
        positions = [str(i) for i in range(6)]
        figures.heatmap(
            axis, weights, title=title, row_labels=positions[6 - queries :], column_labels=positions, vmax=1.0
        )
    figures.save(drawn, IMAGES / "masks.png")


def draw_temperatures() -> None:
    """Attention weights of the six vectors at five temperatures."""
    x = animals()
    drawn, axes = figures.figure(1, 5, size=(15, 3.2))
    for axis, temperature in zip(axes[0], cosine.TEMPERATURES, strict=True):
        weights = attention_weights(x, x, score=CosineScore(temperature=temperature)).detach()
        bits = sum(cosine.entropy(row.tolist()) for row in weights) / len(weights)
        title = f"temperature {temperature:g} ({bits:.2f} bits)"
        figures.heatmap(axis, weights, title=title, row_labels=NAMES, column_labels=NAMES, vmax=1.0)
    figures.save(drawn, IMAGES / "temperatures.png")


def draw_positions() -> None:
    """Sinusoidal positions and their cosine similarities."""
    table = sinusoids(64, 64)
    similarities = torch.nn.functional.cosine_similarity(table[:, None], table[None], dim=-1)
    drawn, axes = figures.figure(1, 2, size=(9, 3.6))
    figures.heatmap(axes[0, 0], table, title="positions 0 to 63 (rows), 64 channels", diverging=True, annotate=False)
    figures.heatmap(axes[0, 1], similarities, title="cosine similarity of positions", annotate=False)
    figures.save(drawn, IMAGES / "positions.png")


def draw_glyphs() -> None:
    """Twelve characters of the generated alphabet, each drawn twelve times."""
    summary.contact_sheet(glyphs.draw(classes=12, per_class=12), per_class=12).save(
        IMAGES / "glyphs.png", optimize=True
    )


def draw_reversal() -> None:
    """Cross-attention of the model of examples/reverse.py."""
    reverse = runpy.run_path(str(HERE.parent / "examples" / "reverse.py"))
    record, source, output, accuracy = reverse["evaluate"](reverse["train"]())
    print(f"{accuracy:.1%} of new sequences correct")
    reverse["draw"](record, source, output, IMAGES / "reverse.png")


def main() -> None:
    """Draw all figures."""
    cosine.draw_magnitude_trap(IMAGES / "magnitude-trap.png")
    cosine.draw_temperature_sweep(IMAGES / "temperature-sweep.png")
    drawn = (draw_scores, draw_normalizers, draw_masks, draw_temperatures, draw_positions, draw_glyphs, draw_reversal)
    for draw in drawn:
        draw()
        print(f"drew {draw.__name__.removeprefix('draw_')}")


if __name__ == "__main__":
    main()

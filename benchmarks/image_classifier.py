"""Images per second of our vision transformer against the ViT of Hugging Face transformers with the same size: training
steps and inference.

Both have the same image and patch size, dimensions, depth, class token and learned positions, no dropout, and torch's
fused attention. A training step is forward, backward and AdamW on one random batch. On a GPU both compute in bfloat16,
and training is also measured compiled.
"""

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sightline.models.image_classifier import ImageClassifier, ImageClassifierConfig

from .clock import Samples, measure
from .record import Report
from .suite import Settings
from .translation import training_step

SIZES: dict[str, dict[str, int]] = {
    "2 x 16, 8 px": {"image_size": 8, "patch_size": 4, "embed_dim": 16, "num_heads": 2, "depth": 2},
    "ViT-Ti, 32 px": {"image_size": 32, "patch_size": 4, "embed_dim": 192, "num_heads": 3, "depth": 12},
    "ViT-S, 224 px": {"image_size": 224, "patch_size": 16, "embed_dim": 384, "num_heads": 6, "depth": 12},
}
NUM_CLASSES = 10


def run(settings: Settings, report: Report) -> None:
    """Compare all sizes."""
    if not settings.has_peer("transformers", report):
        return
    tiny, small, large = SIZES
    batches = settings.pick(tiny={tiny: 2}, cpu={small: 32}, gpu={small: 512, large: 256})
    for (name, batch_size), compiled in product(
        batches.items(), (False, True) if settings.device == "cuda" else (False,)
    ):
        compare(name, batch_size, compiled, settings, report)


def compare(name: str, batch_size: int, compiled: bool, settings: Settings, report: Report) -> None:
    """Training and, if not compiled, inference of both models, and of ours with cosine attention."""
    models: dict[str, nn.Module] = {
        "ours": make_ours(name),
        "ours, cosine": make_ours(name, score="cosine"),
        "ViT": make_vit(name),
    }
    if not compiled:
        counts = (f"{key} {sum(p.numel() for p in model.parameters()):,}" for key, model in models.items())
        report.note(f"Parameters, {name}: {', '.join(counts)}.")
    size, device = SIZES[name]["image_size"], settings.device
    images = torch.rand(batch_size, 3, size, size, device=device)
    labels = torch.randint(NUM_CLASSES, (batch_size,), device=device)
    models = {key: model.to(device) for key, model in models.items()}
    forwards = {key: torch.compile(model) if compiled else model for key, model in models.items()}

    def loss(key: str) -> Callable[[], Tensor]:
        return lambda: F.cross_entropy(logits(forwards[key](images)).float(), labels)

    @torch.inference_mode()
    def predict(model: nn.Module) -> Tensor:
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            return logits(model(images))

    rounds, suffix = settings.pick(tiny=1, cpu=5, gpu=11), ", compiled" if compiled else ""
    steps = {key: training_step(model.train(), loss(key), device) for key, model in models.items()}
    add(f"training, {name}", suffix, measure(steps, rounds, device), batch_size, report)
    if not compiled:
        functions = {key: partial(predict, model.eval()) for key, model in models.items()}
        add(f"inference, {name}", suffix, measure(functions, rounds, device), batch_size, report)


def add(name: str, suffix: str, seconds: dict[str, Samples], batch_size: int, report: Report) -> None:
    """Add the ratios of both of our models to ViT, and that of cosine to dot."""
    rates = {key: samples.rate(batch_size) for key, samples in seconds.items()}
    for ours, theirs in (("ours", "ViT"), ("ours, cosine", "ViT"), ("ours, cosine", "ours")):
        both = (ours + suffix, rates[ours]), (theirs + suffix, rates[theirs])
        report.compare(name, *both, unit="images/s")


def make_ours(name: str, score: str = "dot") -> ImageClassifier:
    """Our model."""
    torch.manual_seed(0)
    config = ImageClassifierConfig(**SIZES[name], channels=3, num_classes=NUM_CLASSES, mlp_ratio=4.0, score=score)
    return ImageClassifier(config)


def make_vit(name: str) -> nn.Module:
    """ViT of transformers."""
    from transformers import ViTConfig, ViTForImageClassification

    size = SIZES[name]
    config = ViTConfig(
        hidden_size=size["embed_dim"],
        num_hidden_layers=size["depth"],
        num_attention_heads=size["num_heads"],
        intermediate_size=4 * size["embed_dim"],
        image_size=size["image_size"],
        patch_size=size["patch_size"],
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=NUM_CLASSES,
        attn_implementation="sdpa",
    )
    torch.manual_seed(0)
    return ViTForImageClassification(config)


def logits(output: Any) -> Tensor:
    """The logits of either model."""
    return output if isinstance(output, Tensor) else output.logits

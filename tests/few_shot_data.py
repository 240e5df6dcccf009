"""Small data sets with gray values that identify the class, and configs to train on them."""

import torch

from sightline.data.images.class_splits import ClassSplits
from sightline.data.images.datasets import ImageSet
from sightline.models.few_shot_config import FewShotConfig
from sightline.tasks.few_shot.config import EpisodeConfig, EvaluationConfig, FewShotTaskConfig
from sightline.training.config import TrainingConfig


def make_images(classes: int, per_class: int = 7, side: int = 16, prefix: str = "train") -> ImageSet:
    """Images with a gray value per class and noise; class names are in three groups."""
    random = torch.Generator().manual_seed(classes)
    labels = torch.arange(classes * per_class) % classes
    pixels = torch.randint(24, (classes * per_class, 1, side, side), generator=random)
    pixels = (pixels + (labels * 220 // classes)[:, None, None, None]).to(torch.uint8)
    return ImageSet(pixels, labels, tuple(f"{prefix}{i % 3}/{prefix} {i}" for i in range(classes)))


def make_splits(**changes: ImageSet | None) -> ClassSplits:
    splits = {"train": make_images(11), "validation": make_images(7, prefix="v"), "test": make_images(8, prefix="t")}
    return ClassSplits(**{**splits, **changes})


def make_config(**changes) -> FewShotTaskConfig:
    return FewShotTaskConfig(
        **{
            "episode": EpisodeConfig(way=5, shot=2, query=3),
            "evaluation": EvaluationConfig(
                settings=("3w1s", "5w2s"), query=3, episodes=13, selection_setting="3w1s", selection_episodes=5
            ),
            "model": FewShotConfig(backbone_channels=(4, 4, 4, 8), num_heads=2),
            "training": TrainingConfig(batch_size=4, steps=4),
            **changes,
        }
    )

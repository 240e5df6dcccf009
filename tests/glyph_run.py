"""A few-shot run that is trained on drawn alphabets for a few seconds, and characters it was not trained on."""

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F

from sightline import config
from sightline.data.episodes import sample_episodes
from sightline.data.images import glyphs
from sightline.files import write_bytes
from sightline.models.few_shot import FewShot
from sightline.models.few_shot_config import FewShotConfig
from sightline.tasks.few_shot.evaluate import episode_classes
from sightline.weights import to_bytes

SIZE, DRAWERS, CHARACTERS = 28, 10, 12
MODEL_CONFIG = FewShotConfig(image_size=SIZE, channels=1, backbone_channels=(8, 16, 24, 32), num_heads=4)


@dataclass(frozen=True)
class RunConfig:
    """The keys of a run's config that a classifier reads."""

    model: FewShotConfig
    task: str = "few_shot"


def train(folder: Path, steps: int = 90) -> Path:
    """Train on episodes of 8 characters from six alphabets and write a run."""
    torch.manual_seed(0)
    images = glyphs.draw_alphabets(alphabets=6, characters=CHARACTERS, drawers=DRAWERS)
    classes = episode_classes(images)
    model = FewShot(MODEL_CONFIG)
    pixels = images.pixels.float() / 255
    model.set_normalization(pixels.mean((0, 2, 3)), pixels.std((0, 2, 3)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    for step in range(steps):
        shot = 1 + step % 2
        episodes = sample_episodes(classes, episodes=1, way=8, shot=shot, query=2, seed=0, step=step)
        logits, _ = model(pixels[torch.cat((episodes.support, episodes.query), 1)], way=8, shot=shot)
        optimizer.zero_grad()
        F.cross_entropy(logits.flatten(0, 1), episodes.query_labels.flatten()).backward()
        optimizer.step()
    write_bytes(folder / "config.yaml", config.dump(RunConfig(model.config)).encode())
    write_bytes(folder / "model.safetensors", to_bytes(model.state_dict()))
    return folder


def characters(count: int, images: int = DRAWERS) -> dict[str, list[torch.Tensor]]:
    """Images of characters from alphabets that were not trained on, by class name."""
    drawn = glyphs.draw_alphabets(alphabets=8, characters=CHARACTERS, drawers=DRAWERS)
    pixels = drawn.pixels.unflatten(0, (-1, DRAWERS))[6 * CHARACTERS :]
    names = drawn.classes[6 * CHARACTERS :]
    return {names[i]: list(pixels[i, :images]) for i in range(count)}

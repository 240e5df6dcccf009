"""A few-shot model that has looked at drawn alphabets for some seconds, as a run leaves it, and characters it has not
seen."""

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F

from sightline import config
from sightline.data.episodes import ClassIndex, sample_episodes
from sightline.data.images.glyphs import draw_alphabets
from sightline.files import atomic_write
from sightline.models.few_shot import FewShot, FewShotConfig
from sightline.weights import to_bytes

SIZE, DRAWERS, CHARACTERS = 28, 10, 12
FORM = FewShotConfig(image_size=SIZE, channels=1, backbone_channels=(8, 16, 24, 32), num_heads=4)


@dataclass(frozen=True)
class Recipe:
    """As much of a run's as a classifier reads."""

    model: FewShotConfig
    task: str = "few_shot"


def train(folder: Path, steps: int = 90) -> Path:
    """Episodes of 8 characters of six alphabets."""
    torch.manual_seed(0)
    images = draw_alphabets(alphabets=6, characters=CHARACTERS, drawers=DRAWERS)
    classes = ClassIndex.from_labels(images.labels, images.classes)
    model = FewShot(FORM)
    pixels = images.pixels.float() / 255
    model.set_normalization(pixels.mean((0, 2, 3)), pixels.std((0, 2, 3)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    for step in range(steps):
        some = sample_episodes(classes, episodes=1, way=8, shot=1 + step % 2, query=2, seed=0, step=step)
        shown = pixels[torch.cat((some.support, some.query), 1)]
        logits, _ = model(shown, way=8, shot=1 + step % 2)
        optimizer.zero_grad()
        F.cross_entropy(logits.flatten(0, 1), some.query_labels.flatten()).backward()
        optimizer.step()
    (folder / "config.yaml").write_text(config.dump(Recipe(model.config)))
    with atomic_write(folder / "model.safetensors") as part:
        part.write_bytes(to_bytes(model.state_dict()))
    return folder


def characters(count: int, images: int = DRAWERS) -> dict[str, list[torch.Tensor]]:
    """So many characters of alphabets that were not learned from, each written so many times."""
    drawn = draw_alphabets(alphabets=8, characters=CHARACTERS, drawers=DRAWERS)
    pixels = drawn.pixels.unflatten(0, (-1, DRAWERS))[6 * CHARACTERS :]
    names = drawn.classes[6 * CHARACTERS :]
    return {names[i]: list(pixels[i, :images]) for i in range(count)}

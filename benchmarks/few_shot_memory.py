"""What a classifier of 1,000 classes with 5 images each costs on a CPU: peak memory, and seconds to fit and to predict.

python benchmarks/few_shot_memory.py [--classes 1000] [--shot 5] [--model RUN]

Drawn glyphs, at 28 pixels. Without a model the weights are as they start, which cost what trained ones do.
"""

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from sightline import FewShotClassifier
from sightline.data.images.glyphs import draw_alphabets
from sightline.models.few_shot import FewShot, FewShotConfig

LIMIT = 2 << 30
"""Bytes that all of it may take."""


def peak() -> int:
    """The most memory this process has had, in bytes."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most << 10


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Print how long it took, and the peak so far."""
    start = time.perf_counter()
    yield
    print(f"{what:34} {time.perf_counter() - start:7.2f} s   peak {peak() / 2**20:7,.0f} MiB")


def untrained() -> FewShotClassifier:
    """The default model with weights that have learned nothing but are not nothing."""
    torch.manual_seed(0)
    model = FewShot(FewShotConfig(image_size=28, channels=1))
    for parameter in model.head.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return FewShotClassifier(model)


def main() -> None:
    """Fit, predict one and 75, save, load, add and remove."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--shot", type=int, default=5)
    parser.add_argument("--model", default=None)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{options.classes} classes, {options.shot} images each, one thread, torch {torch.__version__}")
    with timed("import"):
        classifier = untrained() if options.model is None else FewShotClassifier.pretrained(options.model)
    with timed("draw glyphs"):
        images = draw_alphabets(alphabets=-(-options.classes // 25), characters=25, drawers=options.shot + 1)
    pixels = images.pixels.unflatten(0, (-1, options.shot + 1))[: options.classes]
    examples = {name: list(own[: options.shot]) for name, own in zip(images.classes, pixels, strict=False)}
    asked = list(pixels[:75, options.shot])
    with timed("fit"):
        classifier.fit(examples)
    with timed("predict 1"):
        alone = classifier.predict(asked[0])
    with timed(f"predict {len(asked)}"):
        together = classifier.predict(asked)
    assert all(abs(share - together[0].scores[name]) < 1e-5 for name, share in alone.scores.items())
    with timed("explain"):
        alone.explain()
    with timed("estimate"):
        classifier.estimate()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "glyphs.sightline"
        with timed("save"):
            classifier.save(path)
        with timed(f"load {path.stat().st_size / 2**20:.1f} MiB"):
            loaded = FewShotClassifier.load(path)
    assert loaded.predict(asked) == together
    with timed("remove a class and predict"):
        classifier.remove(images.classes[0]).predict(asked[0])
    print(f"peak {peak() / 2**30:.2f} GiB of {LIMIT / 2**30:.0f}: {'ok' if peak() < LIMIT else 'too much'}")
    sys.exit(peak() >= LIMIT)


if __name__ == "__main__":
    main()

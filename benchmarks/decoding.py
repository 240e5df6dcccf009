"""Decoding with the cache and without it, and beam search against Hugging Face's Marian, in one run, as ratios.

    python benchmarks/decoding.py [--size small] [--threads 2]     on the CPU
    python benchmarks/decoding.py --device cuda                    on a GPU

The first table writes 256 tokens greedily. `without` asks the whole model again at every step; `decoder alone` is
kinder: it reads the source once and makes logits of the last place only. The second decodes a batch with 5 beams: both
models are of one size, have random weights and are made to end each sentence after the same number of tokens, drawn
between 8 and `--longest`. Above 1 is faster than Marian.
"""

import argparse

import torch
from clock import machine, medians
from marian import BEGIN, END, PAD, pair
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

from sightline.attention.masks import Padding
from sightline.decoding import beam_search, greedy
from sightline.models.translator import Memory, Translator

WORDS, TOKENS, BEAMS = 8000, 256, 5


class Ending:
    """Our model, made to end every sentence at its length; its state is the model's, the lengths, and the place."""

    training = False

    def __init__(self, model: Translator, lengths: Tensor):
        self.model, self.lengths = model, lengths

    def start(self, memory: Memory):
        return self.model.start(memory), self.lengths, 0

    def step(self, state, tokens: Tensor):
        inner, lengths, place = state
        logits, inner = self.model.step(inner, tokens)
        return end_at(logits, lengths <= place), (inner, lengths, place + 1)

    def reorder(self, state, rows: Tensor, *, same_source: bool = False):
        inner, lengths, place = state
        return self.model.reorder(inner, rows, same_source=same_source), lengths[rows], place


class MarianEnding(LogitsProcessor):
    """The same for Marian, whose rows are the beams of one sentence after the other."""

    def __init__(self, lengths: Tensor):
        self.lengths = lengths.repeat_interleave(BEAMS)

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        return end_at(scores, self.lengths <= ids.shape[1] - 1)


def end_at(logits: Tensor, now: Tensor) -> Tensor:
    """The end where it is due, and nowhere else: logits (R, V), now (R,)"""
    logits[:, END] = torch.where(now, 1e4, -1e4)
    return logits


@torch.inference_mode()
def without_cache(model: Translator, source: Tensor, real: Tensor, *, kind: bool) -> Tensor:
    """Greedy again, every step from the beginning."""
    target = torch.full((len(source), 1), BEGIN, device=source.device)
    memory = model.encode(source, real)
    for _ in range(TOKENS):
        if kind:
            x = model.target_positions(model.words.read_target(target))
            logits = model.words.write(model.decoder(x, memory.states, cross_mask=Padding(memory.real))[:, -1])
        else:
            logits = model(source, real, target)[:, -1]
        logits[:, [PAD, BEGIN, END]] = float("-inf")
        target = torch.cat((target, logits.argmax(-1, keepdim=True)), 1)
    return target


def with_cache(model: Translator, source: Tensor, real: Tensor) -> Tensor:
    """As a user decodes."""
    found = greedy(model, model.encode(source, real), max_tokens=TOKENS, suppress_tokens=(PAD, BEGIN, END))
    return torch.tensor([ones[0].tokens for ones in found])


def caches(size: str, device: str, rounds: int) -> None:
    """The first table."""
    model = pair(size, WORDS, device)[0].eval()
    print(f"\n{f'{TOKENS} tokens, {size}':<24} {'cache s':>8} {'without':>8} {'decoder alone':>14}   times as long")
    for sentences in (1, 8):
        source = torch.randint(4, WORDS, (sentences, 24), device=device)
        real = torch.arange(24, device=device) < torch.tensor([[24], *[[18]] * (sentences - 1)], device=device)
        same = with_cache(model, source, real) == without_cache(model, source, real, kind=True)[:, 1:].cpu()
        times = medians(
            {
                "cache": lambda source=source, real=real: with_cache(model, source, real),
                "without": lambda source=source, real=real: without_cache(model, source, real, kind=False),
                "alone": lambda source=source, real=real: without_cache(model, source, real, kind=True),
            },
            rounds,
            "cpu",  # every step waits for its token, so a plain clock tells the time on a GPU as well
        )
        base = times["cache"]
        ratios = f"{times['without'] / base:8.1f} {times['alone'] / base:14.1f}"
        print(f"{f'{sentences} sentences':<24} {base:8.2f} {ratios}   tokens alike {same.float().mean():.3f}")


def beams(size: str, device: str, rounds: int, sentences: int, longest: int) -> None:
    """The second table."""
    ours, theirs = (model.eval() for model in pair(size, WORDS, device))
    lengths = torch.randint(8, longest + 1, (sentences,), device=device)
    source = torch.randint(4, WORDS, (sentences, longest), device=device)
    real = torch.arange(longest, device=device) < lengths[:, None]

    def we() -> int:
        found = beam_search(Ending(ours, lengths), ours.encode(source, real), num_beams=BEAMS, max_tokens=longest + 1)
        return sum(len(ones[0].tokens) for ones in found)

    def they() -> int:
        found = theirs.generate(
            input_ids=source,
            attention_mask=real.long(),
            num_beams=BEAMS,
            max_new_tokens=longest + 1,
            do_sample=False,
            early_stopping=True,
            logits_processor=LogitsProcessorList([MarianEnding(lengths)]),
        )
        return int((found[:, 1:] > END).sum())

    with torch.inference_mode():
        counts = we(), they()
        times = medians({"ours": we, "theirs": they}, rounds, "cpu")
    print(f"\n{f'{BEAMS} beams, {size}':<24} {'ours s':>8} {'Marian s':>8} {'ratio':>6}")
    row = f"{times['ours']:8.2f} {times['theirs']:8.2f} {times['theirs'] / times['ours']:6.2f}"
    print(f"{f'{sentences} sentences':<24} {row}   tokens {counts[0]}, {counts[1]}")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--size", choices=("tiny", "small", "base"), default="tiny")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--sentences", type=int, default=32)
    parser.add_argument("--longest", type=int, default=32)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    torch.manual_seed(0)
    print(f"{machine(asked.device)}, float32, medians of {asked.rounds} rounds in turns")
    beams(asked.size, asked.device, asked.rounds, asked.sentences, asked.longest)
    caches(asked.size, asked.device, asked.rounds)


if __name__ == "__main__":
    main()

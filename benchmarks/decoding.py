"""Speed of decoding: with and without the key-value cache, and beam search against Marian of Hugging Face.

    python benchmarks/decoding.py [--size small] [--threads 2]     on the CPU
    python benchmarks/decoding.py --device cuda                    on a GPU

The first table is beam search with 5 beams. Both models have the same size and random weights, and end each sentence
after the same number of tokens, drawn between 8 and `--max-length`. A ratio above 1 means faster than Marian. The
second table decodes 256 tokens greedily. `no cache` runs the whole model at every step; `decoder only` encodes the
source once and computes logits at the last position only.
"""

import argparse

import torch
from clock import machine, medians
from marian import BOS, EOS, PAD, model_pair
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

from sightline.decoding import DecodingOptions, beam_search, greedy
from sightline.models.encoders import EncoderOutput
from sightline.models.seq2seq import Seq2Seq
from sightline.models.text_decoder import TextDecoder

VOCAB_SIZE, NUM_TOKENS, NUM_BEAMS = 8000, 256, 5


class FixedLengthDecoder:
    """A text decoder that ends every sentence at a given length. Its state also has the lengths and the position."""

    training = False

    def __init__(self, decoder: TextDecoder, lengths: Tensor):
        self.decoder, self.lengths = decoder, lengths

    def start(self, encoder_output: EncoderOutput):
        return self.decoder.start(encoder_output), self.lengths, 0

    def step(self, state, tokens: Tensor):
        inner, lengths, position = state
        logits, inner = self.decoder.step(inner, tokens)
        return force_end(logits, lengths <= position), (inner, lengths, position + 1)

    def reorder(self, state, indices: Tensor, *, same_source: bool = False):
        inner, lengths, position = state
        return self.decoder.reorder(inner, indices, same_source=same_source), lengths[indices], position


class FixedLengthProcessor(LogitsProcessor):
    """The same for Marian, whose rows are the beams of one sentence after another."""

    def __init__(self, lengths: Tensor):
        self.lengths = lengths.repeat_interleave(NUM_BEAMS)

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        return force_end(scores, self.lengths <= ids.shape[1] - 1)


def force_end(logits: Tensor, is_end: Tensor) -> Tensor:
    """Make EOS certain in the rows that end and impossible in all others: logits (R, V), is_end (R,)"""
    logits[:, EOS] = torch.where(is_end, 1e4, -1e4)
    return logits


@torch.inference_mode()
def decode_without_cache(model: Seq2Seq, source: Tensor, attention_mask: Tensor, *, encode_once: bool) -> Tensor:
    """Greedy decoding that recomputes all positions at every step."""
    target = torch.full((len(source), 1), BOS, device=source.device)
    output = model.encode(source, attention_mask)
    for _ in range(NUM_TOKENS):
        if encode_once:
            logits = model.decoder.logits(model.decoder.decode(output, target)[:, -1])
        else:
            logits = model(source, attention_mask, target)[:, -1]
        logits[:, [PAD, BOS, EOS]] = float("-inf")
        target = torch.cat((target, logits.argmax(-1, keepdim=True)), 1)
    return target


def decode_with_cache(model: Seq2Seq, source: Tensor, attention_mask: Tensor) -> Tensor:
    """Greedy decoding with the cache."""
    output = model.encode(source, attention_mask)
    options = DecodingOptions(bos=BOS, eos=EOS, suppress_tokens=(PAD, BOS, EOS), max_tokens=NUM_TOKENS)
    hypotheses = greedy(model.decoder, output, options)
    return torch.tensor([best.tokens for best, *_ in hypotheses])


def compare_caches(size: str, device: str, rounds: int) -> None:
    """Print the second table."""
    model = model_pair(size, VOCAB_SIZE, device)[0].eval()
    print(f"\n{f'{NUM_TOKENS} tokens, {size}':<24} {'cache s':>8} {'no cache':>8} {'decoder only':>14}   times as long")
    for sentences in (1, 8):
        source = torch.randint(4, VOCAB_SIZE, (sentences, 24), device=device)
        mask = torch.arange(24, device=device) < torch.tensor([[24], *[[18]] * (sentences - 1)], device=device)
        expected = decode_without_cache(model, source, mask, encode_once=True)[:, 1:].cpu()
        agreement = (decode_with_cache(model, source, mask) == expected).float().mean()
        times = medians(
            {
                "cache": lambda s=source, m=mask: decode_with_cache(model, s, m),
                "no cache": lambda s=source, m=mask: decode_without_cache(model, s, m, encode_once=False),
                "decoder only": lambda s=source, m=mask: decode_without_cache(model, s, m, encode_once=True),
            },
            rounds,
            "cpu",  # every step waits for its token, so wall-clock time is right on a GPU too
        )
        base = times["cache"]
        ratios = f"{times['no cache'] / base:8.1f} {times['decoder only'] / base:14.1f}"
        print(f"{f'{sentences} sentences':<24} {base:8.2f} {ratios}   equal tokens {agreement:.3f}")


def compare_beam_search(size: str, device: str, rounds: int, sentences: int, max_length: int) -> None:
    """Print the first table."""
    model, marian = (model.eval() for model in model_pair(size, VOCAB_SIZE, device))
    lengths = torch.randint(8, max_length + 1, (sentences,), device=device)
    source = torch.randint(4, VOCAB_SIZE, (sentences, max_length), device=device)
    mask = torch.arange(max_length, device=device) < lengths[:, None]
    options = DecodingOptions(bos=BOS, eos=EOS, suppress_tokens=(PAD, BOS), max_tokens=max_length + 1)

    def run_model() -> int:
        decoder, output = FixedLengthDecoder(model.decoder, lengths), model.encode(source, mask)
        hypotheses = beam_search(decoder, output, options, num_beams=NUM_BEAMS)
        return sum(len(best.tokens) for best, *_ in hypotheses)

    def run_marian() -> int:
        ids = marian.generate(
            input_ids=source,
            attention_mask=mask.long(),
            num_beams=NUM_BEAMS,
            max_new_tokens=max_length + 1,
            do_sample=False,
            early_stopping=True,
            logits_processor=LogitsProcessorList([FixedLengthProcessor(lengths)]),
        )
        return int((ids[:, 1:] > EOS).sum())

    with torch.inference_mode():
        counts = run_model(), run_marian()
        times = medians({"ours": run_model, "Marian": run_marian}, rounds, "cpu")
    print(f"\n{f'{NUM_BEAMS} beams, {size}':<24} {'ours s':>8} {'Marian s':>8} {'ratio':>6}")
    row = f"{times['ours']:8.2f} {times['Marian']:8.2f} {times['Marian'] / times['ours']:6.2f}"
    print(f"{f'{sentences} sentences':<24} {row}   tokens {counts[0]}, {counts[1]}")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--size", choices=("tiny", "small", "base"), default="tiny")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--sentences", type=int, default=32)
    parser.add_argument("--max-length", type=int, default=32)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    print(f"{machine(args.device)}, float32, medians of {args.rounds} interleaved rounds")
    compare_beam_search(args.size, args.device, args.rounds, args.sentences, args.max_length)
    compare_caches(args.size, args.device, args.rounds)


if __name__ == "__main__":
    main()

"""Beam search against Marian of Hugging Face transformers, and greedy decoding with the key-value cache against
recomputing all tokens.

Both models have the same size and random weights, and end each sentence after the same number of tokens. Without the
cache, `whole model` runs everything at every step; `decoder only` encodes the source once and computes logits at the
last position only. Decoding is measured in float32.
"""

from functools import partial

import torch
from torch import Tensor

from sightline.decoding import DecodingOptions, beam_search, greedy
from sightline.models.encoders import EncoderOutput
from sightline.models.seq2seq import Seq2Seq
from sightline.models.text_decoder import TextDecoder

from .clock import measure
from .record import Report
from .suite import Settings

VOCAB_SIZE, NUM_BEAMS = 8000, 5
PAD, BOS, EOS = 0, 1, 2


def run(settings: Settings, report: Report) -> None:
    """Compare all sizes."""
    if not settings.has_peer("transformers", report):
        return
    for size in settings.pick(tiny=("tiny",), cpu=("tiny", "small"), gpu=("tiny", "small")):
        compare_beam_search(size, settings, report)
    for size in settings.pick(tiny=("tiny",), cpu=("tiny",), gpu=("tiny", "small")):
        compare_caches(size, settings, report)


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


def marian_processor(lengths: Tensor):
    """The same for Marian, whose rows are the beams of one sentence after another."""
    from transformers import LogitsProcessor, LogitsProcessorList

    class FixedLengthProcessor(LogitsProcessor):
        def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
            return force_end(scores, row_lengths <= ids.shape[1] - 1)

    row_lengths = lengths.repeat_interleave(NUM_BEAMS)
    return LogitsProcessorList([FixedLengthProcessor()])


def force_end(logits: Tensor, is_end: Tensor) -> Tensor:
    """Make EOS certain in the rows that end and impossible in all others: logits (R, V), is_end (R,)"""
    logits[:, EOS] = torch.where(is_end, 1e4, -1e4)
    return logits


@torch.inference_mode()
def decode_without_cache(
    model: Seq2Seq, source: Tensor, attention_mask: Tensor, num_tokens: int, *, encode_once: bool
) -> Tensor:
    """Greedy decoding that recomputes all positions at every step."""
    target = torch.full((len(source), 1), BOS, device=source.device)
    output = model.encode(source, attention_mask)
    for _ in range(num_tokens):
        if encode_once:
            logits = model.decoder.logits(model.decoder.decode(output, target)[:, -1])
        else:
            logits = model(source, attention_mask, target)[:, -1]
        logits[:, [PAD, BOS, EOS]] = float("-inf")
        target = torch.cat((target, logits.argmax(-1, keepdim=True)), 1)
    return target


def decode_with_cache(model: Seq2Seq, source: Tensor, attention_mask: Tensor, num_tokens: int) -> Tensor:
    """Greedy decoding with the cache."""
    output = model.encode(source, attention_mask)
    options = DecodingOptions(bos=BOS, eos=EOS, suppress_tokens=(PAD, BOS, EOS), max_tokens=num_tokens)
    hypotheses = greedy(model.decoder, output, options)
    return torch.tensor([best.tokens for best, *_ in hypotheses])


def compare_caches(size: str, settings: Settings, report: Report) -> None:
    """Greedy decoding with and without the cache."""
    from .marian import model_pair

    num_tokens, device = settings.pick(tiny=4, cpu=256, gpu=256), settings.device
    model = model_pair(size, VOCAB_SIZE, device)[0].eval()
    for sentences in (1, 8):
        source = torch.randint(4, VOCAB_SIZE, (sentences, 24), device=device)
        mask = torch.arange(24, device=device) < torch.tensor([[24], *[[18]] * (sentences - 1)], device=device)
        inputs = (model, source, mask, num_tokens)
        expected = decode_without_cache(*inputs, encode_once=True)[:, 1:].cpu()
        agreement = float((decode_with_cache(*inputs) == expected).float().mean())
        if agreement < 1:
            report.note(f"{agreement:.1%} of the tokens with and without the cache are equal.")
        functions = {
            "cache": partial(decode_with_cache, *inputs),
            "whole model": partial(decode_without_cache, *inputs, encode_once=False),
            "decoder only": partial(decode_without_cache, *inputs, encode_once=True),
        }
        # every step waits for its token, so the clock of the CPU is right on a GPU too
        seconds = measure(functions, settings.pick(tiny=1, cpu=3, gpu=5), "cpu")
        rates = {name: samples.rate(sentences * num_tokens) for name, samples in seconds.items()}
        for theirs in ("whole model", "decoder only"):
            both = ("with the cache", rates["cache"]), (f"without, {theirs}", rates[theirs])
            report.compare(f"{size}, {num_tokens} tokens of {sentences}", *both, unit="tokens/s")


def compare_beam_search(size: str, settings: Settings, report: Report) -> None:
    """Beam search of both models."""
    from .marian import model_pair

    device, (sentences, max_length) = settings.device, settings.pick(tiny=(2, 8), cpu=(32, 32), gpu=(32, 32))
    model, marian = (model.eval() for model in model_pair(size, VOCAB_SIZE, device))
    lengths = torch.randint(max_length // 4, max_length + 1, (sentences,), device=device)
    source = torch.randint(4, VOCAB_SIZE, (sentences, max_length), device=device)
    mask = torch.arange(max_length, device=device) < lengths[:, None]
    options = DecodingOptions(bos=BOS, eos=EOS, suppress_tokens=(PAD, BOS), max_tokens=max_length + 1)
    processor = marian_processor(lengths)

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
            logits_processor=processor,
        )
        return int((ids[:, 1:] > EOS).sum())

    with torch.inference_mode():
        count, marian_count = run_model(), run_marian()
        if count != marian_count:
            report.note(f"{size}: ours generates {count} tokens, Marian {marian_count}.")
        seconds = measure({"ours": run_model, "Marian": run_marian}, settings.pick(tiny=1, cpu=5, gpu=7), "cpu")
    both = ("ours", seconds["ours"].rate(count)), ("Marian", seconds["Marian"].rate(marian_count))
    report.compare(f"{size}, {NUM_BEAMS} beams, {sentences} sentences", *both, unit="tokens/s")

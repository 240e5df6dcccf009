"""Self-critical sequence training: REINFORCE on CIDEr-D with the reward of the greedy caption as baseline.

BLEU-4 of the sentence can be part of the reward. With several samples of an image, the mean reward of the others is the
baseline of each. Captions are sampled by the model in evaluation mode. Their log-likelihood is computed without
dropout, but in training mode otherwise: with the statistics of the batch, and without averaging over mirror images.

Shapes: B images, K samples of each, T target tokens.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from ...attention import MultiHeadAttention
from ...data.text.tokenizers import Tokenizer
from ...decoding import DecodingOptions, Hypothesis, decoder_inputs, greedy, sample
from ...kernels.cross_entropy import IGNORE_INDEX
from .metrics import CiderD, CiderVector, SentenceBleu

DROPOUT_RATES = {nn.Dropout: "p", nn.Dropout2d: "p", MultiHeadAttention: "dropout", nn.RNNBase: "dropout"}
"""Modules with dropout, and the attribute that is its rate."""


class SelfCritical:
    """The reward of captions, by the references of the training images, and the loss that raises it."""

    def __init__(
        self, references: Sequence[Sequence[str]], tokenizer: Tokenizer, max_tokens: int, bleu_weight: float = 0.0
    ):
        self.references, self.tokenizer, self.max_tokens = references, tokenizer, max_tokens
        self.bleu_weight = bleu_weight
        self._vectors: dict[int, list[CiderVector]] = {}
        self._bleu: dict[int, SentenceBleu] = {}

    def loss(self, model: nn.Module, batch: Any, num_samples: int) -> Tensor:
        """What a part of a batch adds to the mean of -(reward - baseline) * log p over all samples of the batch."""
        captioner: Any = getattr(model, "module", model)  # of a process group
        special = self.tokenizer.special_tokens
        ids = {"bos": special.id("bos"), "eos": special.id("eos")}
        options = DecodingOptions(**ids, suppress_tokens=special.suppressed_ids, max_tokens=self.max_tokens)
        was_training = captioner.training
        captioner.eval()
        with torch.inference_mode():
            output = captioner.encode(batch.images)
            generator = torch.Generator(output.device).manual_seed(batch.seed)
            sampled = sample(captioner.decoder, output, options, num_samples=num_samples, generator=generator)
            baselines = [found[0] for found in greedy(captioner.decoder, output, options)] if num_samples == 1 else []
        captioner.train(was_training)
        owners = batch.image_indices.tolist()
        rewards = torch.tensor(
            [[self.reward(owner, h) for h in found] for owner, found in zip(owners, sampled, strict=True)]
        )
        if num_samples == 1:
            baseline = torch.tensor([[self.reward(owner, h)] for owner, h in zip(owners, baselines, strict=True)])
        else:
            baseline = (rewards.sum(1, keepdim=True) - rewards) / (num_samples - 1)
        advantage = (rewards - baseline).flatten().to(batch.target.device)
        tokens, labels = self._sequences([h for found in sampled for h in found], batch.target.device)
        with without_dropout(captioner):
            logits = model(batch.images, tokens)
        log_probs = -F.cross_entropy(logits.mT.float(), labels, ignore_index=IGNORE_INDEX, reduction="none")
        has_captions = (batch.labels != IGNORE_INDEX).any()  # False for an empty part
        return -(advantage * log_probs.sum(1)).sum() * has_captions / (batch.num_captions * num_samples)

    def reward(self, image: int, hypothesis: Hypothesis) -> float:
        """CIDEr-D of a caption of a training image, plus `bleu_weight` times its BLEU-4."""
        if image not in self._vectors:
            self._vectors[image] = [self._cider.vector(text) for text in self.references[image]]
        text = self.tokenizer.decode(hypothesis.tokens)
        cider = self._cider.score(text, self._vectors[image])
        if not self.bleu_weight:
            return cider
        if image not in self._bleu:
            self._bleu[image] = SentenceBleu(self.references[image])
        return cider + self.bleu_weight * self._bleu[image].score(text)

    @cached_property
    def _cider(self) -> CiderD:
        return CiderD(self.references)

    def _sequences(self, hypotheses: Sequence[Hypothesis], device: torch.device) -> tuple[Tensor, Tensor]:
        """Decoder inputs and labels of captions: int64 (B * K, T) each, `IGNORE_INDEX` for padding."""
        special = self.tokenizer.special_tokens
        ends = [[special.id("eos")] if h.finished else [] for h in hypotheses]
        rows = [torch.tensor([*h.tokens, *end]) for h, end in zip(hypotheses, ends, strict=True)]
        labels = pad_sequence(rows, batch_first=True, padding_value=IGNORE_INDEX)
        inputs = decoder_inputs(hypotheses, bos=special.id("bos"), pad=special.id("pad"))
        return inputs[:, : labels.shape[1]].to(device), labels.to(device)


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """No dropout in any module; all else is as in training."""
    pairs = (
        (module, name) for module in model.modules() for kind, name in DROPOUT_RATES.items() if isinstance(module, kind)
    )
    rates = [(module, name, getattr(module, name)) for module, name in pairs]
    for module, name, _ in rates:
        setattr(module, name, 0.0)
    try:
        yield
    finally:
        for module, name, rate in rates:
            setattr(module, name, rate)

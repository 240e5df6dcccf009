"""Training of an image captioner: its data, batches, loss and validation metrics."""

from collections.abc import Generator
from functools import cache, cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ... import seeds
from ...data.captions.datasets import CaptionSplits
from ...data.images import augmentation
from ...data.images.augmentation import AugmentConfig
from ...data.text.batching import LengthBuckets, PackedSequences, padded_length
from ...data.text.tokenizers import train_tokenizer
from ...errors import check
from ...kernels.cross_entropy import IGNORE_INDEX
from ...layers.efficientnet import EFFICIENTNETS
from ...models.captioner import Captioner
from ...models.image_encoders import EfficientNetEmbedder
from ...predictor import Progress
from ...training.task import BatchSlice, Task
from ..text_data import TOKENIZER, earlier_tokenizer
from .config import CaptioningTaskConfig
from .evaluate import generate
from .inputs import ImageInputs
from .metrics import CiderD, bleu, equals_one
from .self_critical import SelfCritical


class CaptionBatch(NamedTuple):
    """A part of a batch of captions, and what the whole batch has."""

    images: Tensor
    """As the model takes them, one for each caption."""
    target: Tensor
    """int64 (B, T), decoder inputs that start with BOS."""
    labels: Tensor
    """int64 (B, T), next tokens that end in EOS, `IGNORE_INDEX` for padding."""
    num_labels: int
    """Labels of the whole batch."""
    num_captions: int
    """Captions of the whole batch."""
    image_indices: Tensor
    """(B,), the images in the training set."""
    is_self_critical: bool
    seed: int


class CaptioningTask(Task):
    """An image captioner and the captioned images it is trained on."""

    monitor, higher_is_better, unit = "cider", True, "tokens"

    def __init__(self, config: CaptioningTaskConfig, data: CaptionSplits, progress: Progress | None = None):
        texts = [text for texts in data.train.captions for text in texts]
        self.tokenizer = earlier_tokenizer(config) or train_tokenizer(config.tokenizer, texts)
        inputs = ImageInputs.for_data(config, data, len(self.tokenizer))
        self.config = inputs.config
        self.model = Captioner(self.config.model)
        if config.model.backbone in EFFICIENTNETS:
            pretrained = EfficientNetEmbedder(config.data.weights, config.model.backbone).model
            assert self.model.backbone is not None
            self.model.backbone.load_state_dict(pretrained.state_dict())
        self.data, self.device = data, torch.device("cpu")
        self._encode_captions()
        self.images = inputs.load_training(data.train, progress)
        self.validation = None if data.validation is None else inputs.load(data.validation, progress)
        self.data_fingerprint = data_fingerprint(data)
        self.self_critical = SelfCritical(
            data.train.captions, self.tokenizer, config.data.max_tokens, config.self_critical_bleu_weight
        )
        self._buckets = cache(lambda batch_size: LengthBuckets(self._shapes, batch_size))

    def _encode_captions(self) -> None:
        """Token ids of all captions that are not too long, and the image of each."""
        captions, special = self.data.train.captions, self.tokenizer.special_tokens
        bos, eos, pad = (special.id(name) for name in ("bos", "eos", "pad"))
        pairs = [(i, text) for i, texts in enumerate(captions) for text in texts]
        rows = list(zip((i for i, _ in pairs), self.tokenizer.encode([text for _, text in pairs]), strict=True))
        max_tokens = self.config.data.max_tokens
        kept = [(i, ids) for i, ids in rows if 0 < len(ids) < max_tokens]
        check(kept, f"data must have a caption of less than {max_tokens} tokens, data.max_tokens, got none")
        if num_long := sum(len(ids) >= max_tokens for _, ids in rows):
            note = f"{num_long:,} of {len(rows):,} captions have {max_tokens} tokens or more and are left out"
            self.notes = (f"{note}; see data.max_tokens and model.max_positions",)
        self.captions = PackedSequences([[bos, *ids, eos] for _, ids in kept], pad)
        self.owners = torch.tensor([i for i, _ in kept])
        self._shapes = padded_length(self.captions.lengths - 1)[:, None]

    @staticmethod
    def load_data(config: CaptioningTaskConfig, progress: Progress | None = None) -> CaptionSplits:
        """Read the config's captions."""
        return config.data.load(config.seed)

    def files(self) -> dict[str, bytes]:
        return {TOKENIZER: self.tokenizer.to_json().encode()}

    def steps_per_epoch(self, batch_size: int) -> int:
        return len(self._buckets(batch_size))

    def to(self, device: torch.device) -> None:
        self.device = device
        self.model.to(device)
        self.captions = self.captions.to(device)
        self.owners, self.images = self.owners.to(device), self.images.to(device)
        self.validation = None if self.validation is None else self.validation.to(device)

    def batches(
        self, first_step: int, batch_size: int, batch_slice: BatchSlice
    ) -> Generator[list[CaptionBatch], None, None]:
        steps = self._buckets(batch_size).steps(first_step, self.config.seed, self.device)
        for step, rows, indices, (length,) in steps:
            num_labels = int(self.captions.lengths[rows].sum()) - len(rows)  # without BOS
            slices = batch_slice.indices(len(rows))
            images = self._images(self.owners[indices], step)
            yield [self._micro_batch(indices, images, part, length, num_labels, step) for part in slices]

    def _images(self, owners: Tensor, step: int) -> Tensor:
        """The image of each caption of a batch: one of its augmented copies, or its augmented pixels."""
        random = seeds.make_generator(self.config.seed, seeds.AUGMENTATION, step, 1)
        copies = torch.from_numpy(random.integers(len(self.images), size=len(owners))).to(owners.device)
        images = self.images[copies, owners]
        augment = self.config.augment
        if self.model.backbone is None or augment == AugmentConfig():
            return images
        params = augmentation.sample_params(augment, len(images), seed=self.config.seed, step=step)
        return augmentation.augment_pixels(augment, images, params)

    def _micro_batch(
        self, indices: Tensor, images: Tensor, part: slice, length: int, num_labels: int, step: int
    ) -> CaptionBatch:
        """A part of a batch. An empty part gets one caption without labels, so all processes make the same passes."""
        has_captions = len(indices[part]) > 0
        rows = part if has_captions else slice(0, 1)
        ids, is_token = self.captions.take(indices[rows], length + 1)
        labels = ids[:, 1:].masked_fill(~is_token[:, 1:] | (not has_captions), IGNORE_INDEX)
        total = self.config.training.steps or 0
        is_self_critical = bool(total) and step >= total - self.config.self_critical_steps
        seed = seeds.derive_seed(self.config.seed, seeds.SAMPLING, step, rows.start)
        target, owners, counts = ids[:, :-1].contiguous(), self.owners[indices[rows]], (num_labels, len(indices))
        return CaptionBatch(images[rows], target, labels, *counts, owners, is_self_critical, seed)

    def loss(self, model: nn.Module, batch: CaptionBatch) -> Tensor:
        if batch.is_self_critical:
            return self.self_critical.loss(model, batch, self.config.self_critical_samples)
        smoothing = self.config.label_smoothing
        loss: Tensor = model(batch.images, batch.target, labels=batch.labels, label_smoothing=smoothing)
        return loss / batch.num_labels

    def evaluate(self, model: Any, batch_slice: BatchSlice) -> dict[str, Tensor]:
        """Sums of CIDEr-D, and the statistics of BLEU-4, decoded greedily."""
        if self.validation is None or self.data.validation is None:
            return {}
        references = self.data.validation.captions
        indices = list(range(batch_slice.rank, len(references), batch_slice.world_size))
        texts = generate(model, self.validation[indices], self.tokenizer, self.config.data.max_tokens)
        captions = [found[0].text for found in texts]
        own = [references[i] for i in indices]
        scores = [self._validation_cider.score(*pair) for pair in zip(captions, own, strict=True)]
        exact = [equals_one(*pair) for pair in zip(captions, own, strict=True)]
        bleu_4 = bleu(captions, own)[-1] if captions else 0.0
        values = {"cider": sum(scores), "bleu_4": bleu_4 * len(own), "exact": sum(exact), "images": len(own)}
        return {name: torch.tensor(float(x), dtype=torch.float64, device=self.device) for name, x in values.items()}

    @cached_property
    def _validation_cider(self) -> CiderD:
        assert self.data.validation is not None
        return CiderD(self.data.validation.captions)

    def metrics(self, sums: dict[str, Tensor]) -> dict[str, float]:
        """CIDEr-D, BLEU-4 (a mean over processes), and the share of captions that equal a reference."""
        if not sums:
            return {}
        count = sums["images"]
        return {name: float(sums[name] / count) for name in ("cider", "bleu_4", "exact")}


def data_fingerprint(data: CaptionSplits) -> dict[str, Any]:
    """Counts and digests of captioned images."""
    return {
        name: {"images": len(images), "captions": images.num_captions, "digest": images.digest()}
        for name, images in data.available.items()
    }

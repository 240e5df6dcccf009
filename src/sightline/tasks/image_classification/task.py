"""Training of an image classifier: its data, batches, loss and validation metrics."""

import itertools
import json
from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ... import seeds
from ...config import for_data
from ...data.images import augmentation
from ...data.images.datasets import ImageFiles, Images, Splits
from ...data.images.statistics import mean_and_std, sample_histogram
from ...data.images.streaming import stream
from ...errors import SightlineError
from ...files import digest
from ...metrics import classification_metrics, fit_calibration_scale
from ...models.image_classifier import ImageClassifier
from ...predictor import Progress
from ...training.distributed import rank_and_world_size
from ...training.task import BatchSlice, Task
from .config import ImageClassificationTaskConfig
from .evaluate import evaluate, logits_and_labels

CLASSES = "classes.json"


class ImageClassificationTask(Task):
    """An image classifier and the images it is trained on."""

    monitor, higher_is_better = "accuracy", True

    def __init__(self, config: ImageClassificationTaskConfig, data: Splits, progress: Progress | None = None):
        config.check_mixed_pairs(rank_and_world_size()[1])
        train = data.train
        if len(train.labels.unique()) < 2:
            raise SightlineError(f"data must have images of at least 2 classes, got {train.classes!r:.200}")
        self.train, self.validation, self.classes = train, data.validation, train.classes
        self.config = self.complete_config(config, data)
        self.model = ImageClassifier(self.config.model)
        levels = sample_histogram(train, config.seed, progress if isinstance(train, ImageFiles) else None)
        self.model.set_normalization(*mean_and_std(levels))
        self.data_fingerprint = data_fingerprint(data, levels)
        self.device = torch.device("cpu")

    @staticmethod
    def load_data(config: ImageClassificationTaskConfig, progress: Progress | None = None) -> Splits:
        """Read the config's data set."""
        return config.data.hold_out(config.data.load(progress), config.seed)

    @staticmethod
    def complete_config(config: ImageClassificationTaskConfig, data: Splits) -> ImageClassificationTaskConfig:
        train = data.train
        sizes = {"image_size": train.size, "channels": train.channels, "num_classes": len(train.classes)}
        return replace(config, model=for_data(config.model, **sizes))

    def new_parameters(self, predictor: Any) -> tuple[str, ...]:
        return () if getattr(predictor, "classes", None) == self.classes else ("classifier.",)

    def files(self) -> dict[str, bytes]:
        return {CLASSES: json.dumps(list(self.classes), ensure_ascii=False, indent=1).encode()}

    def steps_per_epoch(self, batch_size: int) -> int:
        return max(1, len(self.train) // batch_size)

    def to(self, device: torch.device) -> None:
        self.device = device
        self.model.to(device)
        self.train = self.train.to(device)
        self.validation = None if self.validation is None else self.validation.to(device)

    def batches(self, first_step: int, batch_size: int, batch_slice: BatchSlice) -> Generator[list[Any], None, None]:
        augment, num_classes, slices = self.config.augment, len(self.classes), batch_slice.indices(batch_size)
        share = slice(slices[0].start, slices[-1].stop)
        micro_batches = [slice(part.start - share.start, part.stop - share.start) for part in slices]
        orders = self._orders(first_step, batch_size, share)
        batches = stream(self.train, orders, self.config.data.num_workers, self.device)
        for step, (images, labels) in enumerate(batches, first_step):
            params = augmentation.sample_params(augment, batch_size, seed=self.config.seed, step=step)
            params = params.take(share).to(self.device)
            yield [
                (*augmentation.apply(augment, images[i], labels[i], num_classes, params.take(i)), batch_size)
                for i in micro_batches
            ]

    def _orders(self, first_step: int, batch_size: int, share: slice) -> Iterator[Tensor]:
        """Indices of the images of each batch from `first_step` on, restricted to the slice `share`."""
        per_epoch, count = self.steps_per_epoch(batch_size), len(self.train)
        epoch, order = -1, torch.empty(0)
        for step in itertools.count(first_step):
            if step // per_epoch != epoch:
                epoch = step // per_epoch
                random = seeds.make_generator(self.config.seed, seeds.ORDER, epoch)
                repeats = -(-batch_size // count)  # a batch larger than the set repeats images
                order = torch.from_numpy(np.concatenate([random.permutation(count) for _ in range(repeats)]))
                order = order.to(self.train.labels.device)
            start = step % per_epoch * batch_size
            yield order[start + share.start : start + share.stop]

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor, int]) -> Tensor:
        images, targets, batch_size = batch
        smoothing = self.config.label_smoothing
        loss = F.cross_entropy(model(images).float(), targets, label_smoothing=smoothing, reduction="sum")
        return loss / batch_size

    def evaluate(self, model: nn.Module, batch_slice: BatchSlice) -> dict[str, Tensor]:
        if self.validation is None:
            return {}
        options = self.config.evaluation_options(batch_slice.world_size)
        return evaluate(model, self.validation, device=self.device, batch_slice=batch_slice, **options)

    def metrics(self, sums: dict[str, Tensor]) -> dict[str, float]:
        return classification_metrics(sums) if sums else {}

    @torch.no_grad()
    def finish(self, weights: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, float]]:
        """Calibrate the confidence on the validation set."""
        if self.validation is None or not self.can_calibrate(len(self.validation)):
            return weights, {}
        model = ImageClassifier(self.config.model).to(self.device).eval()
        model.load_state_dict(weights)
        options: dict[str, Any] = {"device": self.device, **self.config.evaluation_options()}
        model.calibration_scale.fill_(fit_calibration_scale([logits_and_labels(model, self.validation, **options)]))
        metrics = classification_metrics(evaluate(model, self.validation, **options))
        return {name: tensor.cpu() for name, tensor in model.state_dict().items()}, metrics


def data_fingerprint(splits: Splits, levels: Tensor) -> dict[str, Any]:
    """Counts and digests of a data set; `levels` is the histogram of its training images.

    File names count only where files are read during training.
    """
    result: dict[str, Any] = {"classes": digest("\0".join(splits.train.classes).encode())}
    for name in ("train", "validation", "test"):
        images: Images | None = getattr(splits, name)
        if images is None:
            result[name] = {"images": 0}
            continue
        result[name] = {"images": len(images), "labels": digest(images.labels.cpu().numpy().tobytes())}
        if isinstance(images, ImageFiles):
            files = "\0".join(f"{path.parent.name}/{path.name}" for path in images.paths)
            result[name]["files"] = digest(files.encode(errors="surrogateescape"))
    result["train"]["levels"] = digest(levels.numpy().tobytes())
    return result

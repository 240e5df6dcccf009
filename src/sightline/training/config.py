"""Configuration of data and training."""

import re
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from ..config import Config, Fraction, NonNegative, NonNegativeInt, Positive, PositiveInt, at_least, at_most, rule
from ..errors import check

check_device_name = rule("auto, cpu, cuda or cuda:N", re.compile(r"auto|cpu|cuda(:\d{1,3})?").fullmatch)


@dataclass(frozen=True, kw_only=True)
class DataConfig(Config):
    """Base class of the configuration of data."""

    source: str
    """Name or path of the data."""

    @property
    def sources(self) -> tuple[str, ...]:
        """Names or paths of all data to train on."""
        return (self.source,)


@dataclass(frozen=True, kw_only=True)
class TrainingConfig(Config):
    """Configuration of the optimizer, the schedule, evaluation, checkpoints and the device."""

    epochs: Annotated[Positive, at_most("MAX_EPOCHS")] | None = None
    """Passes over the training data; 10 if neither `epochs` nor `steps` is given."""
    steps: PositiveInt | None = None
    """Optimizer steps, instead of `epochs`."""
    batch_size: PositiveInt = 128
    """Examples per optimizer step, over all processes and micro-batches."""
    gradient_accumulation_steps: PositiveInt = 1
    """Micro-batches per process and step. More need less memory; the update is that of the whole batch."""
    optimizer: Literal["adamw", "adam", "muon"] = "adamw"
    """muon orthogonalizes the updates of matrices inside the layers, and of the filters of a convolutional backbone; it
    uses AdamW for the rest."""
    learning_rate: Positive = 1e-3
    """Peak learning rate."""
    backbone_lr_ratio: Annotated[float, rule("above 0 and at most 1", lambda ratio: 0 < ratio <= 1)] = 1.0
    """Learning rate of the model's `backbone`, as a fraction of `learning_rate`; below 1 for pretrained weights."""
    weight_decay: NonNegative = 0.05
    """Applied to matrices only, not to biases, norms, temperatures, positions and learned masks."""
    betas: tuple[Fraction, Fraction] = (0.9, 0.999)
    """Adam's coefficients."""
    schedule: Literal["constant", "step", "cosine", "inverse_sqrt"] = "cosine"
    """Learning-rate schedule after warm-up."""
    warmup_steps: NonNegativeInt = 0
    """Steps of linear warm-up; at most a third of all steps is used."""
    step_size: PositiveInt = 1000
    """Steps between two decays of `schedule: step`."""
    gamma: Annotated[float, rule("above 0 and at most 1", lambda gamma: 0 < gamma <= 1)] = 0.1
    """Factor of each decay of `schedule: step`."""
    min_lr_ratio: Fraction = 0.0
    """Minimum of the schedule, as a fraction of the learning rate."""
    max_grad_norm: Positive | None = 1.0
    """Maximum norm of the gradient; null for no clipping."""
    ema_decay: Fraction | None = None
    """Decay of an exponential moving average of the weights, e.g. 0.999; null for none."""
    average_checkpoints: NonNegativeInt = 0
    """Average this many last checkpoints at the end. The average is kept unless the best single checkpoint has a better
    validation metric; 0 for no averaging."""
    evaluate_every: PositiveInt | None = None
    """Steps between two evaluations on the validation set; null for one epoch."""
    checkpoint_every: PositiveInt | None = None
    """Steps between two checkpoints; null for `evaluate_every`."""
    keep_checkpoints: Annotated[int, at_least(2)] = 2
    """Number of newest checkpoints to keep, at least 2."""
    early_stopping_patience: PositiveInt | None = None
    """Stop after this many evaluations without improvement; null for no early stopping."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """auto is bfloat16 on CUDA and float32 elsewhere."""
    device: Annotated[str, check_device_name] = "auto"
    """auto, cpu, cuda or cuda:N."""
    compile: bool = False
    """Compile the model with torch.compile; ignored on a CPU."""
    fsdp: bool = False
    """Shard the weights over the processes (FSDP2) instead of copying them to each (DDP)."""
    log_every: PositiveInt = 50
    """Steps between two lines of metrics.jsonl."""
    tensorboard: bool = False
    """Write TensorBoard events; needs the extra `logs`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        has_one = None in (self.epochs, self.steps)
        check(has_one, f"epochs and steps must not both be given, got {self.epochs} and {self.steps}; set one to null")
        check(not self.fsdp or self.optimizer != "muon", "optimizer must be adamw or adam with fsdp, got 'muon'")


@dataclass(frozen=True, kw_only=True)
class TaskConfig(Config):
    """The first fields of the config of every task."""

    inherited_sections: ClassVar[tuple[str, ...]] = ("model",)
    """Sections whose keys are those of the run that training starts from, where they are not given."""
    inherited_keys: ClassVar[tuple[str, ...]] = ()
    """Such keys of other sections, as `section.key`."""

    task: str
    """Name of the task in the registry."""
    out: str | None = None
    """Folder of the run; null for runs/NAME."""
    start_from: str | None = None
    """A run, or a pretrained model, whose weights training starts from; null for random weights."""
    seed: NonNegativeInt = 0

"""Configuration of training."""

import re
from dataclasses import dataclass
from typing import Literal

from ..errors import SightlineError, check_fraction, check_int

DEVICE_NAME = re.compile(r"auto|cpu|cuda(:\d{1,3})?")


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Configuration of the optimizer, the schedule, evaluation, checkpoints and the device."""

    epochs: float | None = None
    """Passes over the training data; 10 if neither `epochs` nor `steps` is given."""
    steps: int | None = None
    """Optimizer steps, instead of `epochs`."""
    batch_size: int = 128
    """Examples per optimizer step, over all processes and micro-batches."""
    gradient_accumulation_steps: int = 1
    """Micro-batches per process and step. More need less memory; the update is that of the whole batch."""
    optimizer: Literal["adamw", "adam", "muon"] = "adamw"
    """muon orthogonalizes the updates of matrices inside the layers and uses AdamW for the rest."""
    learning_rate: float = 1e-3
    """Peak learning rate."""
    weight_decay: float = 0.05
    """Applied to matrices only, not to biases, norms, temperatures, positions and learned masks."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Adam's coefficients."""
    schedule: Literal["constant", "step", "cosine", "inverse_sqrt"] = "cosine"
    """Learning-rate schedule after warm-up."""
    warmup_steps: int = 0
    """Steps of linear warm-up; at most a third of all steps is used."""
    step_size: int = 1000
    """Steps between two decays of `schedule: step`."""
    gamma: float = 0.1
    """Factor of each decay of `schedule: step`."""
    min_lr_ratio: float = 0.0
    """Minimum of the schedule, as a fraction of the learning rate."""
    max_grad_norm: float | None = 1.0
    """Maximum norm of the gradient; null for no clipping."""
    ema_decay: float | None = None
    """Decay of an exponential moving average of the weights, e.g. 0.999; null for none."""
    average_checkpoints: int = 0
    """Average this many last checkpoints at the end. The average is kept unless the best single checkpoint has a better
    validation metric; 0 for no averaging."""
    evaluate_every: int | None = None
    """Steps between two evaluations on the validation set; null for one epoch."""
    checkpoint_every: int | None = None
    """Steps between two checkpoints; null for `evaluate_every`."""
    keep_checkpoints: int = 2
    """Number of newest checkpoints to keep, at least 2."""
    early_stopping_patience: int | None = None
    """Stop after this many evaluations without improvement; null for no early stopping."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """auto is bfloat16 on CUDA and float32 elsewhere."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    compile: bool = False
    """Compile the model with torch.compile; ignored on a CPU."""
    fsdp: bool = False
    """Shard the weights over the processes (FSDP2) instead of copying them to each (DDP)."""
    log_every: int = 50
    """Steps between two lines of metrics.jsonl."""
    tensorboard: bool = False
    """Write TensorBoard events; needs the extra `logs`."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "gradient_accumulation_steps", "step_size", "log_every"):
            check_int(1, **{name: getattr(self, name)})
        for name in ("steps", "evaluate_every", "checkpoint_every", "early_stopping_patience"):
            if getattr(self, name) is not None:
                check_int(1, **{name: getattr(self, name)})
        check_int(0, warmup_steps=self.warmup_steps, average_checkpoints=self.average_checkpoints)
        check_int(2, keep_checkpoints=self.keep_checkpoints)
        check_fraction(min_lr_ratio=self.min_lr_ratio)
        check_fraction(**{f"betas[{i}]": beta for i, beta in enumerate(self.betas)})
        if self.ema_decay is not None:
            check_fraction(ema_decay=self.ema_decay)
        for name in ("epochs", "learning_rate", "gamma", "max_grad_norm"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise SightlineError(f"{name} must be above 0 and finite, got {value}")
        if self.gamma > 1:
            raise SightlineError(f"gamma must be at most 1, got {self.gamma}")
        if not 0 <= self.weight_decay < float("inf"):
            raise SightlineError(f"weight_decay must be at least 0 and finite, got {self.weight_decay}")
        if self.epochs is not None and self.steps is not None:
            raise SightlineError(
                f"epochs and steps must not both be given, got {self.epochs:g} and {self.steps}; set one to null"
            )
        if self.fsdp and self.optimizer == "muon":
            raise SightlineError("optimizer must be adamw or adam with fsdp, got 'muon'")
        if not DEVICE_NAME.fullmatch(self.device):
            raise SightlineError(f"device must be auto, cpu, cuda or cuda:N, got {self.device!r}")

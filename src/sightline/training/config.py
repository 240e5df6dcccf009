"""How a model is trained: everything the loop can be told."""

import re
from dataclasses import dataclass
from typing import Literal

from ..errors import SightlineError, check_fraction, check_int


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """How a model is trained."""

    epochs: float | None = None
    """Rounds through the data; 10 if neither these nor `steps` are given."""
    steps: int | None = None
    """Updates of the weights, in place of `epochs`."""
    batch_size: int = 128
    """Examples behind one update, over all processes and pieces together."""
    gradient_accumulation_steps: int = 1
    """Pieces a process cuts its part of a batch into, to fit memory; the update is that of the whole."""
    optimizer: Literal["adamw", "adam", "muon"] = "adamw"
    """muon makes the steps of the blocks' matrices orthogonal, the rest it leaves to AdamW; it needs fewer steps."""
    learning_rate: float = 1e-3
    weight_decay: float = 0.05
    """Only on matrices: biases, norms, temperatures, positions and learned masks are left alone."""
    betas: tuple[float, float] = (0.9, 0.999)
    schedule: Literal["constant", "step", "cosine", "inverse_sqrt"] = "cosine"
    warmup_steps: int = 0
    """Steps in which the learning rate rises in a straight line; at most a third of all."""
    step_size: int = 1000
    """For `schedule: step`: steps between two falls."""
    gamma: float = 0.1
    """For `schedule: step`: what is left of the rate after each fall."""
    min_lr_ratio: float = 0.0
    """Share of the learning rate below which no schedule goes."""
    max_grad_norm: float | None = 1.0
    """Largest norm of the gradient; null for none."""
    label_smoothing: float = 0.0
    ema_decay: float | None = None
    """How much of the running mean of the weights stays at each step, e.g. 0.999; null for none."""
    average_checkpoints: int = 0
    """The final weights are the mean of this many last checkpoints, unless the best of one step are better on the
    validation set; 0 for the best."""
    evaluate_every: int | None = None
    """Steps between two looks at the validation set; null for each epoch."""
    checkpoint_every: int | None = None
    """Steps between two checkpoints; null for as often as evaluations."""
    keep_checkpoints: int = 2
    """Checkpoints kept, the newest ones; two at least, for one may be torn."""
    early_stopping_patience: int | None = None
    """Stop after this many evaluations without a better one; null to go to the end."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """auto: bfloat16 on CUDA, float32 elsewhere."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    compile: bool = False
    """Let torch compile the model on a GPU: a minute at the start, then faster. On a CPU nothing is compiled."""
    fsdp: bool = False
    """Among several processes, share the weights out (FSDP2) and keep_checkpoints no whole copy in each (DDP)."""
    log_every: int = 50
    """Steps between two lines of metrics.jsonl."""
    tensorboard: bool = False
    """Write events for TensorBoard too; needs the extra `logs`."""

    def __post_init__(self) -> None:
        check_int(
            1,
            batch_size=self.batch_size,
            gradient_accumulation_steps=self.gradient_accumulation_steps,
            step_size=self.step_size,
        )
        check_int(1, log_every=self.log_every)
        check_int(0, warmup_steps=self.warmup_steps, average_checkpoints=self.average_checkpoints)
        check_int(2, keep_checkpoints=self.keep_checkpoints)
        check_fraction(label_smoothing=self.label_smoothing, min_lr_ratio=self.min_lr_ratio)
        check_fraction(**{f"betas[{i}]": beta for i, beta in enumerate(self.betas)})
        for name in ("steps", "evaluate_every", "checkpoint_every", "early_stopping_patience"):
            if getattr(self, name) is not None:
                check_int(1, **{name: getattr(self, name)})
        for name in ("epochs", "learning_rate", "gamma", "max_grad_norm"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise SightlineError(f"{name} must be above 0 and finite, got {value}")
        if self.epochs is not None and self.steps is not None:
            raise SightlineError(
                f"epochs and steps must not both be given, got {self.epochs:g} and {self.steps}; set one to null"
            )
        if self.gamma > 1:
            raise SightlineError(f"gamma must be at most 1, got {self.gamma}")
        if not 0 <= self.weight_decay < float("inf"):
            raise SightlineError(f"weight_decay must be at least 0 and finite, got {self.weight_decay}")
        if self.ema_decay is not None:
            check_fraction(ema_decay=self.ema_decay)
        if self.fsdp and self.optimizer == "muon":
            raise SightlineError("optimizer must be adamw or adam where weights are shared out (fsdp), got 'muon'")
        if not re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", self.device):
            raise SightlineError(f"device must be auto, cpu, cuda or cuda:N, got {self.device!r}")

"""How a model is trained: everything the loop can be told."""

import re
from dataclasses import dataclass
from typing import Literal

from ..checks import check_share, check_whole


@dataclass(frozen=True, kw_only=True)
class Training:
    """How a model is trained."""

    epochs: float | None = None
    """Rounds through the data; 10 if neither these nor `steps` are given."""
    steps: int | None = None
    """Updates of the weights, in place of `epochs`."""
    batch_size: int = 128
    """Examples behind one update, over all processes and pieces together."""
    accumulate: int = 1
    """Pieces a process cuts its part of a batch into, to fit memory; the update is that of the whole."""
    optimiser: Literal["adamw", "adam", "muon"] = "adamw"
    """muon makes the steps of the blocks' matrices orthogonal, the rest it leaves to AdamW; it needs fewer steps."""
    learning_rate: float = 1e-3
    weight_decay: float = 0.05
    """Only on matrices: biases, norms, temperatures, positions and learnt masks are left alone."""
    betas: tuple[float, float] = (0.9, 0.999)
    schedule: Literal["constant", "step", "cosine", "inverse_sqrt"] = "cosine"
    warmup: int = 0
    """Steps in which the learning rate rises in a straight line; at most a third of all."""
    step_every: int = 1000
    """For `schedule: step`: steps between two falls."""
    step_factor: float = 0.1
    """For `schedule: step`: what is left of the rate after each fall."""
    floor: float = 0.0
    """Share of the learning rate below which no schedule goes."""
    clip: float | None = 1.0
    """Largest norm of the gradient; null for none."""
    label_smoothing: float = 0.0
    ema: float | None = None
    """How much of the running mean of the weights stays at each step, e.g. 0.999; null for none."""
    average_last: int = 0
    """The final weights are the mean of this many last checkpoints, unless the best of one step are better on the
    validation set; 0 for the best."""
    evaluate_every: int | None = None
    """Steps between two looks at the validation set; null for each epoch."""
    checkpoint_every: int | None = None
    """Steps between two checkpoints; null for as often as evaluations."""
    keep: int = 2
    """Checkpoints kept, the newest ones; two at least, for one may be torn."""
    patience: int | None = None
    """Stop after this many evaluations without a better one; null to go to the end."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """auto: bfloat16 on CUDA, float32 elsewhere."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    compile: bool = False
    """Let torch compile the model on a GPU: a minute at the start, then faster. On a CPU nothing is compiled."""
    shard: bool = False
    """Among several processes, share the weights out (FSDP2) and keep no whole copy in each (DDP)."""
    log_every: int = 50
    """Steps between two lines of metrics.jsonl."""
    tensorboard: bool = False
    """Write events for TensorBoard too; needs the extra `logs`."""

    def __post_init__(self) -> None:
        check_whole(1, batch_size=self.batch_size, accumulate=self.accumulate, step_every=self.step_every)
        check_whole(1, log_every=self.log_every)
        check_whole(0, warmup=self.warmup, average_last=self.average_last)
        check_whole(2, keep=self.keep)
        check_share(label_smoothing=self.label_smoothing, floor=self.floor)
        check_share(**{f"betas[{i}]": beta for i, beta in enumerate(self.betas)})
        for name in ("steps", "evaluate_every", "checkpoint_every", "patience"):
            if getattr(self, name) is not None:
                check_whole(1, **{name: getattr(self, name)})
        for name in ("epochs", "learning_rate", "step_factor", "clip"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ValueError(f"{name} must be above 0 and finite, got {value}")
        if self.epochs is not None and self.steps is not None:
            raise ValueError(
                f"epochs and steps must not both be given, got {self.epochs:g} and {self.steps}; set one to null"
            )
        if self.step_factor > 1:
            raise ValueError(f"step_factor must be at most 1, got {self.step_factor}")
        if not 0 <= self.weight_decay < float("inf"):
            raise ValueError(f"weight_decay must be at least 0 and finite, got {self.weight_decay}")
        if self.ema is not None:
            check_share(ema=self.ema)
        if self.shard and self.optimiser == "muon":
            raise ValueError("optimiser must be adamw or adam where weights are shared out (shard), got 'muon'")
        if not re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", self.device):
            raise ValueError(f"device must be auto, cpu, cuda or cuda:N, got {self.device!r}")

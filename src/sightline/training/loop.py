"""The only loop: every model here is trained by it.

A step is a pure function of the weights, the seed and its number, so a run goes on after any interruption as if there
had been none.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .. import seeds
from ..errors import SightlineError
from ..files import write_bytes
from ..weights import to_bytes
from .averaging import RunningMean, local, mean
from .checkpoint import Checkpoints
from .config import TrainingConfig
from .device import choose_device, compiled, precision
from .distributed import Group, gathered, group, like
from .log import Log
from .optimizers import make_optimizers
from .schedules import rate
from .signals import Interrupted, Interrupts
from .state import restore, state_of
from .task import BatchSlice, Task

WEIGHTS = "model.safetensors"
DEFAULT_EPOCHS = 10
"""Where neither epochs nor steps are told."""
STEPS_BETWEEN_AGREEMENTS = {"cpu": 1, "cuda": 10}
"""How often several processes ask each other whether one was told to stop; on a GPU each question is a wait."""


@dataclass(frozen=True)
class Outcome:
    """How training ended."""

    steps: int
    metrics: dict[str, float]
    """Of the weights that were kept, on the validation set; empty where there is none."""
    seconds: float
    """Spent in this process; what was trained before a resume is not in it."""


def train(
    make: Callable[[], Task],
    settings: TrainingConfig,
    folder: Path,
    *,
    seed: int = 0,
    resume: bool = False,
    quiet: bool = False,
    begin: Callable[[Task], None] = lambda task: None,
) -> Outcome:
    """Train what `make` makes, and leave its weights in the folder.

    With `resume` it goes on from the newest good checkpoint of the folder, or from the start if there is none. `begin`
    is called when nothing is left that could be refused, and before anything is written.
    """
    with group(choose_device(settings.device)) as processes:
        torch.manual_seed(seed)
        task = make()
        with Interrupts() as interrupts:
            trainer = _Trainer(task, settings, folder, seed, processes, interrupts, quiet)
            processes.wait()  # one that is late would find what another has written already
            begin(task)
            return trainer.run(resume)


class _Trainer:
    def __init__(
        self,
        task: Task,
        settings: TrainingConfig,
        folder: Path,
        seed: int,
        processes: Group,
        interrupts: Interrupts,
        quiet: bool,
    ):
        parts = processes.world_size * settings.gradient_accumulation_steps
        if settings.batch_size % parts:
            raise SightlineError(
                f"batch_size must be a multiple of processes times gradient_accumulation_steps, {processes.world_size} x "
                f"{settings.gradient_accumulation_steps}, got {settings.batch_size}"
            )
        self.task, self.settings, self.seed, self.processes = task, settings, seed, processes
        self.interrupts, self.folder = interrupts, folder
        self.part = BatchSlice(processes.rank, processes.world_size, settings.gradient_accumulation_steps)
        epoch = task.steps_per_epoch(settings.batch_size)
        self.steps = settings.steps or max(1, round((settings.epochs or DEFAULT_EPOCHS) * epoch))
        self.warmup_steps = min(settings.warmup_steps, self.steps // 3)
        """Of a short run, a third at most: a rate that only rises teaches little."""
        self.evaluate_every = settings.evaluate_every or epoch
        self.checkpoint_every = settings.checkpoint_every or self.evaluate_every
        task.to(processes.device)
        self.model = task.model
        self.called = self.model
        if settings.fsdp:  # weights are shared out in the model itself, so first of all
            processes.wrap(self.model, fsdp=True)
        if settings.compile:
            self.called = compiled(self.model, processes.device, graphs=parts == 1)
        if not settings.fsdp:
            self.called = processes.wrap(self.called, fsdp=False)
        self.optimizers = make_optimizers(self.model, settings)
        self.mean = RunningMean(self.model, settings.ema_decay) if settings.ema_decay is not None else None
        self.checkpoints = Checkpoints(
            folder / "checkpoints", keep=max(settings.keep_checkpoints, settings.average_checkpoints)
        )
        self.log = Log(folder, self.steps, quiet=quiet, silent=not processes.is_main, tensorboard=settings.tensorboard)
        self.step, self.saved, self.waited = 0, 0, 0
        self.best: dict[str, Any] | None = None
        self.window = torch.zeros((), dtype=torch.float64, device=processes.device)
        """Sum of the losses since the last line of the log."""

    def run(self, resume: bool) -> Outcome:
        began = time.perf_counter()
        try:
            if resume:
                self._resume()
            self.log.start(self.step)
            self._train()
            metrics = self._finish()
        finally:
            self.log.close()
        return Outcome(self.step, metrics, time.perf_counter() - began)

    def _train(self) -> None:
        with closing(self.task.batches(self.step, self.settings.batch_size, self.part)) as batches:
            self._learn_from(batches)

    def _learn_from(self, batches: Iterator[list[Any]]) -> None:
        since, first, aside = time.perf_counter(), self.step, 0.0  # seconds of the window spent on other than learning
        self.called.train()
        while self.step < self.steps and not self._gave_up():
            self.window += self._update(next(batches))
            self.step += 1
            if self.mean is not None:
                self.mean.update(self.step)
            self.log.advance(self.step)
            if self.step % self.settings.log_every == 0 or self.step == self.steps:
                loss = self._loss_of_window()
                seconds = time.perf_counter() - since - aside
                self.log.step(
                    self.step,
                    {
                        "loss": loss,
                        "epoch": round(self.step / self.task.steps_per_epoch(self.settings.batch_size), 4),
                        "learning_rate": self._learning_rate(self.step - 1),
                        "examples_per_second": round((self.step - first) * self.settings.batch_size / seconds, 1),
                    },
                )
                since, first, aside = time.perf_counter(), self.step, 0.0
            learned = time.perf_counter()
            if self.step % self.evaluate_every == 0 or self.step == self.steps:
                self._evaluate()
            if self.step % self.checkpoint_every == 0 or self.step == self.steps or self._gave_up():
                self._save(scheduled=True)
            aside += time.perf_counter() - learned
            self._obey_signals()

    def _update(self, micro_batches: list[Any]) -> Tensor:
        """One step of the optimizer; the mean loss of the batch as far as it was worked on here."""
        # dropout follows from the step alone
        torch.manual_seed(seeds.number(self.seed, seeds.DROPOUT, self.step, self.processes.rank))
        losses = []
        for i, piece in enumerate(micro_batches):
            with self._unsynchronized(last=i == len(micro_batches) - 1):
                with self._precision():
                    loss = self.task.loss(self.called, piece)
                (loss * self.processes.world_size).backward()  # several processes take the mean of their gradients
            losses.append(loss.detach())
        if self.settings.max_grad_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.max_grad_norm)
        for optimizer in self.optimizers:
            for settings in optimizer.param_groups:
                settings["lr"] = self._learning_rate(self.step)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return torch.stack(losses).sum()

    def _unsynchronized(self, *, last: bool) -> AbstractContextManager[Any]:
        """Only the last piece of a batch makes the processes exchange gradients."""
        if last or self.processes.world_size == 1 or self.settings.fsdp:
            return nullcontext()
        return self.called.no_sync()  # type: ignore[operator]

    def _precision(self) -> AbstractContextManager[Any]:
        return precision(self.settings, self.processes.device)

    def _learning_rate(self, step: int) -> float:
        s = self.settings
        how = (s.schedule, step, self.steps)
        share = rate(*how, warmup_steps=self.warmup_steps, every=s.step_size, factor=s.gamma, floor=s.min_lr_ratio)
        return s.learning_rate * share

    def _loss_of_window(self) -> float:
        """The mean loss since the last line, over all processes."""
        count = (self.step - 1) % self.settings.log_every + 1
        total = self._total(self.window)
        self.window.zero_()
        return total / count

    def _total(self, losses: Tensor) -> float:
        """The sum over all processes; a loss that is not a number ends training."""
        total = float(self.processes.sum({"loss": losses.clone()})["loss"])
        if not math.isfinite(total):
            raise SightlineError(
                f"loss must be finite, got {total} at step {self.step}; lower training.learning_rate or lengthen "
                f"training.warmup_steps; checkpoints before it are intact"
            )
        return total

    def _sound_window(self) -> float:
        """The sum of the losses since the last line, if they and the weights are fit to be judged and kept."""
        weights = [part for part in local([*self.model.parameters()]) if part.numel()]
        return self._total(self.window + 0 * torch.stack(torch._foreach_norm(weights, math.inf)).sum())

    @torch.no_grad()
    def _evaluate(self) -> None:
        self._sound_window()
        metrics = self._metrics(self._judged())
        if not metrics:
            return
        ahead = self._ahead(metrics)
        self.waited = 0 if ahead > 0 else self.waited + 1
        kept = ahead >= 0  # of equals the one that has learned for longer
        if kept:
            weights = gathered(self._weights())
            self.best = {"step": self.step, "value": metrics[self.task.monitor], "metrics": metrics}
            if self.processes.is_main:
                self.best |= self.checkpoints.save_best(self.step, weights)
                write_bytes(self.folder / WEIGHTS, to_bytes(weights))
        self.log.evaluated(self.step, metrics, best=kept)

    def _ahead(self, metrics: dict[str, float]) -> float:
        """How much better they are than the best so far; NaN, which is ahead of nothing, where they are no numbers."""
        value, sign = metrics[self.task.monitor], 1 if self.task.higher_is_better else -1
        best = -math.inf if self.best is None else sign * self.best["value"]
        return sign * value - best if math.isfinite(value) else math.nan

    def _metrics(self, weights: AbstractContextManager[Any]) -> dict[str, float]:
        self.model.eval()
        with weights, torch.no_grad(), self._precision():
            sums = self.processes.sum(self.task.evaluate(self.model, self.part))
            self.processes.settle(self.model)
        self.model.train()
        return self.task.metrics(sums)

    def _gave_up(self) -> bool:
        return (
            self.settings.early_stopping_patience is not None and self.waited >= self.settings.early_stopping_patience
        )

    def _judged(self) -> AbstractContextManager[Any]:
        """Inside it the model has the weights to judge it by."""
        return nullcontext() if self.mean is None else self.mean.in_place_of(self.model)

    def _weights(self) -> dict[str, Tensor]:
        """Those to judge the model by: the running mean if one is kept."""
        return dict(self.model.state_dict() if self.mean is None else self.mean.weights)

    @torch.no_grad()
    def _save(self, *, scheduled: bool) -> None:
        window = self._sound_window()
        tensors = gathered(state_of(self.model, self.mean, self.optimizers))
        if self.processes.is_main:
            facts = {"best": self.best, "waited": self.waited, "window": window}
            self.checkpoints.save(self.step, tensors, facts, scheduled=scheduled)
        self.saved = self.step
        self.processes.wait()

    def _resume(self) -> None:
        found = self.checkpoints.newest()
        self._complain()
        step = -1 if found is None else found.step
        if self.processes.largest(step) != -self.processes.largest(-step):
            raise SightlineError(
                f"out must be a folder that all processes see, got {self.folder}, which differs for some"
            )
        if found is None:
            self.log.say("nothing to go on from: starting at step 0")
            return
        if self.processes.is_main:
            self.checkpoints.drop_old()
        restore(found.tensors, self.model, self.mean, self.optimizers)
        self.step, self.saved, facts = found.step, found.step, found.facts
        self.best, self.waited = facts["best"], facts["waited"]
        self.window.fill_(facts["window"] if self.processes.is_main else 0.0)
        self.log.say(f"going on from step {self.step} of {self.steps}")

    def _complain(self) -> None:
        for complaint in self.checkpoints.complaints:
            self.log.say(complaint)
        self.checkpoints.complaints.clear()

    def _obey_signals(self) -> None:
        if self.step % STEPS_BETWEEN_AGREEMENTS[self.processes.device.type] and self.processes.world_size > 1:
            return
        caught = self.processes.largest(self.interrupts.caught)
        if not caught or self.step >= self.steps:
            return
        if self.saved != self.step:
            self._save(scheduled=False)
        message = (
            f"stopped and saved at step {self.step} of {self.steps}; go on with: sightline train {self.folder} --resume"
        )
        self.log.say(message)
        raise Interrupted(caught, message)

    def _finish(self) -> dict[str, float]:
        """Complete and write the final weights."""
        weights, metrics = self._final()
        if self.processes.is_main:
            weights, finished = self.task.finish(weights)
            metrics = finished or metrics
            write_bytes(self.folder / WEIGHTS, to_bytes(weights))
        self.processes.wait()
        return metrics

    def _final(self) -> tuple[dict[str, Tensor], dict[str, float]]:
        """The mean of the last checkpoints, where it is wanted and no worse than the best; the best; or the last."""
        if self.settings.average_checkpoints:
            weights, metrics, count = self._mean_of_last()
            if self.best is None:
                return weights, metrics
            won, monitor = self._ahead(metrics) >= 0, self.task.monitor
            own = f"the mean of the last {count} checkpoints, validation {monitor} {metrics[monitor]:.4g}"
            best = f"the best of one step, {self.best['step']}, validation {monitor} {self.best['value']:.4g}"
            self.log.say(f"kept {own}; not {best}" if won else f"kept {best}; not {own}")
            self.log.averaged(self.step, metrics, best=won)
            if won:
                return weights, metrics
        if self.best is not None:
            return self.checkpoints.read(self.best) if self.processes.is_main else {}, self.best["metrics"]
        return gathered(self._weights()), self._metrics(self._judged())

    def _mean_of_last(self) -> tuple[dict[str, Tensor], dict[str, float], int]:
        """The mean of the last checkpoints, what it comes to, and how many there were."""
        last = self.checkpoints.last(self.settings.average_checkpoints)
        self._complain()
        prefix = "model." if self.mean is None else "mean."
        weights = mean([{n.removeprefix(prefix): t for n, t in one.items() if n.startswith(prefix)} for one in last])
        with torch.no_grad():
            for name, tensor in self.model.state_dict().items():
                tensor.copy_(like(weights[name], tensor))
        return weights, self._metrics(nullcontext()), len(last)

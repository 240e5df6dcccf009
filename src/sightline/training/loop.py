"""The training loop of every task.

A step depends only on the weights, the seed and its number, so a resumed run equals an uninterrupted one.
"""

import errno
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .. import seeds
from ..errors import check
from ..files import CARD, CHECKPOINTS, WEIGHTS, read_log, resume_command, write_bytes
from ..weights import to_bytes
from .averaging import ExponentialMovingAverage, average_states
from .checkpoint import FIX, CheckpointFolder, restore_state, training_state
from .config import TrainingConfig
from .device import autocast, compile_model
from .distributed import ProcessGroup, distribute_like, full_tensors
from .hooks import FINAL, Hook
from .losses import LossSum
from .optimizers import make_optimizers
from .run import Run
from .schedules import learning_rate
from .signals import Interrupted, SignalHandler
from .task import BatchSlice, Task
from .validation import Validation

DEFAULT_EPOCHS = 10
"""Used when neither epochs nor steps are configured."""
STEPS_BETWEEN_STOP_CHECKS = {"cpu": 1, "cuda": 10}
"""Steps after which several processes agree whether to stop; on a GPU each check waits for the device."""


class Trainer:
    """Trains the model of a task and writes its weights and checkpoints to a folder."""

    def __init__(
        self,
        task: Task,
        config: TrainingConfig,
        folder: Path,
        group: ProcessGroup,
        *,
        seed: int = 0,
        hooks: Sequence[Hook] = (),
        config_digest: str = "",
        command: str = "",
    ):
        """Build the optimizers and wrap the model for the process group.

        config_digest: digest of the config of the run; only checkpoints with the same digest are restored.
        command: the command that trains the run; a restored checkpoint replaces it by the first one.
        """
        micro_batches = group.world_size * config.gradient_accumulation_steps
        factors = f"{group.world_size} x {config.gradient_accumulation_steps}, got {config.batch_size}"
        rule = "batch_size must be a multiple of processes times gradient_accumulation_steps"
        check(config.batch_size % micro_batches == 0, f"{rule}, {factors}")
        self.task, self.config, self.folder, self.group, self.seed = task, config, folder, group, seed
        self.config_digest, self.command, self._started = config_digest, command, time.perf_counter()
        self.hooks = list(hooks) if group.is_main else []
        self.batch_slice = BatchSlice(group.rank, group.world_size, config.gradient_accumulation_steps)
        steps_per_epoch = task.steps_per_epoch(config.batch_size)
        self.total_steps = config.steps or max(1, round((config.epochs or DEFAULT_EPOCHS) * steps_per_epoch))
        self.evaluate_every = config.evaluate_every or steps_per_epoch
        self.checkpoint_every = config.checkpoint_every or self.evaluate_every
        task.to(group.device)
        group.synchronize_batch_norm(task.model)
        self.model = self._forward_model = task.model
        if config.fsdp:  # shards the model in place, before it is compiled
            group.wrap(self.model, fsdp=True)
        if config.compile:
            self._forward_model = compile_model(self.model, group.device, cuda_graphs=micro_batches == 1)
        if not config.fsdp:
            self._forward_model = group.wrap(self._forward_model, fsdp=False)
        self._autocast = partial(autocast, config, group.device)
        self.optimizers = make_optimizers(self.model, config)
        self.ema = None if config.ema_decay is None else ExponentialMovingAverage(self.model, config.ema_decay)
        options: dict[str, Any] = {"autocast": self._autocast, "patience": config.early_stopping_patience}
        self.validation = Validation(task, self.model, self.ema, group, self.batch_slice, **options)
        keep = max(config.keep_checkpoints, config.average_checkpoints)
        self.checkpoints = CheckpointFolder(folder / CHECKPOINTS, keep=keep, report=self._message)
        self.step = 0
        self._checkpoint_step = 0
        self._stop_request: str | None = None
        self._losses = LossSum(group, folder, config.learning_rate)

    def restore(self) -> None:
        """Restore the newest intact checkpoint of the folder; without one, training starts at step 0."""
        checkpoint = self.checkpoints.latest()
        step = -1 if checkpoint is None else checkpoint.step
        highest, lowest = self.group.max([step, -step])
        check(highest == -lowest, f"out must be a folder that all processes share, got {self.folder}")
        if checkpoint is None:
            self._message("no checkpoint to resume from: starting at step 0")
            return
        metadata = checkpoint.metadata
        where = f"step {checkpoint.step} of {self.checkpoints.folder}"
        has_same_config = metadata.get("config_digest") == self.config_digest
        check(has_same_config, f"a checkpoint must have the config of the run, got another one in {where}; {FIX}")
        missing = ", ".join(sorted({"best", "evaluations_without_improvement", "loss_sum"} - metadata.keys()))
        check(not missing, f"a checkpoint must have {missing} in its metadata, got none in {where}; {FIX}")
        restore_state(checkpoint.tensors, self.model, self.ema, self.optimizers)
        if self.group.is_main:
            self.checkpoints.remove_old()
        self.step = self._checkpoint_step = checkpoint.step
        self.command = metadata.get("command", self.command)
        self._started -= metadata.get("seconds", 0.0)
        self.validation.best = metadata["best"]
        self.validation.evaluations_without_improvement = metadata["evaluations_without_improvement"]
        self._losses.restore(metadata["loss_sum"], self.step, self.config.log_every)
        self._report_resumption(metadata.get("total_steps", self.total_steps))

    def _report_resumption(self, old: int) -> None:
        """The steps of a resumed run may change, but not to fewer than it has. A message tells what that changes."""
        is_enough = self.total_steps >= self.step or self.total_steps == old
        rule = f"training.steps or training.epochs must be at least the {self.step:,} steps that {self.folder} has"
        check(is_enough, f"{rule}, to resume it, got {self.total_steps:,} steps")
        self._message(f"resuming from step {self.step} of {self.total_steps}")
        if self.total_steps == old:
            return
        schedule = self.config.schedule
        before = learning_rate(self.config, max(0, self.step - 1), old)
        after = learning_rate(self.config, min(self.step, self.total_steps - 1), self.total_steps)
        self._message(
            f"changed from {old:,} to {self.total_steps:,} steps: from step {self.step + 1:,} on, the learning rate "
            f"follows the {schedule} schedule of {self.total_steps:,} steps, {after:.3g} after {before:.3g}"
        )
        if self.validation.is_out_of_patience:
            patience = self.config.early_stopping_patience
            fix = "pass training.early_stopping_patience=null, or more, to go on"
            self._message(f"no improvement in the last {patience} evaluations, so training ends at once; {fix}")

    def fit(self) -> Run:
        """Train from the current step to the end and write the final weights."""
        try:
            self._notify("on_start")
            batches = self.task.batches(self.step, self.config.batch_size, self.batch_slice)
            with SignalHandler() as signals, closing(batches):
                stop_reason = self._train(batches, signals)
            metrics = self._write_final_weights()
            self._notify("on_finish", metrics, stop_reason)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
                reason = f"{error.strerror}; checkpoints are intact: free disk space and continue with --resume"
                raise OSError(error.errno, reason, error.filename) from error
            raise
        finally:
            self._notify("on_end")
        return Run(self.folder, metrics, self.step, self.seconds, stop_reason, self.task.calibration)

    def finished_run(self) -> Run | None:
        """The run of a restored checkpoint as its log reports it; None if something is left to do."""
        final = [line for line in read_log(self.folder) if FINAL in line]
        if not (self.is_done and final and all((self.folder / name).is_file() for name in (CARD, WEIGHTS))):
            return None
        key = "training.steps" if self.config.steps else "training.epochs"
        self._message(f"{self.folder} is fully trained; nothing was changed; a larger {key} extends it")
        report = (final[-1].get("stop_reason"), final[-1].get("calibration", ""))
        return Run(self.folder, final[-1][FINAL], self.step, self.seconds, *report)

    @property
    def is_done(self) -> bool:
        """Whether no step is left."""
        return self.step >= self.total_steps or self.validation.is_out_of_patience

    @property
    def evaluations_without_improvement(self) -> int:
        """Evaluations since the one that was better than all before it; 0 right after that."""
        return self.validation.evaluations_without_improvement

    @property
    def seconds(self) -> float:
        """Duration of training so far, with the time before a resume."""
        return time.perf_counter() - self._started

    def request_stop(self, reason: str) -> None:
        """Stop after the current step. A checkpoint is saved and the run is finished; it can be resumed."""
        self._stop_request = reason

    def _train(self, batches: Iterator[list[Any]], signals: SignalHandler) -> str | None:
        """Run the steps; return why they ended early."""
        window_start, window_step, other_seconds = time.perf_counter(), self.step, 0.0
        self._forward_model.train()
        while not self.is_done:
            self._losses.add(self._update(next(batches)))
            self.step += 1
            is_last = self.step == self.total_steps
            if self.ema is not None:
                self.ema.update(self.step)
            self._notify("on_step")
            if self.step % self.config.log_every == 0 or is_last:
                self._log(window_step, window_start + other_seconds)
                window_start, window_step, other_seconds = time.perf_counter(), self.step, 0.0
            update_end = time.perf_counter()
            if self.step % self.evaluate_every == 0 or is_last:
                self._evaluate()
            if self.step % self.checkpoint_every == 0 or is_last or self.validation.is_out_of_patience:
                self._save_checkpoint(scheduled=True)
            other_seconds += time.perf_counter() - update_end
            if not is_last and self._should_stop(signals):
                return self._stop_request or "requested by a hook"
        if self.validation.is_out_of_patience:
            return f"no improvement in {self.evaluations_without_improvement} evaluations"
        return None

    def _update(self, micro_batches: list[Any]) -> Tensor:
        """Run one optimizer step; return this process's share of the mean loss."""
        # dropout depends on the seed and the step
        torch.manual_seed(seeds.derive_seed(self.seed, seeds.DROPOUT, self.step, self.group.rank))
        losses = []
        for i, micro_batch in enumerate(micro_batches):
            with self._gradient_sync(enabled=i == len(micro_batches) - 1):
                with self._autocast():
                    loss = self.task.loss(self._forward_model, micro_batch)
                (loss * self.group.world_size).backward()  # DDP and FSDP average gradients over the processes
            losses.append(loss.detach())
        if self.config.max_grad_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.max_grad_norm)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(self.config, self.step, self.total_steps) * group.get("lr_ratio", 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return torch.stack(losses).sum()

    def _gradient_sync(self, *, enabled: bool) -> AbstractContextManager[Any]:
        """DDP synchronizes gradients in the last micro-batch of a step only."""
        if enabled or self.group.world_size == 1 or self.config.fsdp:
            return nullcontext()
        return self._forward_model.no_sync()  # type: ignore[operator]

    def _log(self, first_step: int, start_time: float) -> None:
        """Report the mean loss since the last log, over all processes, and the speed since a step and a time."""
        processed = (self.step - first_step) * self.config.batch_size
        values = {
            "loss": self._losses.take_mean(self.step),
            "epoch": round(self.step / self.task.steps_per_epoch(self.config.batch_size), 4),
            "learning_rate": learning_rate(self.config, self.step - 1, self.total_steps),
            f"{self.task.unit}_per_second": round(processed / (time.perf_counter() - start_time), 1),
        }
        self._notify("on_log", values)

    @torch.no_grad()
    def _evaluate(self) -> None:
        self._losses.total(self.step, self.model)  # which must be finite
        metrics = self.validation.metrics()
        if not metrics:
            return
        best = self.validation.update(self.step, metrics)
        if best is not None:
            weights = full_tensors(self.validation.weights())
            if self.group.is_main:
                best.update(self.checkpoints.save_best(self.step, weights))
                write_bytes(self.folder / WEIGHTS, to_bytes(weights))
        self._notify("on_evaluate", metrics, best is not None)

    @torch.no_grad()
    def _save_checkpoint(self, *, scheduled: bool) -> None:
        loss_sum = self._losses.total(self.step, self.model)
        self.validation.average_running_statistics()
        tensors = full_tensors(training_state(self.model, self.ema, self.optimizers))
        if self.group.is_main:
            metadata = {
                "config_digest": self.config_digest,
                "best": self.validation.best,
                "evaluations_without_improvement": self.evaluations_without_improvement,
                "loss_sum": loss_sum,
                "command": self.command,
                "total_steps": self.total_steps,
                "seconds": self.seconds,
            }
            path = self.checkpoints.save(self.step, tensors, metadata, scheduled=scheduled)
            self._notify("on_checkpoint", path)
        self._checkpoint_step = self.step
        self.group.barrier()

    def _should_stop(self, signals: SignalHandler) -> bool:
        """Whether a hook requested a stop; a signal raises `Interrupted`. Both save a checkpoint first."""
        if self.group.world_size > 1 and self.step % STEPS_BETWEEN_STOP_CHECKS[self.group.device.type]:
            return False
        signal_number, stop = self.group.max([signals.received, int(self._stop_request is not None)])
        if (signal_number or stop) and self._checkpoint_step != self.step:
            self._save_checkpoint(scheduled=False)
        if signal_number:
            done = f"stopped and saved at step {self.step} of {self.total_steps}"
            self._message(message := f"{done}; continue with: {resume_command(self.folder)}")
            raise Interrupted(signal_number, message)
        return bool(stop)

    def _write_final_weights(self) -> dict[str, float]:
        """Select and calibrate the final weights, write them and return their validation metrics."""
        weights, metrics = self._final_weights()
        if self.group.is_main:
            weights, final_metrics = self.task.finish(weights)
            write_bytes(self.folder / WEIGHTS, to_bytes(weights))
            if "loss" in metrics and "loss" in final_metrics:
                losses = f"{metrics['loss']:.4g} before, {final_metrics['loss']:.4g} after"
                self._message(f"calibrated the confidence on the validation set: loss {losses}")
            metrics = final_metrics or metrics
        return metrics

    def _final_weights(self) -> tuple[dict[str, Tensor], dict[str, float]]:
        """Return the average of the last checkpoints if configured and not worse than the best weights; else the best
        weights; else the last."""
        best = self.validation.best
        if self.config.average_checkpoints:
            weights, metrics, count = self._average_of_checkpoints()
            if best is None:
                return weights, metrics
            is_best, monitor = self.validation.improvement(metrics) >= 0, self.task.monitor
            average = f"the average of the last {count} checkpoints (validation {monitor} {metrics[monitor]:.4g})"
            other = f"the best weights, of step {best['step']} (validation {monitor} {best['value']:.4g})"
            self._message(f"kept {average} over {other}" if is_best else f"kept {other} over {average}")
            self._notify("on_average", metrics, is_best)
            if is_best:
                return weights, metrics
        if best is not None:
            return self.checkpoints.read(best) if self.group.is_main else {}, best["metrics"]
        metrics = self.validation.metrics()
        return full_tensors(self.validation.weights()), metrics

    def _average_of_checkpoints(self) -> tuple[dict[str, Tensor], dict[str, float], int]:
        """Average the last checkpoints; return the weights, their metrics and the number of checkpoints."""
        states = self.checkpoints.last(self.config.average_checkpoints)
        weights = average_states(states, "model." if self.ema is None else "ema.")
        with torch.no_grad():
            for name, tensor in self.model.state_dict().items():
                tensor.copy_(distribute_like(weights[name], tensor))
        return weights, self.validation.metrics(averaged=False), len(states)

    def _message(self, text: str) -> None:
        self._notify("on_message", text)

    def _notify(self, event: str, *arguments: Any) -> None:
        """Call a method of every hook."""
        for hook in self.hooks:
            getattr(hook, event)(self, *arguments)

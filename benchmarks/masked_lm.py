"""Masked language models in one run: ours, and BertForMaskedLM of the same size trained by transformers.Trainer.

    python -m benchmarks.masked_lm data/multi30k/captions5_en_train.txt.gz --group-stride 29000 --seconds 300

Both train on the same token ids for the same wall-clock time, three seeds each, and are evaluated by the same code on
the same masked tokens. Tokens are counted without padding. BERT trains in bfloat16 on a GPU, with dynamic padding in
worker processes, the fused AdamW and a linear schedule, compiled and not; the faster one is used for the comparison of
accuracies. With `--group-by-length` its batches have sentences of similar lengths, as ours always have. Its schedule is
set by the number of steps that a first measurement predicts for the given time; ours as well. BERT's learning rate is
the one with the best accuracy of the first seed.
"""

import argparse
import dataclasses
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import sightline
from sightline.data.text.batching import PackedSequences
from sightline.run_config import resolve_config
from sightline.tasks.masked_lm.evaluate import masked_sums
from sightline.tasks.masked_lm.task import MaskedLMTask
from sightline.training.hooks import Hook

SIZES = {"embed_dim": "hidden_size", "num_heads": "num_attention_heads", "ffn_dim": "intermediate_size"}
"""Names of our dimensions in a BertConfig; `depth` is num_hidden_layers."""


WARM_UP_STEPS = 300
"""Steps before the speed is measured, which compile the model for batches of different lengths.

Speeds are those of a second training, whose warm-up reads the compiler's cache.
"""
WORKERS = 8
"""Processes that collate batches for transformers.Trainer on a GPU; Sightline makes batches on the device."""


def synchronized_time() -> float:
    """The time at which all kernels that were launched have run."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


class Clock:
    """Counts the steps and tokens of a training that ends some seconds after its first `warm_up` steps.

    The speed is that of the second half of these seconds.
    """

    def __init__(self, seconds: float, warm_up: int = 0):
        self.seconds, self.warm_up, self.start, self.warm_up_seconds = seconds, warm_up, time.perf_counter(), 0.0
        self.steps, self.half, self.last = 0, (0.0, 0, 0), ()

    def step(self, tokens: int, *, is_last: bool) -> bool:
        """Count a step, with the tokens of all steps so far; whether the time is over."""
        self.steps += 1
        if self.steps == self.warm_up:
            now = synchronized_time()
            self.start, self.warm_up_seconds = now, now - self.start
        if self.steps <= self.warm_up:
            return False
        elapsed = time.perf_counter() - self.start
        if not self.half[1] and elapsed > self.seconds / 2:
            self.half = (synchronized_time(), self.steps, tokens)
        is_over = elapsed > self.seconds
        if is_over or is_last:
            self.last: tuple[Any, ...] = (synchronized_time(), self.steps, tokens)
        return is_over

    @property
    def elapsed(self) -> float:
        """Seconds of all steps after the warm-up."""
        return float(self.last[0] - self.start)

    @property
    def tokens_per_second(self) -> float:
        return float((self.last[2] - self.half[2]) / (self.last[0] - self.half[0]))

    def predict_steps(self, seconds: float) -> int:
        """The steps that a training of some seconds has, which begins as slowly as this one."""
        per_second = (self.last[1] - self.half[1]) / (self.last[0] - self.half[0])
        return max(10, int(self.warm_up + per_second * (seconds - self.warm_up_seconds)))


class StopAfter(Hook):
    """Stops training after some seconds."""

    def __init__(self, clock: Clock, tokens_per_step: float):
        self.clock, self.tokens_per_step = clock, tokens_per_step

    def on_start(self, trainer: Any) -> None:
        self.clock.start = time.perf_counter()

    def on_step(self, trainer: Any) -> None:
        tokens = round(self.tokens_per_step * trainer.step)
        if self.clock.step(tokens, is_last=trainer.step == trainer.total_steps):
            trainer.request_stop("time")


class Bert(nn.Module):
    """A BertForMaskedLM with the interface that `masked_sums` evaluates."""

    def __init__(self, bert: Any):
        super().__init__()
        self.bert = bert

    def forward(self, tokens: Tensor, attention_mask: Tensor, *, positions: Tensor) -> Tensor:
        """tokens (B, T), attention_mask (B, T), positions (B, N) -> logits (B, N, V)"""
        logits = self.bert(tokens, attention_mask.long()).logits
        return logits.gather(1, positions.unsqueeze(-1).expand(-1, -1, logits.shape[-1]))


class Sentences(torch.utils.data.Dataset[dict[str, list[int]]]):
    """The training sentences as token ids, for transformers.Trainer."""

    def __init__(self, encoded: PackedSequences):
        self.rows = [ids.tolist() for ids in encoded.ids[: int(encoded.lengths.sum())].split(encoded.lengths.tolist())]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        return {"input_ids": self.rows[index]}


class Collator:
    """Dynamic padding and masking as in DataCollatorForLanguageModeling: 15% of the tokens, 80% masks, 10% random."""

    def __init__(self, task: MaskedLMTask):
        self.masker = task.masker

    def __call__(self, rows: list[dict[str, list[int]]]) -> dict[str, Tensor]:
        from torch.nn.utils.rnn import pad_sequence

        ids = pad_sequence([torch.tensor(row["input_ids"]) for row in rows], batch_first=True)
        lengths = torch.tensor([len(row["input_ids"]) for row in rows])
        mask, random = torch.arange(ids.shape[1]) < lengths[:, None], torch.rand(ids.shape)
        is_chosen = (torch.rand(ids.shape) < self.masker.fraction) & (ids >= self.masker.num_special)
        labels = ids.masked_fill(~is_chosen, -100)
        other = torch.randint(self.masker.num_special, self.masker.vocab_size, ids.shape)
        new = torch.where(random < 0.8, self.masker.mask_id, torch.where(random < 0.9, other, ids))
        return {"input_ids": torch.where(is_chosen, new, ids), "attention_mask": mask.long(), "labels": labels}


def make_config(arguments: argparse.Namespace, out: Path, seed: int, steps: int) -> Any:
    """The config of our run: that of the file with the data, time and seed of the benchmark."""
    changes = [f"data.source={arguments.data}", f"out={out}", f"seed={seed}", f"training.steps={steps}"]
    changes += [f"training.evaluate_every={steps}", f"training.checkpoint_every={steps}", *arguments.changes]
    if arguments.group_stride:
        changes.append(f"data.group_stride={arguments.group_stride}")
    return resolve_config(arguments.config, changes)[0]


def train_ours(task_config: Any, data: Any, clock: Clock, tokens: float) -> Any:
    """Train by a clock with a number of tokens per step; the predictor."""
    run = sightline.train(task_config, data=data, hooks=[StopAfter(clock, tokens)], quiet=True)
    return sightline.load(run.folder)


def tokens_per_step(task: MaskedLMTask, batch_size: int) -> float:
    """Mean number of tokens of a batch, without padding."""
    return float(task.train.lengths.sum()) / task.steps_per_epoch(batch_size)


def train_bert(
    task: MaskedLMTask,
    folder: Path,
    clock: Clock,
    *,
    steps: int,
    seed: int,
    rows: int,
    compiled: bool,
    rate: float,
    grouped: bool,
) -> nn.Module:
    """Train BertForMaskedLM by transformers.Trainer; the model."""
    from transformers import BertConfig, BertForMaskedLM, Trainer, TrainerCallback, TrainingArguments

    class Stop(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            clock.start = time.perf_counter()

        def on_step_end(self, _: Any, state: Any, control: Any, **__: Any) -> None:
            if clock.step(round(tokens * state.global_step), is_last=state.global_step == steps):
                control.should_training_stop = True

    torch.manual_seed(seed)
    dimensions, model_config = task.config.model.dimensions, task.config.model
    sizes = {theirs: dimensions[ours] for ours, theirs in SIZES.items()}
    bert = BertForMaskedLM(
        BertConfig(
            **sizes,
            num_hidden_layers=dimensions["depth"],
            vocab_size=len(task.tokenizer),
            max_position_embeddings=model_config.max_positions,
            hidden_dropout_prob=model_config.dropout,
            attention_probs_dropout_prob=model_config.attention_dropout,
        )
    )
    tokens, on_gpu = rows * float(task.train.lengths.mean()), torch.cuda.is_available()
    options = TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=rows, max_steps=steps, learning_rate=rate, bf16=on_gpu,
        optim="adamw_torch_fused", warmup_steps=steps // 20, weight_decay=0.01, save_strategy="no", report_to=[],
        disable_tqdm=True, logging_strategy="no", seed=seed, torch_compile=compiled, remove_unused_columns=False,
        dataloader_num_workers=WORKERS if on_gpu else 0, use_cpu=not on_gpu, **(_grouping() if grouped else {}),
    )  # fmt: skip
    trainer = Trainer(
        bert, options, train_dataset=Sentences(task.train), data_collator=Collator(task), callbacks=[Stop()]
    )
    trainer.train()
    return Bert(bert).eval()


def _grouping() -> dict[str, Any]:
    """The training argument that makes batches of similar lengths, whose name depends on the version."""
    from transformers import TrainingArguments

    names = {field.name for field in dataclasses.fields(TrainingArguments)}
    return {"group_by_length": True} if "group_by_length" in names else {"train_sampling_strategy": "group_by_length"}


def accuracy(model: nn.Module, task: MaskedLMTask, device: torch.device) -> float:
    """Masked accuracy on the validation set, whose masks are the same for all models."""
    assert task.validation is not None
    with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        sums = masked_sums(model.to(device), task.masker.to(device), task.validation.to(device))
    return float(sums["correct"] / sums["tokens"])


def variants() -> Iterator[bool]:
    """Compiled and not; compilation does not pay on a CPU."""
    yield from (False, True) if torch.cuda.is_available() else (False,)


def print_speed(name: str, clocks: list[Clock]) -> None:
    """Print the speed of the second training, and how long the warm-ups of both took."""
    warm_ups = " and ".join(f"{clock.warm_up_seconds:.0f} s" for clock in clocks)
    print(f"{name}: {clocks[1].tokens_per_second:,.0f} tokens/s, warm-ups {warm_ups}", flush=True)


def main() -> None:
    """Measure the speed of both, then train each for the same time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="text file or folder; or sentences, for a test on a CPU")
    parser.add_argument("--config", default="configs/masked-lm-captions.yaml")
    parser.add_argument("--group-stride", type=int)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--speed-seconds", type=float, default=30)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--group-by-length", action="store_true", help="batches of BERT of similar lengths")
    parser.add_argument("--learning-rates", type=float, nargs="+", default=[1e-3, 2e-3], help="of BERT")
    parser.add_argument("--changes", nargs="*", default=[], help="changes of our config")
    measure(parser.parse_args())


def measure(arguments: argparse.Namespace) -> None:
    """Print tokens per second, and masked accuracies at equal time."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with tempfile.TemporaryDirectory() as name:
        folder, long = Path(name), 1_000_000
        first = make_config(arguments, folder / "speed", 0, long)
        data = MaskedLMTask.load_data(first)
        task = MaskedLMTask(first, data)
        batch_size = first.training.batch_size
        rows = max(1, round(tokens_per_step(task, batch_size) / float(task.train.lengths.mean())))
        tokens = tokens_per_step(task, batch_size)
        common: dict[str, Any] = {"rows": rows, "grouped": arguments.group_by_length}
        print(f"batches of {rows} sentences on average; after a warm-up of {WARM_UP_STEPS} steps", flush=True)
        clocks = [Clock(seconds, WARM_UP_STEPS) for seconds in (0, arguments.speed_seconds)]
        for i, clock in enumerate(clocks):
            train_ours(make_config(arguments, folder / f"speed-{i}", 0, long), data, clock, tokens)
        print_speed("ours", clocks)
        ours, theirs = clocks[1], {}
        for compiled in variants():
            options = {**common, "compiled": compiled, "rate": 1e-3, "seed": 0, "steps": long}
            clocks = [Clock(seconds, WARM_UP_STEPS) for seconds in (0, arguments.speed_seconds)]
            for clock in clocks:
                train_bert(task, folder / "bert", clock, **options)
            print_speed(f"BertForMaskedLM, {'compiled' if compiled else 'not compiled'}", clocks)
            theirs[compiled] = clocks[1]
        fastest = max(clock.tokens_per_second for clock in theirs.values())
        print(f"ratio {ours.tokens_per_second / fastest:.2f}")
        print(f"masked accuracy on the validation set after at most {arguments.seconds:.0f} s of training")
        ours_steps = ours.predict_steps(arguments.seconds)
        steps = {key: clock.predict_steps(arguments.seconds) for key, clock in theirs.items()}
        compiled = max(steps, key=lambda key: steps[key])  # compilation takes longer than a short training
        bert_steps = steps[compiled]
        print(f"BertForMaskedLM is {'compiled' if compiled else 'not compiled'}, which gives it more steps", flush=True)
        scores: dict[str, list[float]] = {"ours": []}
        rates = arguments.learning_rates
        for seed in range(arguments.seeds):
            config = make_config(arguments, folder / f"ours-{seed}", seed, ours_steps)
            clock = Clock(arguments.seconds)
            predictor = train_ours(config, data, clock, tokens)
            scores["ours"].append(accuracy(predictor.model, task, device))
            print(
                f"seed {seed}  ours {scores['ours'][-1]:.2%}  {clock.steps:,} steps, {clock.elapsed:.0f} s", flush=True
            )
            for rate in rates:
                options = {**common, "compiled": compiled, "rate": rate, "seed": seed, "steps": bert_steps}
                clock = Clock(arguments.seconds)
                model = train_bert(task, folder / "bert", clock, **options)
                values = scores.setdefault(f"BERT, learning rate {rate:g}", [])
                values.append(accuracy(model, task, device))
                counts = f"{clock.steps:,} steps, {clock.elapsed:.0f} s"
                print(f"seed {seed}  BERT {values[-1]:.2%}  {counts}, learning rate {rate:g}", flush=True)
            rates = [max(rates, key=lambda rate: scores[f"BERT, learning rate {rate:g}"][0])]
        for name, values in scores.items():
            print(f"{name}: {statistics.mean(values):.2%} ({min(values):.2%} to {max(values):.2%})")


if __name__ == "__main__":
    main()

"""The training loop and its parts: optimizers, schedules, averaging, checkpoints, distributed training, hooks."""

"""Training on several processes started by torchrun, with DDP or FSDP2.

A single process is a group of world size 1, in which every collective is the identity.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


@dataclass(frozen=True)
class ProcessGroup:
    """The processes that train one model."""

    rank: int
    world_size: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and prints."""
        return self.rank == 0

    def sum(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Sum each tensor over all processes, in place."""
        if self.world_size > 1:
            for tensor in tensors.values():
                dist.all_reduce(tensor)
        return tensors

    def max(self, values: Sequence[int]) -> list[int]:
        """Return the maximum of each value over all processes."""
        if self.world_size == 1:
            return list(values)
        tensor = torch.tensor(values, device=self.device)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return list(tensor.tolist())

    def barrier(self) -> None:
        """Wait until every process is here."""
        if self.world_size > 1:
            dist.barrier()

    def synchronize_batch_norm(self, model: nn.Module) -> None:
        """Let batch normalization use the statistics of all processes, where the device supports it (CUDA)."""
        if self.world_size == 1 or self.device.type != "cuda":
            return
        nn.SyncBatchNorm.convert_sync_batchnorm(model)
        for module in model.modules():
            if isinstance(module, nn.SyncBatchNorm) and module.num_batches_tracked is None:  # which it needs
                count = torch.zeros((), dtype=torch.long, device=self.device)
                module.register_buffer("num_batches_tracked", count, persistent=False)

    def average_running_statistics(self, model: nn.Module, *states: dict[str, Tensor]) -> None:
        """Average the running statistics of batch normalization over all processes, in the model and in state dicts.

        Updates of running statistics are linear, so it does not matter when they are averaged.
        """
        if self.world_size == 1:
            return
        for prefix, module in model.named_modules():
            if isinstance(module, _BatchNorm) and module.running_mean is not None:
                for name in ("running_mean", "running_var"):
                    for tensor in (getattr(module, name), *(state[f"{prefix}.{name}"] for state in states)):
                        dist.all_reduce(tensor)
                        tensor /= self.world_size

    def wrap(self, model: nn.Module, *, fsdp: bool) -> nn.Module:
        """Return the module to call in training; `model` keeps the weights."""
        if self.world_size == 1:
            return model
        if fsdp:
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard

            mesh = init_device_mesh(self.device.type, (self.world_size,))
            for layers in (module for module in model.modules() if isinstance(module, nn.ModuleList)):
                for layer in layers:
                    fully_shard(layer, mesh=mesh)
            fully_shard(model, mesh=mesh)
            return model
        ddp: Any = nn.parallel.DistributedDataParallel
        device_ids = [self.device] if self.device.type == "cuda" else None
        # since torch 2.13 broadcast_buffers has another name
        has_new_name = "forward_sync_buffers" in signature(ddp).parameters
        broadcast = "forward_sync_buffers" if has_new_name else "broadcast_buffers"
        return ddp(model, device_ids=device_ids, **{broadcast: False})

    def reshard(self, model: nn.Module) -> None:
        """Free the weights FSDP gathered for a forward pass without a backward pass; the next pass would reuse them."""
        reshard = getattr(model, "reshard", None)
        if callable(reshard):
            reshard()


def rank_and_world_size() -> tuple[int, int]:
    """Return the rank of this process and the number of processes, from torchrun; a single process has rank 0."""
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    return (int(os.environ.get("RANK", "0")) if world_size > 1 else 0), world_size


def is_main_process() -> bool:
    """Whether this process writes files and prints."""
    return rank_and_world_size()[0] == 0


@contextmanager
def process_group(device: torch.device, timeout: timedelta | None = None) -> Iterator[ProcessGroup]:
    """Join the processes torchrun started; an existing process group is used and not destroyed.

    `timeout` is the time that a process waits for the others (default: that of torch).
    """
    rank, world_size = rank_and_world_size()
    if world_size == 1:
        yield ProcessGroup(0, 1, device)
        return
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    created = not dist.is_initialized()
    if created:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=timeout)
    try:
        yield ProcessGroup(rank, world_size, device)
    finally:
        if created:
            dist.destroy_process_group()


def full_tensors(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Gather sharded tensors and copy all to the CPU; every process must call this."""
    return {
        name: (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().cpu()
        for name, tensor in tensors.items()
    }


def local_tensors(tensors: list[Tensor]) -> list[Tensor]:
    """Return the local shards of sharded tensors, and other tensors as they are."""
    return [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors]


def distribute_like(tensor: Tensor, reference: Any) -> Tensor:
    """Move a tensor to the device of `reference`, sharded as `reference` is."""
    tensor = tensor.to(reference.device)
    if hasattr(reference, "device_mesh"):
        from torch.distributed.tensor import distribute_tensor

        return distribute_tensor(tensor, reference.device_mesh, reference.placements)
    return tensor

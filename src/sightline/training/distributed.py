"""Several processes, or one: what they share, and how the model is spread over them.

Started by torchrun, every process works on its part of each batch; started plainly, there is one part. Wrapping is DDP
(every process a whole copy) or FSDP2 (every process a share of the weights).
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


@dataclass(frozen=True)
class Group:
    """The processes that train together; alone, every exchange is the identity."""

    rank: int
    world_size: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and speaks to the user."""
        return self.rank == 0

    def sum(self, sums: dict[str, Tensor]) -> dict[str, Tensor]:
        """Each tensor summed over all processes."""
        if self.world_size > 1:
            for tensor in sums.values():
                dist.all_reduce(tensor)
        return sums

    def largest(self, number: int) -> int:
        """The largest that any process has."""
        if self.world_size == 1:
            return number
        tensor = torch.tensor(number, device=self.device)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return int(tensor)

    def wait(self) -> None:
        """Until all processes are here."""
        if self.world_size > 1:
            dist.barrier()

    def wrap(self, model: nn.Module, *, fsdp: bool) -> nn.Module:
        """The model as it is to be called in training; `model` itself keeps the weights."""
        if self.world_size == 1:
            return model
        if fsdp:
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard

            mesh = init_device_mesh(self.device.type, (self.world_size,))
            for layer in (layer for part in model.modules() if isinstance(part, nn.ModuleList) for layer in part):
                fully_shard(layer, mesh=mesh)
            fully_shard(model, mesh=mesh)
            return model
        ids = [self.device] if self.device.type == "cuda" else None
        kind: Any = nn.parallel.DistributedDataParallel
        new = "forward_sync_buffers" in signature(kind).parameters  # since torch 2.13
        return kind(model, device_ids=ids, **{"forward_sync_buffers" if new else "broadcast_buffers": False})

    def settle(self, model: nn.Module) -> None:
        """After a forward pass without a backward one: let go of weights that were gathered for it, for the next pass
        would take them as they were then."""
        reshard = getattr(model, "reshard", None)
        if callable(reshard):
            reshard()


def rank_and_world_size() -> tuple[int, int]:
    """Which of how many processes this one is, as torchrun says; alone it is the first, whatever else is said."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    return (int(os.environ.get("RANK", "0")) if world > 1 else 0), world


def is_main_process() -> bool:
    """Whether this process writes files and speaks to the user."""
    return rank_and_world_size()[0] == 0


@contextmanager
def group(device: torch.device) -> Iterator[Group]:
    """The processes torchrun started, or this one alone; a process group that is there already is used, and left."""
    rank, world = rank_and_world_size()
    if world == 1:
        yield Group(0, 1, device)
        return
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    ours = not dist.is_initialized()
    if ours:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Group(rank, world, device)
    finally:
        if ours:
            dist.destroy_process_group()


def gathered(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Whole tensors on the CPU; where weights are shared out, every process must call this."""
    return {
        name: (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().cpu()
        for name, tensor in tensors.items()
    }


def like(tensor: Tensor, other: Any) -> Tensor:
    """The tensor where and as `other` lies: on its device, and shared out as it is."""
    tensor = tensor.to(other.device)
    if hasattr(other, "device_mesh"):
        from torch.distributed.tensor import distribute_tensor

        return distribute_tensor(tensor, other.device_mesh, other.placements)
    return tensor

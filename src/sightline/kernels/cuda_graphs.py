"""Replay of small GPU computations as CUDA graphs, which removes the cost of launching each kernel from Python."""

import threading
from collections.abc import Callable
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn


def capture(function: Callable[[], Tensor], device: torch.device) -> Callable[[], Tensor]:
    """Capture a function without arguments as a CUDA graph and return a function that replays it.

    The function must read and write tensors that stay at the same addresses. Each replay overwrites the tensor returned
    before. Off CUDA the function itself, the reference version, is returned.
    """
    if device.type != "cuda":
        return function
    with torch.cuda.device(device):
        graph, stream = torch.cuda.CUDAGraph(), _capture_stream(device)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            function()  # two warm-up calls allocate workspaces and tune kernels
            function()
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                output = function()
            finally:
                graph.capture_end()
        torch.cuda.current_stream().wait_stream(stream)

    def replay() -> Tensor:
        graph.replay()
        return output

    return replay


@cache
def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    """One stream for all captures: torch keeps a workspace for each stream."""
    return torch.cuda.Stream(device)


Predicate = Callable[[Any], bool]


class GraphPool:
    """Captured graphs that are not in use, per module. They are freed with the module.

    A graph is any object with `num_elements`, the number of elements of its buffers.
    """

    def __init__(self, *, max_graphs: int, max_elements: int):
        self.max_graphs, self.max_elements = max_graphs, max_elements
        self.free: WeakKeyDictionary[nn.Module, list[Any]] = WeakKeyDictionary()
        """Free graphs of each module, the least recently used first."""
        self.lock = threading.RLock()

    def take(self, module: nn.Module, *, is_valid: Predicate, fits: Predicate, make: Callable[[], Any]) -> Any:
        """The smallest free graph that fits, or a new one. Graphs that are no longer valid are freed."""
        with self.lock:
            free = [graph for graph in self.free.get(module, []) if is_valid(graph)]
            fitting = [graph for graph in free if fits(graph)]
            taken = min(fitting, key=lambda graph: graph.num_elements) if fitting else make()
            self.free[module] = [graph for graph in free if graph is not taken]
            return taken

    def give_back(self, module: nn.Module, graph: Any) -> None:
        """Return a graph to the pool. The least recently used ones are freed when the pool is full."""
        with self.lock:
            free = self.free.setdefault(module, [])
            free.append(graph)
            while len(free) > self.max_graphs or sum(graph.num_elements for graph in free) > self.max_elements:
                del free[0]

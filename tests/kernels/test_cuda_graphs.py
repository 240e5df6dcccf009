import gc
import weakref
from dataclasses import dataclass

import torch
from torch import nn
from torch.testing import assert_close

from sightline.kernels.cuda_graphs import GraphPool, capture


@dataclass(eq=False)
class Graph:
    num_elements: int
    is_valid: bool = True


def take(pool, module, minimum):
    return pool.take(
        module,
        is_valid=lambda graph: graph.is_valid,
        fits=lambda graph: graph.num_elements >= minimum,
        make=lambda: Graph(minimum),
    )


def test_capture_replays_the_function(device):
    x = torch.zeros(5, device=device)
    replay = capture(lambda: x.sin() + 1, x.device)
    for value in (0.5, 2.0):
        x.fill_(value)
        assert_close(replay(), x.sin() + 1)


def test_the_smallest_free_graph_that_fits_is_reused():
    pool, module = GraphPool(max_graphs=8, max_elements=100), nn.Linear(1, 1)
    large, small = Graph(7), Graph(5)
    for graph in (large, small):
        pool.give_back(module, graph)
    assert take(pool, module, 3) is small
    assert take(pool, module, 3) is large
    assert take(pool, module, 3).num_elements == 3
    assert take(pool, nn.Linear(1, 1), 5) is not small


def test_invalid_graphs_are_freed():
    pool, module = GraphPool(max_graphs=8, max_elements=100), nn.Linear(1, 1)
    pool.give_back(module, Graph(5, is_valid=False))
    take(pool, module, 3)
    assert pool.free[module] == []


def test_the_pool_frees_the_least_recently_used_graphs():
    pool, module = GraphPool(max_graphs=2, max_elements=10), nn.Linear(1, 1)
    graphs = [Graph(3), Graph(3), Graph(3), Graph(8)]
    for graph in graphs[:3]:
        pool.give_back(module, graph)
    assert pool.free[module] == graphs[1:3]
    pool.give_back(module, graphs[3])
    assert pool.free[module] == graphs[3:]


def test_graphs_are_freed_with_their_module():
    pool, module = GraphPool(max_graphs=2, max_elements=10), nn.Linear(1, 1)
    graph = Graph(3)
    reference = weakref.ref(graph)
    pool.give_back(module, graph)
    del graph, module
    gc.collect()
    assert reference() is None

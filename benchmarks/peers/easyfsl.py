"""The prototypical network of easyfsl: its sampler, its `evaluate`, and the training loop of its tutorials.

Two patches are needed for torch 2.13. If torchvision was built for another torch, its operators are declared only; none
of them is used here. TaskSampler passes `torch.utils.data.Sampler` an argument that torch does not take any more.
"""

import importlib
import importlib.util
import re
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Sampler


def patch() -> torch.library.Library | None:
    """Apply both patches; the returned library must be kept alive."""
    Sampler.__init__ = lambda self, data_source=None: None
    try:
        importlib.import_module("torchvision")
    except RuntimeError:  # its operators are missing
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
    else:
        return None
    folder = importlib.util.find_spec("torchvision").submodule_search_locations[0]
    text = Path(folder, "_meta_registrations.py").read_text()
    library = torch.library.Library("torchvision", "DEF")
    for name in re.findall(r'register_(?:meta|fake)\("(?:torchvision::)?(\w+)"', text):
        library.define(f"{name}(Tensor x) -> Tensor")
    return library


LIBRARY = patch()

from easyfsl.datasets import FewShotDataset  # noqa: E402
from easyfsl.methods import PrototypicalNetworks  # noqa: E402
from easyfsl.samplers import TaskSampler  # noqa: E402
from easyfsl.utils import evaluate  # noqa: E402

from benchmarks.peers import serve  # noqa: E402


class Images(FewShotDataset):
    """Normalized images in memory."""

    def __init__(self, folder: Path, split: str):
        with np.load(folder / f"{split}.npz") as file:
            self.images, self.labels = torch.from_numpy(file["images"]), file["labels"].tolist()

    def __getitem__(self, item: int) -> tuple[Tensor, int]:
        return self.images[item], self.labels[item]

    def __len__(self) -> int:
        return len(self.labels)

    def get_labels(self) -> list[int]:
        return self.labels


def conv4(folder: Path) -> nn.Module:
    """The same layers with the same weights."""
    blocks = [
        nn.Sequential(
            nn.Conv2d(ins, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(2)
        )
        for ins in (1, 64, 64, 64)
    ]
    backbone = nn.Sequential(*blocks, nn.Flatten())
    with np.load(folder / "weights.npz") as file:
        backbone.load_state_dict({name: torch.from_numpy(file[name]) for name in file.files}, strict=False)
    return backbone


def loader(images: Images, way: int, shot: int, query: int, episodes: int) -> DataLoader:
    """A data loader as in the tutorials of easyfsl, without worker processes."""
    sampler = TaskSampler(images, n_way=way, n_shot=shot, n_query=query, n_tasks=episodes)
    return DataLoader(images, batch_sampler=sampler, collate_fn=sampler.episodic_collate_fn)


def train(model: PrototypicalNetworks, optimizer: torch.optim.Optimizer, episodes: DataLoader, device: str) -> None:
    """A training loop as in the tutorials of easyfsl."""
    model.train()
    for *tensors, _ in episodes:
        support, labels, query, query_labels = (tensor.to(device) for tensor in tensors)
        optimizer.zero_grad()
        model.process_support_set(support, labels)
        loss = nn.functional.cross_entropy(model(query), query_labels)
        loss.backward()
        optimizer.step()
        loss.item()  # for the log, as in the tutorials


class Jobs:
    """Trains and evaluates with the images and weights in a folder."""

    def __init__(self, folder: Path, device: str):
        self.evaluated, self.trained = (PrototypicalNetworks(conv4(folder)).to(device) for _ in range(2))
        self.optimizer = torch.optim.AdamW(self.trained.parameters(), lr=1e-3)
        self.images = {split: Images(folder, split) for split in ("train", "test")}
        self.device = device

    def __call__(self, job: str, **shape: int) -> dict[str, float]:
        """Seconds of `train` or `evaluate`, and the accuracy of the latter."""
        episodes = loader(self.images["test" if job == "evaluate" else "train"], **shape)
        start, accuracy = time.perf_counter(), 0.0
        if job == "evaluate":
            accuracy = evaluate(self.evaluated, episodes, device=self.device, use_tqdm=False)
        else:
            train(self.trained, self.optimizer, episodes, self.device)
        return {"seconds": time.perf_counter() - start, "accuracy": accuracy}


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[1]))
    serve("easyfsl", Jobs(Path(sys.argv[3]), sys.argv[2]))

"""easyfsl 1.5 at work for `few_shot_speed.py`, run by the Python of an environment of its own.

It reads an order in JSON from each line of its input, carries it out and answers with a line of JSON.

Two patches make it run beside torch 2.13. Where its torchvision was built for another torch, its operators, none of
which is used here, are only declared; and its TaskSampler hands `torch.utils.data.Sampler` an argument that torch no
longer takes.
"""

import importlib
import importlib.util
import json
import re
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Sampler


def patch() -> torch.library.Library | None:
    """Both; what comes back must be kept."""
    Sampler.__init__ = lambda self, data_source=None: None
    try:
        importlib.import_module("torchvision")
    except RuntimeError:  # its operators are not there
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
    else:
        return None
    home = importlib.util.find_spec("torchvision").submodule_search_locations[0]
    text = Path(home, "_meta_registrations.py").read_text()
    library = torch.library.Library("torchvision", "DEF")
    for name in re.findall(r'register_(?:meta|fake)\("(?:torchvision::)?(\w+)"', text):
        library.define(f"{name}(Tensor x) -> Tensor")
    return library


KEPT = patch()

from easyfsl.datasets import FewShotDataset  # noqa: E402
from easyfsl.methods import PrototypicalNetworks  # noqa: E402
from easyfsl.samplers import TaskSampler  # noqa: E402
from easyfsl.utils import evaluate  # noqa: E402


class Images(FewShotDataset):
    """Images that lie in memory as the model takes them."""

    def __init__(self, folder: Path, part: str):
        with np.load(folder / f"{part}.npz") as file:
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
    """As its tutorials make one; on two cores processes that only read would be in the way."""
    sampler = TaskSampler(images, n_way=way, n_shot=shot, n_query=query, n_tasks=episodes)
    return DataLoader(images, batch_sampler=sampler, collate_fn=sampler.episodic_collate_fn)


def train(model: PrototypicalNetworks, optimizer: torch.optim.Optimizer, episodes: DataLoader, device: str) -> None:
    """As its tutorials train."""
    model.train()
    for *tensors, _ in episodes:
        support, labels, query, answers = (tensor.to(device) for tensor in tensors)
        optimizer.zero_grad()
        model.process_support_set(support, labels)
        loss = nn.functional.cross_entropy(model(query), answers)
        loss.backward()
        optimizer.step()
        loss.item()  # they log it


def main() -> None:
    """Wait for orders."""
    folder, threads, device = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(threads)
    judged, learner = (PrototypicalNetworks(conv4(folder)).to(device) for _ in range(2))
    optimizer = torch.optim.AdamW(learner.parameters(), lr=1e-3)
    sets = {part: Images(folder, part) for part in ("train", "test")}
    print(json.dumps({"torch": torch.__version__}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        verb, shape = order.pop("do"), order
        episodes = loader(sets["test" if verb == "evaluate" else "train"], **shape)
        began, answer = time.perf_counter(), {}
        if verb == "evaluate":
            answer["accuracy"] = evaluate(judged, episodes, device=device, use_tqdm=False)
        else:
            train(learner, optimizer, episodes, device)
        print(json.dumps({"seconds": time.perf_counter() - began, **answer}), flush=True)


if __name__ == "__main__":
    main()

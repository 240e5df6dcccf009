import os
import signal

import pytest
import torch

from class_folders import png, write_files, write_zip
from sightline.data import load
from sightline.data.images.datasets import ImageFiles
from sightline.data.images.streaming import stream
from sightline.errors import SightlineError

CPU = torch.device("cpu")
BATCHES = [torch.tensor([4, 0, 2]), torch.tensor([1, 3, 5])]
FILES = {f"{name}/{i}.png": png(20 * i + label) for label, name in enumerate("ab") for i in range(3)}


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("source", ["memory", "folder", "zip"])
def test_batches_have_the_images_of_their_indices(tmp_path, source, num_workers):
    path = write_zip(tmp_path / "x.zip", FILES) if source == "zip" else write_files(tmp_path / "x", FILES)
    images = load(path, max_memory=1 << 20 if source == "memory" else 0).train
    batches = list(stream(images, iter(BATCHES), num_workers, CPU))
    assert [labels.tolist() for _, labels in batches] == [[1, 0, 0], [0, 1, 1]]
    assert [pixels[:, 0, 0, 0].tolist() for pixels, _ in batches] == [[21, 0, 40], [20, 1, 41]]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_unreadable_image_is_reported(tmp_path, num_workers):
    path = write_files(tmp_path, {**FILES, "a/1.png": b"not an image"})
    images = load(path, size=5, channels=1, max_memory=0).train
    with pytest.raises(SightlineError, match=r"a/1.png must be a complete PNG"):
        list(stream(images, iter(BATCHES), num_workers, CPU))


def test_a_killed_worker_is_reported(tmp_path, monkeypatch):
    parent, read = os.getpid(), ImageFiles.read

    def read_or_die(self, index):
        if index == 3 and os.getpid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
        return read(self, index)

    monkeypatch.setattr(ImageFiles, "read", read_or_die)
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.1)
    images = load(write_files(tmp_path, FILES), max_memory=0).train
    handler = signal.getsignal(signal.SIGCHLD)
    with pytest.raises(SightlineError, match=r"must not be killed, got: DataLoader worker .*; free memory, or"):
        list(stream(images, iter(BATCHES), 1, CPU))
    assert signal.getsignal(signal.SIGCHLD) is handler  # torch's handler would raise the error anywhere in the process


@pytest.mark.parametrize("error", [ConnectionResetError, EOFError, FileNotFoundError])
def test_a_worker_killed_while_sending_a_batch_is_reported(tmp_path, monkeypatch, error):
    def take_over(self):
        raise error

    monkeypatch.setattr("torch.utils.data.dataloader._MultiProcessingDataLoaderIter._try_get_data", take_over)
    images = load(write_files(tmp_path, FILES), max_memory=0).train
    with pytest.raises(SightlineError, match=r"must not be killed, got: DataLoader worker exited while sending"):
        list(stream(images, iter(BATCHES), 1, CPU))

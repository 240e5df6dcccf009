import numpy as np
import pytest

from sightline.data import load
from sightline.errors import SightlineError


def records(count, num_labels, classes=3, seed=0):
    bytes_ = np.random.default_rng(seed).integers(0, 256, (count, num_labels + 3072), dtype=np.uint8)
    bytes_[:, num_labels - 1] = np.arange(count) % classes
    return bytes_


def test_cifar_10_is_read(tmp_path):
    for number in range(1, 6):
        (tmp_path / f"data_batch_{number}.bin").write_bytes(records(4, 1, seed=number).tobytes())
    (tmp_path / "test_batch.bin").write_bytes(records(3, 1).tobytes())
    (tmp_path / "batches.meta.txt").write_text("airplane\nautomobile\nbird\n\n")
    splits = load(tmp_path)
    assert splits.format == "CIFAR binary files"
    assert splits.train.classes == ("airplane", "automobile", "bird")
    assert (len(splits.train), len(splits.test)) == (20, 3)
    assert splits.train.pixels[4].flatten().tolist() == records(4, 1, seed=2)[0, 1:].tolist()
    assert splits.train.labels[:5].tolist() == [0, 1, 2, 0, 0]
    assert load(tmp_path, size=16, channels=1).train.pixels.shape == (20, 1, 16, 16)


def test_cifar_100_is_read_with_its_fine_labels(tmp_path):
    (tmp_path / "train.bin").write_bytes(records(5, 2).tobytes())
    (tmp_path / "test.bin").write_bytes(records(3, 2).tobytes())
    (tmp_path / "fine_label_names.txt").write_text("apple\nfish\nbaby\n")
    splits = load(tmp_path)
    assert splits.train.labels.tolist() == [0, 1, 2, 0, 1]
    assert splits.train.classes == ("apple", "fish", "baby")
    (tmp_path / "test.bin").unlink()
    (tmp_path / "fine_label_names.txt").unlink()
    assert load(tmp_path).test is None
    assert load(tmp_path).train.classes == ("0", "1", "2")


@pytest.mark.parametrize("cut", [1, None])
def test_incomplete_records_are_rejected(cut, tmp_path):
    (tmp_path / "data_batch_1.bin").write_bytes(records(3, 1).tobytes()[: -cut if cut else 0])
    with pytest.raises(SightlineError, match=r"data_batch_1.bin must have records of 3073 bytes .* got"):
        load(tmp_path)


def test_labels_without_a_name_are_rejected(tmp_path):
    (tmp_path / "data_batch_1.bin").write_bytes(records(12, 1, classes=12).tobytes())
    (tmp_path / "batches.meta.txt").write_text("\n".join("abcdefghij"))
    with pytest.raises(SightlineError, match=r"labels of .* must be 0 to 9 for 10 class names, got 11"):
        load(tmp_path)

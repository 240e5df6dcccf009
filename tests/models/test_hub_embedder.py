import json
import sys

import pytest
import torch

from sightline.models.embedders import embedder

transformers = pytest.importorskip("transformers")

SIZE, PATCH, WIDTH = 21, 7, 12
VIT = {
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 13,
    "image_size": SIZE,
    "patch_size": PATCH,
}
TEXT = {"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8, "vocab_size": 11}
PAIR = {"vision_config": VIT, "text_config": {**TEXT, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}}
FORM = {"size": {"height": SIZE, "width": SIZE}, "image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.25, 0.3]}


def saved(folder, model, form=FORM):
    """The model, random but alive, in a folder as its makers would leave it."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) / 7)
    model.eval().save_pretrained(folder)
    if form is not None:
        (folder / "preprocessor_config.json").write_text(json.dumps(form))
    return model


def pictures(count, size=SIZE):
    return torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8)


def wanted(pixels):
    mean, std = (torch.tensor(FORM[name]).view(3, 1, 1) for name in ("image_mean", "image_std"))
    return (pixels / 255 - mean) / std


MODELS = {  # what to save, what its whole is, and its grid
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
        {"embedding_size": 5, "hidden_sizes": [5, WIDTH], "depths": [1, 1], "layer_type": "basic"},
        "pooled",
        (3, 3),
    ),
    "convnext": (
        "ConvNextForImageClassification",
        "ConvNextConfig",
        {"hidden_sizes": [5, WIDTH], "depths": [1, 1], "num_stages": 2},
        "pooled",
        (2, 2),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_places_and_whole_are_the_model_s(name, tmp_path):
    kind, config, sizes, whole, grid = MODELS[name]
    size = sizes.get("image_size", SIZE)
    theirs = saved(
        tmp_path,
        getattr(transformers, kind)(getattr(transformers, config)(**sizes)),
        {**FORM, "size": {"shortest_edge": size}},
    )
    ours, pixels = embedder(tmp_path), pictures(3, size)
    assert (ours.width, ours.grid, ours.image_size, ours.channels) == (WIDTH, grid, size, 3)
    inner = theirs.vision_model if "text_config" in sizes else getattr(theirs, "base_model", theirs)
    with torch.no_grad():
        seen = inner(pixel_values=wanted(pixels))
    tokens = seen.last_hidden_state
    places = tokens.flatten(2).mT if tokens.dim() == 4 else tokens[:, -grid[0] * grid[1] :]
    expected = seen.pooler_output.flatten(1) if whole == "pooled" else tokens[:, 0]
    torch.testing.assert_close(ours.embed(pixels), places, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours.embed_pooled(pixels), expected, rtol=1e-4, atol=1e-5)
    assert not ours.embed(pixels).requires_grad


@pytest.fixture
def vit(tmp_path):
    return saved(tmp_path, transformers.ViTModel(transformers.ViTConfig(**VIT)))


@pytest.mark.parametrize(
    ("form", "mean", "std"),
    [
        ({}, [127.5, 102.0, 76.5], [51.0, 63.75, 76.5]),
        ({"do_rescale": False, "image_mean": 127, "image_std": 128}, [127.0] * 3, [128.0] * 3),
        ({"do_normalize": False}, [0.0] * 3, [255.0] * 3),
        ({"do_flip_channel_order": True}, [0.0] * 3, [255.0] * 3),
        ({"rescale_factor": 1 / 127.5, "rescale_offset": True, "do_normalize": False}, [127.5] * 3, [127.5] * 3),
        ({"include_top": True}, [127.5, 102.0, 76.5], [10.2, 15.9375, 22.95]),
    ],
)
def test_levels_are_read_as_the_files_write_them(vit, tmp_path, form, mean, std):
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({**FORM, **form}))
    ours = embedder(tmp_path)
    torch.testing.assert_close(ours.mean.flatten(), torch.tensor(mean))
    torch.testing.assert_close(ours.std.flatten(), torch.tensor(std))


@pytest.mark.parametrize(
    "form",
    [
        {"size": SIZE},
        {"size": [SIZE, SIZE]},
        {"size": {"shortest_edge": 24}, "do_center_crop": True, "crop_size": SIZE},
        {"size": {"shortest_edge": 24}, "do_center_crop": True, "crop_size": {"height": SIZE, "width": SIZE}},
        {"size": None},
        {"size": {"longest_edge": 24}},
    ],
)
def test_sides_are_read_as_the_files_write_them(vit, tmp_path, form):
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({**FORM, **form}))
    assert embedder(tmp_path).image_size == SIZE


def test_blue_comes_first_where_the_files_say_so(vit, tmp_path):
    pixels, plain = pictures(2), {**FORM, "do_normalize": True, "image_mean": 0.5, "image_std": 0.5}
    found = []
    for flips in (False, True):
        (tmp_path / "preprocessor_config.json").write_text(json.dumps({**plain, "do_flip_channel_order": flips}))
        found.append(embedder(tmp_path))
    torch.testing.assert_close(found[1].embed(pixels), found[0].embed(pixels.flip(1)))


def test_a_form_inside_that_of_a_pair_is_found(vit, tmp_path):
    (tmp_path / "preprocessor_config.json").unlink()
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": FORM}))
    assert embedder(tmp_path).mean.flatten().tolist() == [127.5, 102.0, 76.5]


def test_half_precision_is_made_whole(tmp_path):
    saved(tmp_path, transformers.Dinov2Model(transformers.Dinov2Config(**VIT)).half())
    assert embedder(tmp_path).embed(pictures(1)).dtype == torch.float32


def test_a_name_on_the_hub_is_fetched(vit, tmp_path, monkeypatch):
    asked = {}
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, **how: asked.update({name: how}) or tmp_path)
    assert embedder("someone/vit").name == "someone/vit"
    assert not any(pattern.endswith((".bin", ".py")) for pattern in asked["someone/vit"]["allow_patterns"])


def test_a_name_that_is_not_on_the_hub_is_refused(monkeypatch):
    def offline(*args, **kwargs):
        raise OSError("no network")

    monkeypatch.setattr("huggingface_hub.snapshot_download", offline)
    with pytest.raises(ValueError, match="must be a folder or a model on the hub, got 'someone/vit': no network"):
        embedder("someone/vit")


def test_without_transformers_the_extra_is_named(vit, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ValueError, match=r"pip install 'sightline\[hub\]'"):
        embedder(tmp_path)


def test_weights_beside_a_hub_model_are_refused(vit, tmp_path):
    with pytest.raises(ValueError, match="weights must be left out for a Hugging Face model"):
        embedder(tmp_path, weights="some.pth")


@pytest.mark.parametrize(
    ("form", "message"),
    [
        (None, "got no preprocessor_config.json in .*; save its image processor beside it"),
        ([3], "got no preprocessor_config.json"),
        ({**FORM, "image_mean": [0.5, 0.5]}, r"image_mean must be 3 numbers, got \[0.5, 0.5\]"),
        ({**FORM, "image_std": [0.5, 0.5, "x"]}, "image_std must be 3 numbers"),
        ({"size": SIZE}, "image_mean must be 3 numbers"),
        ({**FORM, "image_std": [0.5, 0.5, 0]}, "image_std must be above 0"),
        ({**FORM, "rescale_factor": 0}, "rescale_factor must be a number above 0, got 0"),
        ({**FORM, "size": 1025}, "image_size must be at most 1,024, got 1025"),
        ({**FORM, "size": 28}, "must take images of 28 x 28, got an error"),
    ],
)
def test_a_form_that_is_none_is_refused(vit, tmp_path, form, message):
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(form))
    if form is None:
        (tmp_path / "preprocessor_config.json").unlink()
    with pytest.raises(ValueError, match=message):
        embedder(tmp_path)


def test_a_model_that_hides_patches_by_lot_is_refused(tmp_path):
    saved(tmp_path, transformers.ViTMAEModel(transformers.ViTMAEConfig(**VIT)))
    with pytest.raises(ValueError, match="must see the same in the same image"):
        embedder(tmp_path)


def test_a_model_of_text_is_refused(tmp_path):
    saved(tmp_path, transformers.BertModel(transformers.BertConfig(**TEXT)))
    with pytest.raises(ValueError, match="must take images of 21 x 21, got an error"):
        embedder(tmp_path)


def test_missing_weights_are_refused_but_for_the_pooling(vit, tmp_path):
    import safetensors.torch

    path = tmp_path / "model.safetensors"
    state = safetensors.torch.load_file(path)
    safetensors.torch.save_file({k: v for k, v in state.items() if not k.startswith("pooler.")}, path, {"format": "pt"})
    pixels = pictures(1)
    with torch.no_grad():
        expected = vit(pixel_values=wanted(pixels)).last_hidden_state[:, 0]
    torch.testing.assert_close(embedder(tmp_path).embed_pooled(pixels), expected)
    safetensors.torch.save_file({k: v for k, v in state.items() if k != "layernorm.bias"}, path, {"format": "pt"})
    with pytest.raises(ValueError, match="must hold all weights of the model, got none for layernorm"):
        embedder(tmp_path)


def test_pickled_weights_are_not_read(vit, tmp_path):
    (tmp_path / "model.safetensors").unlink()
    torch.save(vit.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match="must hold a vision model of Hugging Face"):
        embedder(tmp_path)

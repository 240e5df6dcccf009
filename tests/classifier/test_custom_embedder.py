"""Classifiers with a torch module or a callable as their image encoder."""

import copy
import pickle

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from sightline import FewShotClassifier
from sightline.errors import SightlineError, SightlineWarning
from sightline.models.embedders import CustomEmbedder
from sightline.models.few_shot import FewShot
from sightline.models.few_shot_config import FewShotConfig

SIZE = 8
OPTIONS = {"image_size": SIZE, "channels": 1, "mean": 0.0, "std": 1.0}


def quarters(images):
    """The mean of each quarter of the images."""
    return nn.functional.adaptive_avg_pool2d(images, 2).flatten(1)


def make_quarters():
    """One image for each bright quarter."""
    images = torch.zeros(4, 1, SIZE, SIZE, dtype=torch.uint8)
    for i in range(4):
        images[i, :, i // 2 * 4 : i // 2 * 4 + 4, i % 2 * 4 : i % 2 * 4 + 4] = 200
    return images


def fit(embedder):
    images = make_quarters()
    return FewShotClassifier(embedder=embedder).fit({str(i): [images[i], images[i] // 2] for i in range(4)})


def test_module_without_options_gets_color_images_normalized_as_for_imagenet():
    batches = []

    class Encoder(nn.Conv2d):
        def forward(self, x):
            batches.append(x)
            return super().forward(x).mean((2, 3))

    image = Image.new("RGB", (300, 224), (255, 0, 128))
    encoder = Encoder(3, 5, 1).double().train()
    classifier = FewShotClassifier(embedder=encoder).fit({"a": [image] * 2, "b": [Image.new("L", (20, 20))] * 2})
    assert classifier.predict(image).label == "a"
    assert not encoder.training
    assert encoder.weight.requires_grad
    assert {batch.dtype for batch in batches} == {torch.float64}
    assert {batch.shape[1:] for batch in batches} == {(3, 224, 224)}
    expected = (torch.tensor([1, 0, 128 / 255]) - torch.tensor([0.485, 0.456, 0.406])) / torch.tensor(
        [0.229, 0.224, 0.225]
    )
    torch.testing.assert_close(batches[-1][0, :, 7, 7].float(), expected)


@pytest.mark.parametrize(
    ("function", "num_tokens"),
    [
        (quarters, 1),
        (lambda images: quarters(images).numpy(), 1),
        (lambda images: quarters(images)[:, None], 1),
        (lambda images: quarters(images)[:, None].expand(-1, 3, -1), 3),
        (lambda images: quarters(images)[..., None, None].expand(-1, -1, 2, 3), 6),
        (nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(0.9)), 1),
    ],
)
def test_outputs_of_every_shape(function, num_tokens):
    classifier = fit(CustomEmbedder(function, **OPTIONS))
    assert classifier._current().support.embeddings.shape == (8, num_tokens, 4)
    assert [prediction.label for prediction in classifier.predict(list(make_quarters()))] == list("0123")
    assert classifier.predict(make_quarters()[2]).explain(grid=2).image.regions.argmax() == 2


@pytest.mark.parametrize("channels", [1, 3])
def test_pil_images(channels):
    modes = set()

    def embed(images):
        modes.update((image.mode, image.size) for image in images)
        return torch.stack(
            [torch.from_numpy(np.array(image.convert("L").resize((2, 2)), float)).flatten() for image in images]
        )

    classifier = fit(CustomEmbedder(embed, image_size=SIZE, channels=channels, input_format="pil", mean=0, std=1))
    assert modes == {("L" if channels == 1 else "RGB", (SIZE, SIZE))}
    assert classifier.predict(make_quarters()[1]).label == "1"


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda images: {"x": images}, r"return \(B, M\).*, got dict from .*<lambda>; return one of its tensors"),
        (lambda images: images.mean(), r"got shape \(\) for 1 from"),
        (lambda images: images.flatten(1)[:0], r"got shape \(0, 64\) for 1 from"),
        (lambda images: images.flatten(1)[:, :0], r"got shape \(1, 0\) for 1 from"),
        (lambda images: images.flatten(1) / 0, "embeddings must be finite and at most 1e.15, got others"),
        (lambda images: quarters(images)[:, : 5 - len(images)], "must return embeddings of one shape, got shape"),
        (lambda images: quarters(images - images.mean()), "must not depend on the other images .* call model.eval"),
        (lambda images: torch.rand(len(images), 4), "must not depend on the other images"),
    ],
)
def test_invalid_outputs_are_refused(function, message):
    with pytest.raises(SightlineError, match=message):
        fit(CustomEmbedder(function, **OPTIONS))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_size": 0}, "image_size must be an integer of at least 1, got 0"),
        ({"image_size": 2000}, "image_size must be at most 1,024, got 2000"),
        ({"channels": 2}, "channels must be 1 or 3, got 2"),
        ({"channels": 1}, r"mean must be one number or 1, one for each channel, got \(0.485"),
        ({"mean": "x"}, "mean must be one number or 3"),
        ({"std": (0.5, 0.5, 0)}, "std must be above 0, got "),
        ({"input_format": "numpy"}, "input_format must be one of pil, tensor, got 'numpy'"),
    ],
)
def test_invalid_options_are_refused(options, message):
    with pytest.raises(SightlineError, match=message):
        CustomEmbedder(quarters, **options)


def test_invalid_embedders_are_refused():
    with pytest.raises(
        SightlineError, match=r"embedder must be a torch module .*, got str; name a pretrained one with"
    ):
        FewShotClassifier(embedder="photos")
    with pytest.raises(SightlineError, match=r"model must be a few-shot model .*, got Linear; .*\(embedder=...\)"):
        FewShotClassifier(nn.Linear(2, 2))
    with pytest.raises(SightlineError, match="embedder must be left out for a model with a backbone"):
        FewShotClassifier(FewShot(FewShotConfig(image_size=16, channels=1)), quarters)
    model = FewShot(FewShotConfig(backbone="none", embed_dim=16, num_heads=1))
    images = make_quarters()
    with pytest.raises(SightlineError, match=r"must give embeddings of dimension 16, as the head .*, got 4"):
        FewShotClassifier(model, CustomEmbedder(quarters, **OPTIONS)).fit({"a": images[:2], "b": images[2:]})


def test_trained_head_on_a_custom_embedder():
    model = FewShot(FewShotConfig(backbone="none", embed_dim=4, num_heads=1))
    images = make_quarters()
    classifier = FewShotClassifier(model, CustomEmbedder(quarters, **OPTIONS)).fit({"a": images[:2], "b": images[2:]})
    assert classifier.model is model
    assert classifier.predict(images[3]).label == "b"


def test_file_requires_the_embedder(tmp_path):
    embedder, images = CustomEmbedder(quarters, **OPTIONS), list(make_quarters())
    classifier = fit(embedder)
    path = classifier.save(tmp_path / "a.sightline")
    assert FewShotClassifier.load(path, embedder=embedder).predict(images) == classifier.predict(images)
    rule = "embedder must be the one that the classifier was fitted with, 'quarters'"
    with pytest.raises(SightlineError, match=rf"{rule}, got none: it is not in the file; .*load\(path, embedder=...\)"):
        FewShotClassifier.load(path)
    for function, message in (
        (lambda images: 1 - quarters(images), "got one with other embeddings: cosine similarity"),
        (lambda images: images.flatten(1), r"got one with embeddings of shape \(1, 64\) instead of \(1, 4\)"),
    ):
        with pytest.raises(SightlineError, match=f"{rule}, {message}"):
            FewShotClassifier.load(path, embedder=CustomEmbedder(function, **OPTIONS))


def test_embedder_for_a_file_without_one_is_refused(tmp_path):
    embedder = CustomEmbedder(quarters, **OPTIONS)
    classifier = FewShotClassifier(embedder=embedder).fit({"a": torch.eye(4)[:2], "b": torch.eye(4)[2:]})
    path = classifier.save(tmp_path / "a.sightline")
    assert FewShotClassifier.load(path).predict(torch.eye(4)[2]).label == "b"  # embeddings need no embedder
    with pytest.raises(SightlineError, match=r"embedder must be left out .* without a custom embedder, got CustomEmb"):
        FewShotClassifier.load(path, embedder=embedder)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda classifier: pickle.loads(pickle.dumps(classifier))])  # noqa: S301
def test_copies_have_the_embedder(duplicate):
    classifier, images = fit(CustomEmbedder(quarters, **OPTIONS)), list(make_quarters())
    with pytest.warns(SightlineWarning, match="^blank: 4/image 1: all pixels are alike$"):
        copied = duplicate(classifier).add("4", torch.full((1, SIZE, SIZE), 255, dtype=torch.uint8))
    assert classifier.predict(images) == duplicate(classifier).predict(images)
    assert len(copied.classes) == len(classifier.classes) + 1

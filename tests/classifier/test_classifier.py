import re

import numpy as np
import pytest
import safetensors.torch
import torch
import yaml
from PIL import Image

from sightline import FewShotClassifier, config
from sightline.classifier.calibration import ask
from sightline.classifier.embedding import opened
from sightline.classifier.queries import embedded
from sightline.models.few_shot import FewShot, FewShotConfig

M = 7


def vectors(classes: int, each: int = 3, width: int = M, spread: float = 0.1) -> dict[str, torch.Tensor]:
    """Clouds around points of their own."""
    random = torch.Generator().manual_seed(0)
    middles = torch.randn(classes, 1, width, generator=random)
    clouds = middles + spread * torch.randn(classes, each, width, generator=random)
    return {f"class {i}": cloud for i, cloud in enumerate(clouds)}


@pytest.fixture
def folder(tmp_path, drawn):
    for name, own in list(drawn.items())[:3]:
        home = tmp_path / "characters" / name.replace("/", " ")
        home.mkdir(parents=True)
        for i, pixels in enumerate(own[:3]):
            Image.fromarray(pixels[0].numpy()).save(home / f"{i}.png")
    return tmp_path / "characters"


def test_a_folder_a_dict_and_arrays_make_the_same_classifier(run, folder, drawn):
    asked = next(iter(drawn.values()))[5]
    own = {name.replace("/", " "): images[:3] for name, images in list(drawn.items())[:3]}
    sources = [
        folder,
        {label: sorted((folder / label).iterdir()) for label in own},
        {label: [Image.fromarray(image[0].numpy()) for image in images] for label, images in own.items()},
        {label: np.stack([image[0].numpy() for image in images]) for label, images in own.items()},
        {label: torch.stack(images) for label, images in own.items()},
        {label: [image.float() / 255 for image in images] for label, images in own.items()},
    ]
    answers = [FewShotClassifier.pretrained(run).fit(source).predict(asked) for source in sources]
    for answer in answers:
        assert answer.scores == pytest.approx(answers[0].scores, abs=1e-6)
        assert answer.known_score == pytest.approx(answers[0].known_score, abs=1e-6)


def test_a_class_is_given_as_a_folder_a_stream_or_a_single_image(run, folder, drawn):
    made = FewShotClassifier.pretrained(run).fit(folder)
    name = made.classes[0]
    image = np.array(Image.open(folder / name / "0.png"))
    for label, given, count in (
        ("folder", folder / name, 3),
        ("text", str(folder / name), 3),
        ("stream", (folder / name).glob("*.png"), 3),
        ("picture", Image.fromarray(image), 1),
        ("gray", image, 1),  # not as many embeddings as it has rows
        ("color", np.stack([image] * 3, -1), 1),  # not as many images as it has rows
        ("tensor", torch.from_numpy(image)[None], 1),
        ("batch", torch.from_numpy(image).expand(5, 1, -1, -1), 5),
    ):
        assert made.add(label, given).counts[label] == count
    alike = made.predict(image).scores
    for label in ("gray", "color", "tensor", "batch"):
        assert alike[label] == pytest.approx(alike["picture"], rel=1e-3)
    with pytest.raises(
        ValueError, match=r"class 'a' must be a list .* got shape \(3, 28, 28\), which may be one image or 3"
    ):
        made.add("a", torch.from_numpy(image).expand(3, -1, -1))
    with pytest.raises(ValueError, match=r"class 'a': an image must be a path, .*got dict"):
        made.add("a", {"b": image})


def test_it_is_right_and_says_how_sure(fitted, drawn):
    right = [answer.label == name for name in fitted.classes for answer in fitted.predict(drawn[name][3:])]
    assert np.mean(right) > 0.7
    answer = fitted.predict(drawn[fitted.classes[1]][0])
    assert answer.label == fitted.classes[1]
    assert answer.known
    assert answer.confidence == max(answer.scores.values()) == next(iter(answer.scores.values()))
    assert sum(answer.scores.values()) == pytest.approx(1)
    assert not answer.transductive
    assert str(answer) == f"{answer.label} {answer.confidence:.1%} (known)"


def test_an_answer_does_not_depend_on_those_asked_beside_it(fitted, drawn):
    images = [image for own in drawn.values() for image in own][:75]
    together = fitted.predict(images)
    assert len(together) == 75
    for image, answer in list(zip(images, together, strict=True))[::9]:
        alone = fitted.predict(image)
        assert alone.scores == pytest.approx(answer.scores, abs=1e-5)
        assert alone.known_score == pytest.approx(answer.known_score, abs=1e-5)


def test_logits_do_not_either_however_low_the_temperature(run, drawn):
    model = opened(run)[0]
    model.head.calibration_scale.fill_(model.head.answer.temperature().item() / 0.01)
    made = FewShotClassifier(model).fit({name: own[:3] for name, own in list(drawn.items())[:5]})
    images = [image for own in drawn.values() for image in own][:75]

    def logits(some):
        query, _ = embedded(some, made._support, made._embeds)
        return ask(model.head, made._ready().memory, query)

    together = logits(images)
    assert together.abs().max() > 50
    torch.testing.assert_close(torch.cat([logits([image]) for image in images]), together, rtol=0, atol=1e-5)


def test_images_of_other_sizes_and_modes_are_asked_alike(fitted, drawn, tmp_path):
    square = Image.fromarray(drawn[fitted.classes[0]][4][0].numpy())
    wide = Image.new("L", (34, 28), 255)
    wide.paste(square, (3, 0))
    wide.convert("RGBA").save(tmp_path / "wide.png")
    answers = fitted.predict([square, square.convert("RGB"), tmp_path / "wide.png", str(tmp_path / "wide.png")])
    for answer in answers:
        assert answer.scores == pytest.approx(answers[0].scores, abs=1e-6)


def test_unequal_classes_and_single_images(run, drawn):
    made = FewShotClassifier.pretrained(run)
    made.fit({name: own[: i + 1] for i, (name, own) in enumerate(list(drawn.items())[:4])})
    assert list(made.counts.values()) == [1, 2, 3, 4]
    assert made.estimate().images == 9
    assert made.predict(drawn[made.classes[0]][0]).label == made.classes[0]


def test_classes_come_and_go_without_training(run, drawn):
    (one, a), (two, b), (three, c) = list(drawn.items())[:3]
    made = FewShotClassifier.pretrained(run).fit({one: a[:3], two: b[:3]})
    weights = {name: tensor.clone() for name, tensor in made.model.state_dict().items()}
    made.add(three, c[:3])
    whole = FewShotClassifier.pretrained(run).fit({one: a[:3], two: b[:3], three: c[:3]})
    assert made.predict(c[4]) == whole.predict(c[4])
    made.add(one, [a[3]])
    assert made.counts == {one: 4, two: 3, three: 3}
    made.remove(one)
    assert made.classes == (two, three)
    assert made.predict(c[4]) == FewShotClassifier.pretrained(run).fit({two: b[:3], three: c[:3]}).predict(c[4])
    assert all(torch.equal(tensor, weights[name]) for name, tensor in made.model.state_dict().items())


def test_embeddings_of_ones_own():
    clouds = vectors(4, 6)
    made = FewShotClassifier().fit({label: cloud[:4].numpy() for label, cloud in clouds.items()})
    for label, cloud in clouds.items():
        assert [answer.label for answer in made.predict(cloud[4:])] == [label] * 2
        one = made.predict(cloud[4].numpy())
        assert one.label == label
        assert one.known
    stranger = made.predict(-sum(cloud.mean(0) for cloud in clouds.values()))
    assert not stranger.known
    made.add("new", [torch.eye(M)[3], torch.eye(M)[3] + 0.1])
    assert made.predict(torch.eye(M)[3]).label == "new"
    assert made.fit(vectors(3, width=5)).predict(torch.ones(5)).label in made.classes  # another width, another head


def test_embeddings_may_be_plain_lists():
    made = FewShotClassifier().fit(
        {"a": [[1.0, 2, 3], [1, 2, 4]], "b": [(3.0, 2, 1), torch.tensor([5.0, 2, 1]).bfloat16()]}
    )
    assert made.predict([[1, 2, 3.5], [4, 2, 1]])[1].label == "b"


def test_whole_numbers_are_labels_too():
    made = FewShotClassifier().fit({0: torch.eye(3)[:2], np.int64(7): -torch.eye(3)})
    assert made.classes == ("0", "7")
    assert made.add(7, torch.ones(2, 3)).counts == {"0": 2, "7": 5}
    assert made.add(11, -torch.ones(2, 3)).remove(0).classes == ("7", "11")


def test_a_trained_head_takes_its_own_embeddings():
    torch.manual_seed(0)
    model = FewShot(FewShotConfig(backbone="none", embed_dim=8, num_heads=2))
    made = FewShotClassifier(model).fit(vectors(3, width=8))
    assert made.model is model
    with pytest.raises(ValueError, match=r"one width, 8, got 7 for class 'class 0'.* FewShotClassifier\(\)"):
        FewShotClassifier(model).fit(vectors(3, width=7))


def test_a_thousand_classes():
    clouds = vectors(1000, 2, width=16, spread=0.02)
    made = FewShotClassifier().fit(clouds)
    labels = list(clouds)[::97]
    assert [made.predict(clouds[label][0]).label for label in labels] == labels


def test_the_estimate_is_what_held_out_images_say():
    made = FewShotClassifier().fit(vectors(5, 4))
    estimate = made.estimate()
    assert (estimate.accuracy, estimate.images) == (1, 20)
    assert estimate.interval == pytest.approx((0.839, 1), abs=1e-3)
    random = torch.Generator().manual_seed(0)
    noise = FewShotClassifier().fit({label: torch.randn(10, M, generator=random) for label in "abcde"})
    assert noise.estimate().accuracy < 0.5  # asked of what it learned from, it would be right far more often
    assert list(noise.estimate().per_class.values()) == sorted(noise.estimate().per_class.values())


def test_transductive_answers_are_asked_for_and_say_so():
    torch.manual_seed(0)
    head = FewShot(FewShotConfig(backbone="none", embed_dim=8, num_heads=2, transductive=True))
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter)
    made = FewShotClassifier(head).fit(vectors(3, width=8))
    asked = list(torch.randn(5, 8))
    plain, together = made.predict(asked), made.predict(asked, transductive=True)
    assert [answer.transductive for answer in plain + together] == [False] * 5 + [True] * 5
    assert plain[0].scores == pytest.approx(made.predict(asked[:1])[0].scores, abs=1e-5)
    fewer = made.predict(asked[:2], transductive=True)
    assert fewer[0].known_score != pytest.approx(together[0].known_score, abs=1e-3)
    with pytest.raises(ValueError, match="transductive must be False for a head that was not trained so"):
        FewShotClassifier().fit(vectors(3)).predict(asked, transductive=True)


def test_what_cannot_be_is_refused(run, drawn, tmp_path):
    images = next(iter(drawn.values()))
    (tmp_path / "torn.png").write_bytes(b"not a picture")
    made = FewShotClassifier.pretrained(run)
    two = {"a": images[:1], "b": images[1:2]}
    for wrong, message in (
        ({"a": images[:2]}, "classes must be 2 to 1,000, got 1; bring one more"),
        ({f"{i}": images[:1] for i in range(1001)}, "classes must be 2 to 1,000, got 1,001; bring fewer"),
        ({**two, "c": []}, "class 'c' must have at least one image, got none; fill it or leave it out"),
        ({**two, "c": [tmp_path / "torn.png"]}, r"class 'c': .*torn.png must be a PNG, JPEG"),
        ({**two, "a ": images[2:3]}, "classes must have different names, got 'a' and 'a '"),
        ({**two, 3.5: images[2:3]}, "a class must have a name of 1 to 200 letters, got 3.5"),
        ({**two, True: images[2:3]}, "a class must have a name of 1 to 200 letters, got True"),
        ({0: images[:1], "0": images[1:2]}, "classes must have different names, got '0' and '0'"),
        ({**two, "c": torch.ones(2, 5)}, "embeddings must all have one width, 32, got 5 for class 'c'"),
        ({**two, "c": torch.ones(2, 32)}, "examples must be images alone or embeddings alone, got both"),
        ([images], "examples must be a folder of class folders, or {label: images}, got list"),
        (tmp_path / "nowhere", "examples must be a folder with one folder of images for each class, got"),
    ):
        with pytest.raises(ValueError, match=message):
            made.fit(wrong)
    for question in (
        made.predict,
        made.remove,
        lambda _: made.estimate(),
        lambda _: made.save(tmp_path / "x.sightline"),
    ):
        with pytest.raises(ValueError, match=r"must be fitted first, .*; call fit"):
            question("image.png")
    made.fit(two)
    with pytest.raises(ValueError, match="a class to remove must be one of a, b, got 'c'"):
        made.remove("c")
    with pytest.raises(ValueError, match="must keep 2 classes, got 'b' to remove of 2; add another"):
        made.remove("b")
    with pytest.raises(ValueError, match="a class must have 2 images for one to be held out"):
        made.estimate()
    with pytest.raises(ValueError, match=r"an image must be a file, got 'nowhere.png', which is not there"):
        made.predict("nowhere.png")
    assert made.classes == ("a", "b")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"a": torch.ones(2, 5), "b": torch.ones(2, 7)}, "one width, got 5 for class 'a' and 7 for class 'b'"),
        (
            {"a": torch.ones(2, 5), "b": [torch.ones(5), torch.ones(4)]},
            r"one width, got \[\(4,\), \(5,\)\] in class 'b'",
        ),
        ({"a": torch.ones(2, 5), "b": torch.full((2, 5), float("nan"))}, "must be finite, .*got NaN.* in class 'b'"),
        ({"a": torch.ones(2, 5), "b": torch.full((2, 5), 1e30)}, r"at most 1e\+15, got .* more in class 'b'; leave"),
        ({"a": torch.ones(2, 5), "b": np.array([["x"] * 5])}, "embeddings of class 'b' must be numbers of shape"),
        ({"a": torch.ones(2, 5), "b": ["image.png"]}, "must be embeddings for this model, got str in class 'b'; begin"),
        ({"a": torch.ones(2, 5), "b": "image.png"}, "must be embeddings for this model, got str in class 'b'; begin"),
        ("somewhere", "examples must be embeddings for this model, got 'somewhere'"),
    ],
)
def test_embeddings_that_cannot_be_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        FewShotClassifier().fit(wrong)


def test_other_questions_to_a_classifier_of_embeddings_are_refused():
    made = FewShotClassifier().fit(vectors(3))
    with pytest.raises(ValueError, match="embeddings must all have one width, 7, got 5 for what was asked"):
        made.predict(torch.ones(5))
    with pytest.raises(
        ValueError, match="must be asked for embeddings of width 7, as it was fitted, got the path of a file"
    ):
        made.predict("image.png")
    with pytest.raises(ValueError, match="must be finite"):
        made.predict(torch.full((M,), float("inf")))


@pytest.mark.parametrize(
    ("name", "hint"),
    [("glyps", "; did you mean 'glyphs'?"), ("efficient", "; did you mean 'efficientnet_lite0'?"), ("nothing", "")],
)
def test_a_model_that_is_not_there_is_refused(name, hint):
    wanted = f"one of efficientnet_lite0, glyphs, photos, got {name!r}{hint}"
    with pytest.raises(ValueError, match=f"^a model must be the folder of a few-shot run, or .*{re.escape(wanted)}$"):
        FewShotClassifier.pretrained(name)


def test_a_folder_without_a_model_is_refused_with_the_reason(tmp_path):
    with pytest.raises(ValueError, match=r"a model must be .* must hold a vision model of Hugging Face"):
        FewShotClassifier.pretrained(tmp_path)


def test_a_run_of_another_task_is_refused(tiny_run):
    with pytest.raises(ValueError, match=r"must be a few-shot model, got .* of task 'image_classifier'"):
        FewShotClassifier.pretrained(tiny_run)


class Stand:
    """An embedder from elsewhere: the mean of each quarter of the image."""

    name, width, image_size, channels, grid = "stand", 4, 8, 1, (2, 2)

    def to(self, device):
        return self

    def embed_pooled(self, pixels):
        assert pixels.dtype == torch.uint8
        return torch.nn.functional.adaptive_avg_pool2d(pixels.float(), 2).flatten(1)


def test_any_embedder_serves_and_is_opened_again_by_name(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(
        "sightline.models.embedders.embedder", lambda name, weights: asked.append((name, weights)) or Stand()
    )
    bright = torch.zeros(4, 1, 8, 8, dtype=torch.uint8)
    for i in range(4):
        bright[i, :, i // 2 * 4 : i // 2 * 4 + 4, i % 2 * 4 : i % 2 * 4 + 4] = 200
    made = FewShotClassifier.pretrained("owner/stand").fit({str(i): list(bright[i : i + 1]) for i in range(4)})
    made.save(tmp_path / "stand.sightline")
    again = FewShotClassifier.load(tmp_path / "stand.sightline")
    assert again.predict(list(bright)) == made.predict(list(bright))
    assert [answer.label for answer in made.predict(list(bright))] == list("0123")
    assert set(asked) == {("owner/stand", None)}
    asked.clear()
    made = FewShotClassifier.pretrained("owner/stand", weights="mine.pth").fit({"a": bright[:2], "b": bright[2:]})
    made.save(tmp_path / "stand.sightline")
    FewShotClassifier.load(tmp_path / "stand.sightline").predict(bright[0])
    FewShotClassifier.load(tmp_path / "stand.sightline", weights="moved.pth").predict(bright[0])
    assert asked == [*[("owner/stand", "mine.pth")] * 3, ("owner/stand", "moved.pth")]


def test_a_head_sees_through_the_weights_it_was_trained_with(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(
        "sightline.models.embedders.embedder", lambda name, weights: asked.append((name, weights)) or Stand()
    )
    form = FewShotConfig(backbone="none", embed_dim=4, num_heads=1, image_size=8, channels=1)
    values = {"task": "few_shot", "data": {"embedder": "stand", "weights": "own.pth"}, "model": config.plain(form)}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(values))
    safetensors.torch.save_file(FewShot(form).state_dict(), tmp_path / "model.safetensors")
    drawn = torch.randint(256, (4, 1, 8, 8), dtype=torch.uint8)
    made = FewShotClassifier.pretrained(tmp_path).fit({"a": drawn[:2], "b": drawn[2:]})
    assert made.predict(drawn[0]).label == "a"
    assert asked == [("stand", "own.pth")]


def test_weights_for_a_model_that_has_its_own_are_refused(run):
    with pytest.raises(ValueError, match=r"weights must be left out where there is no embedder, got 'x.pth'"):
        FewShotClassifier.pretrained(run, weights="x.pth")

"""FewShotClassifier: fit, predict, add, remove, estimate."""

import sys
import threading

import numpy as np
import pytest
import torch
from PIL import Image

from sightline import FewShotClassifier
from sightline.classifier import calibration
from sightline.classifier.calibration import classify
from sightline.errors import SightlineError, SightlineWarning
from sightline.models.embedders import BackboneEmbedder
from sightline.models.few_shot import FewShot
from sightline.models.few_shot_config import FewShotConfig
from sightline.tasks.few_shot.predictor import FewShotPredictor

M = 7


def make_clusters(classes: int, per_class: int = 3, embed_dim: int = M, std: float = 0.1) -> dict[str, torch.Tensor]:
    """Embeddings that are normally distributed around a random mean per class."""
    random = torch.Generator().manual_seed(0)
    means = torch.randn(classes, 1, embed_dim, generator=random)
    clusters = means + std * torch.randn(classes, per_class, embed_dim, generator=random)
    return {f"class {i}": cluster for i, cluster in enumerate(clusters)}


@pytest.fixture
def folder(tmp_path, drawn):
    for name, images in list(drawn.items())[:3]:
        class_folder = tmp_path / "characters" / name.replace("/", " ")
        class_folder.mkdir(parents=True)
        for i, pixels in enumerate(images[:3]):
            Image.fromarray(pixels[0].numpy()).save(class_folder / f"{i}.png")
    return tmp_path / "characters"


def test_folder_paths_images_and_arrays_give_the_same_classifier(run, folder, drawn):
    query = next(iter(drawn.values()))[5]
    classes = {name.replace("/", " "): images[:3] for name, images in list(drawn.items())[:3]}
    sources = [
        folder,
        {label: sorted((folder / label).iterdir()) for label in classes},
        {label: [Image.fromarray(image[0].numpy()) for image in images] for label, images in classes.items()},
        {label: np.stack([image[0].numpy() for image in images]) for label, images in classes.items()},
        {label: torch.stack(images) for label, images in classes.items()},
        {label: [image.float() / 255 for image in images] for label, images in classes.items()},
    ]
    predictions = [FewShotClassifier.pretrained(run).fit(source).predict(query) for source in sources]
    for prediction in predictions:
        assert prediction.scores == pytest.approx(predictions[0].scores, abs=1e-6)
        assert prediction.known_score == pytest.approx(predictions[0].known_score, abs=1e-6)


def test_examples_of_a_class_can_be_a_folder_an_iterable_or_one_image(run, folder):
    classifier = FewShotClassifier.pretrained(run).fit(folder, method="head")
    name = classifier.classes[0]
    image = np.array(Image.open(folder / name / "0.png"))
    for label, examples, count in (
        ("folder", folder / name, 3),
        ("text", str(folder / name), 3),
        ("iterable", (folder / name).glob("*.png"), 3),
        ("picture", Image.fromarray(image), 1),
        ("gray", image, 1),  # not one embedding per row
        ("color", np.stack([image] * 3, -1), 1),  # not one image per row
        ("tensor", torch.from_numpy(image)[None], 1),
        ("batch", torch.from_numpy(image).expand(5, 1, -1, -1), 5),
    ):
        with pytest.warns(SightlineWarning, match="the same image in . classes"):
            assert classifier.add(label, examples).counts[label] == count
    scores = classifier.predict(image).scores
    for label in ("gray", "color", "tensor", "batch"):
        assert scores[label] == pytest.approx(scores["picture"], rel=1e-3)
    with pytest.raises(
        SightlineError, match=r"class 'a' must be a list .* got shape \(3, 28, 28\), which is ambiguous"
    ):
        classifier.add("a", torch.from_numpy(image).expand(3, -1, -1))
    with pytest.raises(SightlineError, match=r"class 'a': an image must be a path, .*got dict"):
        classifier.add("a", {"b": image})


def test_predictions_are_accurate_and_have_scores(fitted, drawn):
    correct = [prediction.label == name for name in fitted.classes for prediction in fitted.predict(drawn[name][3:])]
    assert np.mean(correct) > 0.5  # chance is 0.2; the model is trained for seconds
    prediction = fitted.predict(drawn[fitted.classes[1]][0])
    assert prediction.label == fitted.classes[1]
    assert prediction.known
    assert prediction.error is None
    assert prediction.confidence == max(prediction.scores.values()) == next(iter(prediction.scores.values()))
    assert sum(prediction.scores.values()) == pytest.approx(1)
    assert not prediction.transductive
    assert str(prediction) == f"{prediction.label} {prediction.confidence:.1%}"
    record = prediction.to_dict()
    assert set(fitted.columns()) <= {*record, *(f"scores.{name}" for name in record["scores"])}
    assert record["known_score"] == prediction.known_score


def test_predictions_do_not_depend_on_other_images(fitted, drawn):
    images = [image for class_images in drawn.values() for image in class_images][:75]
    together = fitted.predict(images)
    assert len(together) == 75
    for image, prediction in list(zip(images, together, strict=True))[::9]:
        alone = fitted.predict(image)
        assert alone.scores == pytest.approx(prediction.scores, abs=1e-6)  # float32 rounding
        assert alone.known_score == pytest.approx(prediction.known_score, abs=1e-6)


def test_logits_at_a_low_temperature_do_not_depend_on_other_images(run, drawn):
    model = FewShotPredictor.load(run).model
    model.head.calibration_scale.fill_(model.head.similarity.temperature().item() / 0.01)
    examples = {name: images[:3] for name, images in list(drawn.items())[:5]}
    classifier = FewShotClassifier(model).fit(examples, method="head")
    pixels = torch.stack([image for class_images in drawn.values() for image in class_images][:75])
    query = BackboneEmbedder(model).embed(pixels)
    state = classifier._current().state
    together = classify(model.head, state, query)
    assert together.abs().max() > 50
    alone = torch.cat([classify(model.head, state, embedding[None]) for embedding in query])
    torch.testing.assert_close(alone, together, rtol=0, atol=1e-5)


def test_size_and_mode_of_an_image_do_not_matter(fitted, drawn, tmp_path):
    square = Image.fromarray(drawn[fitted.classes[0]][4][0].numpy())
    wide = Image.new("L", (34, 28), 255)
    wide.paste(square, (3, 0))
    wide.convert("RGBA").save(tmp_path / "wide.png")
    inputs = [square, square.convert("RGB"), tmp_path / "wide.png", str(tmp_path / "wide.png")]
    predictions = fitted.predict(inputs)
    for prediction in predictions:
        assert prediction.scores == pytest.approx(predictions[0].scores, abs=1e-6)


def test_classes_of_unequal_size(run, drawn):
    classifier = FewShotClassifier.pretrained(run)
    classifier.fit({name: images[: i + 1] for i, (name, images) in enumerate(list(drawn.items())[:4])})
    assert list(classifier.counts.values()) == [1, 2, 3, 4]
    assert classifier.estimate().images == 9
    assert classifier.predict(drawn[classifier.classes[0]][0]).label == classifier.classes[0]


def test_classes_are_added_and_removed_without_training(run, drawn):
    (one, a), (two, b), (three, c) = list(drawn.items())[:3]
    classifier = FewShotClassifier.pretrained(run).fit({one: a[:3], two: b[:3]})
    weights = {name: tensor.clone() for name, tensor in classifier.model.state_dict().items()}
    classifier.add(three, c[:3])
    expected = FewShotClassifier.pretrained(run).fit({one: a[:3], two: b[:3], three: c[:3]})
    assert classifier.predict(c[4]) == expected.predict(c[4])
    classifier.add(one, [a[3]])
    assert classifier.counts == {one: 4, two: 3, three: 3}
    classifier.remove(one)
    assert classifier.classes == (two, three)
    assert classifier.predict(c[4]) == FewShotClassifier.pretrained(run).fit({two: b[:3], three: c[:3]}).predict(c[4])
    assert all(torch.equal(tensor, weights[name]) for name, tensor in classifier.model.state_dict().items())


def test_concurrent_adds_are_all_kept(tmp_path):
    """4 threads with 60 adds each, while another thread predicts and saves."""
    classifier = FewShotClassifier().fit({"a": torch.eye(3)[:2], "b": -torch.eye(3)}, method="prototypes")
    names = [[f"{thread}-{i}" for i in range(60)] for thread in range(4)]
    is_done, failures = threading.Event(), []

    def add(thread: int) -> None:
        for i, name in enumerate(names[thread]):
            classifier.add(name, torch.tensor([[float(i + 1), float(thread + 1), -1.0]]))

    def predict() -> None:
        try:
            while not is_done.is_set():
                before = set(classifier.classes)
                scores = set(classifier.predict(torch.eye(3)[0]).scores)
                if not before <= scores <= set(classifier.classes):
                    failures.append((before, scores))
                saved = FewShotClassifier.load(classifier.save(tmp_path / "a.sightline"))
                if not before <= set(saved.classes) or set(saved.predict(torch.eye(3)[0]).scores) != set(saved.classes):
                    failures.append((before, saved.classes))
        except Exception as error:
            failures.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        reader = threading.Thread(target=predict)
        threads = [threading.Thread(target=add, args=(thread,)) for thread in range(4)]
        for thread in (reader, *threads):
            thread.start()
        for thread in threads:
            thread.join()
        is_done.set()
        reader.join()
    finally:
        sys.setswitchinterval(interval)
    assert not failures
    assert set(classifier.classes) == {"a", "b", *(name for part in names for name in part)}
    assert set(classifier.predict(torch.eye(3)[0]).scores) == set(classifier.classes)
    assert set(FewShotClassifier.load(classifier.save(tmp_path / "a.sightline")).classes) == set(classifier.classes)


def test_failed_fit_leaves_the_classifier_unchanged(monkeypatch):
    classifier = FewShotClassifier().fit(make_clusters(3))
    monkeypatch.setattr(calibration, "MAX_HELD_OUT", "invalid")
    with pytest.raises(TypeError):
        classifier.fit(make_clusters(4))
    monkeypatch.undo()
    assert len(classifier.predict(torch.ones(M)).scores) == 3


def test_embeddings_of_any_encoder():
    clusters = make_clusters(4, 6)
    classifier = FewShotClassifier().fit({label: cluster[:4].numpy() for label, cluster in clusters.items()})
    for label, cluster in clusters.items():
        assert [prediction.label for prediction in classifier.predict(cluster[4:])] == [label] * 2
        prediction = classifier.predict(cluster[4].numpy())
        assert prediction.label == label
        assert prediction.known
    assert not classifier.predict(-sum(cluster.mean(0) for cluster in clusters.values())).known
    classifier.add("new", [torch.eye(M)[3], torch.eye(M)[3] + 0.1])
    assert classifier.predict(torch.eye(M)[3]).label == "new"
    classifier.fit(make_clusters(3, embed_dim=5))  # another dimension gets another model
    assert classifier.predict(torch.ones(5)).label in classifier.classes


def test_embeddings_as_lists_of_numbers():
    classifier = FewShotClassifier().fit(
        {"a": [[1.0, 2, 3], [1, 2, 4]], "b": [(3.0, 2, 1), torch.tensor([5.0, 2, 1]).bfloat16()]}
    )
    assert classifier.predict([[1, 2, 3.5], [4, 2, 1]])[1].label == "b"


def test_integer_labels_become_text():
    classifier = FewShotClassifier().fit({0: torch.eye(3)[:2], np.int64(7): -torch.eye(3)})
    assert classifier.classes == ("0", "7")
    assert classifier.add(7, torch.ones(2, 3)).counts == {"0": 2, "7": 5}
    assert classifier.add(11, -torch.ones(2, 3)).remove(0).classes == ("7", "11")


def test_trained_head_requires_its_embedding_dimension():
    torch.manual_seed(0)
    model = FewShot(FewShotConfig(backbone="none", embed_dim=8, num_heads=2))
    assert FewShotClassifier(model).fit(make_clusters(3, embed_dim=8)).model is model
    with pytest.raises(SightlineError, match=r"must be 8, got 7 for class 'class 0'.* FewShotClassifier\(\)"):
        FewShotClassifier(model).fit(make_clusters(3, embed_dim=7))


def test_1000_classes():
    clusters = make_clusters(1000, 2, embed_dim=16, std=0.02)
    classifier = FewShotClassifier().fit(clusters)
    labels = list(clusters)[::97]
    assert [classifier.predict(clusters[label][0]).label for label in labels] == labels


def test_estimate_is_the_accuracy_of_held_out_images():
    estimate = FewShotClassifier().fit(make_clusters(5, 4)).estimate()
    assert (estimate.accuracy, estimate.images) == (1, 20)
    assert estimate.interval == pytest.approx((0.839, 1), abs=1e-3)
    random = torch.Generator().manual_seed(0)
    noise = FewShotClassifier().fit({label: torch.randn(10, M, generator=random) for label in "abcde"})
    assert noise.estimate().accuracy < 0.5  # the training accuracy is far higher
    assert list(noise.estimate().per_class.values()) == sorted(noise.estimate().per_class.values())


def test_summary_and_estimate_reuse_the_held_out_results_of_fit(monkeypatch, tmp_path):
    calls = []
    held_out_logits = calibration.held_out_logits
    monkeypatch.setattr(calibration, "held_out_logits", lambda *args: calls.append(args) or held_out_logits(*args))
    classifier = FewShotClassifier().fit(make_clusters(5, 4), method="prototypes")
    classifier.summary()
    classifier.estimate()
    assert len(calls) == 1
    loaded = FewShotClassifier.load(classifier.save(tmp_path / "a.sightline"))
    assert loaded.summary() == classifier.summary()
    loaded.estimate()
    assert len(calls) == 2
    classifier.add("new", torch.ones(2, M)).summary()
    assert len(calls) == 3


def test_transductive_predictions():
    torch.manual_seed(0)
    model = FewShot(FewShotConfig(backbone="none", embed_dim=8, num_heads=2, transductive=True))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    classifier = FewShotClassifier(model).fit(make_clusters(3, embed_dim=8))
    queries = list(torch.randn(5, 8))
    inductive, transductive = classifier.predict(queries), classifier.predict(queries, transductive=True)
    assert [p.transductive for p in inductive + transductive] == [False] * 5 + [True] * 5
    assert inductive[0].scores == pytest.approx(classifier.predict(queries[:1])[0].scores, abs=1e-5)
    fewer = classifier.predict(queries[:2], transductive=True)
    assert fewer[0].known_score != pytest.approx(transductive[0].known_score, abs=1e-3)
    with_error = classifier.predict([*queries[:2], "image.png"], transductive=True)
    assert with_error[:2] == fewer
    assert "got a path" in with_error[2].error
    with pytest.raises(SightlineError, match="transductive must be False for a head that was not trained"):
        FewShotClassifier().fit(make_clusters(3)).predict(queries, transductive=True)


def test_bad_image_in_a_list_becomes_an_error_without_extra_passes(fitted, drawn, tmp_path, monkeypatch):
    (tmp_path / "torn.png").write_bytes(b"not an image")
    images = drawn[fitted.classes[0]][:5]
    expected = fitted.predict(images)
    passes = []
    embed = BackboneEmbedder.embed
    monkeypatch.setattr(BackboneEmbedder, "embed", lambda self, x: passes.append(len(x)) or embed(self, x))
    predictions = fitted.predict([*images[:2], tmp_path / "torn.png", *images[2:]])
    assert passes == [5]
    assert predictions[:2] + predictions[3:] == expected
    assert "torn.png must be a complete PNG" in predictions[2].error
    assert predictions[2].to_dict() == {"error": predictions[2].error}
    answers = [(prediction.label, prediction.confidence, prediction.known) for prediction in predictions]
    assert answers[2] == (None, None, None)
    with pytest.raises(SightlineError, match=r"torn.png must be a complete PNG"):
        fitted.predict(tmp_path / "torn.png")


def test_classifier_has_no_test_set_and_figures(fitted, tmp_path):
    with pytest.raises(SightlineError, match=r"got none; pass data= .*; estimate\(\) returns the accuracy"):
        fitted.evaluate()
    with pytest.raises(SightlineError, match=r"sightline predict FILE IMAGE --show page.html"):
        fitted.show()
    with pytest.raises(SightlineError, match=r"save\(path\)"):
        fitted.save_pretrained(tmp_path)


def test_invalid_examples_are_refused(run, drawn, tmp_path):
    images = next(iter(drawn.values()))
    (tmp_path / "torn.png").write_bytes(b"not an image")
    classifier = FewShotClassifier.pretrained(run)
    two = {"a": images[:1], "b": images[1:2]}
    for examples, message in (
        ({"a": images[:2]}, "number of classes must be 2 to 1,000, got 1; add another"),
        ({f"{i}": images[:1] for i in range(1001)}, "number of classes must be 2 to 1,000, got 1,001; use fewer"),
        ({**two, "c": []}, "class 'c' must have at least one image, got none; add one or remove the class"),
        ({**two, "c": [tmp_path / "torn.png"]}, r"class 'c': .*torn.png must be a complete PNG, JPEG"),
        ({**two, "a ": images[2:3]}, "class names must differ, got 'a' and 'a '"),
        ({**two, 3.5: images[2:3]}, "a class name must be printable text of 1 to 200 characters, got 3.5"),
        ({**two, True: images[2:3]}, "a class name must be printable text of 1 to 200 characters, got True"),
        ({0: images[:1], "0": images[1:2]}, "class names must differ, got '0' and '0'"),
        ({**two, "c": torch.ones(2, 5)}, "embed_dim of all embeddings must be 32, got 5 for class 'c'"),
        ({**two, "c": torch.ones(2, 32)}, "examples must be all images or all embeddings, got both"),
        ([images], "examples must be a folder of class folders or {label: images}, got list"),
        (tmp_path / "nowhere", "examples must be a folder with one folder of images per class, got"),
    ):
        with pytest.raises(SightlineError, match=message):
            classifier.fit(examples)
    for call in (
        lambda: classifier.predict("image.png"),
        lambda: classifier.predict(["image.png"]),
        lambda: classifier.explain(["image.png"]),
        lambda: classifier.remove("a"),
        classifier.estimate,
        lambda: classifier.save(tmp_path / "x.sightline"),
    ):
        with pytest.raises(SightlineError, match=r"must be fitted first, .*; call fit"):
            call()
    classifier.fit(two)
    with pytest.raises(SightlineError, match="a class to remove must be one of a, b, got 'c'"):
        classifier.remove("c")
    with pytest.raises(SightlineError, match="must keep 2 classes, got 'b' to remove of 2; add another"):
        classifier.remove("b")
    with pytest.raises(SightlineError, match="two classes must have 2 images each for an estimate"):
        classifier.estimate()
    with pytest.raises(SightlineError, match=r"an image must be a file, got 'nowhere.png'"):
        classifier.predict("nowhere.png")
    with pytest.raises(SightlineError, match=r"inputs must be one image or a list of images, got dict"):
        classifier.predict({"a": "image.png"})
    assert classifier.classes == ("a", "b")


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        ({"a": torch.ones(2, 5), "b": torch.ones(2, 7)}, "got 5 for class 'a' and 7 for class 'b'"),
        (
            {"a": torch.ones(2, 5), "b": [torch.ones(5), torch.ones(4)]},
            r"must be the same for all embeddings, got \[\(4,\), \(5,\)\] in class 'b'",
        ),
        (
            {"a": torch.ones(2, 5), "b": torch.full((2, 5), float("nan"))},
            "must be finite .*got another value in class 'b'",
        ),
        (
            {"a": torch.ones(2, 5), "b": torch.full((2, 5), 1e30)},
            r"at most 1e\+15, got another value in class 'b'; leave",
        ),
        ({"a": torch.ones(2, 5), "b": np.array([["x"] * 5])}, "embeddings of class 'b' must be numbers of shape"),
        ({"a": torch.ones(2, 5), "b": ["image.png"]}, "got str in class 'b'; use FewShotClassifier.pretrained"),
        ({"a": torch.ones(2, 5), "b": "image.png"}, "got str in class 'b'; use FewShotClassifier.pretrained"),
        ("somewhere", "must be embeddings for a model without an image encoder, got 'somewhere'"),
    ],
)
def test_invalid_embeddings_are_refused(examples, message):
    with pytest.raises(SightlineError, match=message):
        FewShotClassifier().fit(examples)


def test_invalid_inputs_of_a_classifier_of_embeddings_are_refused():
    classifier = FewShotClassifier().fit(make_clusters(3))
    with pytest.raises(SightlineError, match="embed_dim of all embeddings must be 7, got 5 for the input"):
        classifier.predict(torch.ones(5))
    with pytest.raises(SightlineError, match=r"inputs must be embeddings of dimension 7, .* got a path"):
        classifier.predict("image.png")
    with pytest.raises(SightlineError, match="must be finite"):
        classifier.predict(torch.full((M,), float("inf")))

"""Stored few-shot classifiers over the API."""

import io
import json
import time
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

from sightline import FewShotClassifier, limits
from sightline.web import uploads
from sightline.web.fits import Recent, num_bytes
from web_client import LABELS, characters, files, new_classifier, png, web_client


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    with web_client(tmp_path_factory.mktemp("web"), "glyphs") as client:
        yield client


@pytest.fixture
def state(client):
    return new_classifier(client)


def call(client, method, path, status=200, **options):
    response = client.request(method, f"/api/classifiers{path}", **options)
    assert response.status_code == status, response.text
    return response.json() if response.content else None


def names(state):
    return {group["name"]: len(group["examples"]) for group in state["classes"]}


def test_a_classifier_is_fitted_after_each_change(client):
    state = call(client, "POST", "", 201, json={"name": "signs", "model": "glyphs"})
    assert state["fitted"] is False
    assert "must have images in 2 classes, got 0" in state["reason"]
    path = f"/{state['id']}"
    for count, label in enumerate(LABELS, start=1):
        images = files(*characters()[label][:2])
        state = call(client, "POST", f"{path}/examples", 201, data={"label": label}, files=images)
        assert len(state["added"]) == 2
        assert state["fitted"] is (count > 1)
    assert names(state) == dict.fromkeys(LABELS, 2)
    assert state["fit"]["model"] == "glyphs"
    assert state["fit"]["estimate"]["images"] == 6
    assert state["num_examples"] == 6
    answer = call(client, "POST", f"{path}/predict", files=files(*(characters()[label][-1] for label in LABELS)))
    assert [prediction["closest"] for prediction in answer["predictions"]] == list(LABELS)
    first = answer["predictions"][0]
    assert sum(first["scores"].values()) == pytest.approx(1)
    assert first["none_score"] == pytest.approx(1 - first["known_score"])
    assert first["label"] == ("ka" if first["known"] else None)


def test_predictions_are_those_of_the_downloaded_file(client, state, tmp_path):
    response = client.get(f"/api/classifiers/{state['id']}/download")
    both_names = "attachment; filename=\"signs.sightline\"; filename*=UTF-8''signs.sightline"
    assert response.headers["content-disposition"] == both_names
    path = tmp_path / "signs.sightline"
    path.write_bytes(response.content)
    query = characters()["mo"][-1]
    classifier = FewShotClassifier.load(path)
    assert classifier.model_name == "glyphs"
    expected = classifier.predict(Image.open(io.BytesIO(query)))
    [prediction] = call(client, "POST", f"/{state['id']}/predict", files=files(query))["predictions"]
    assert prediction["scores"] == pytest.approx(expected.scores, abs=1e-4)
    assert prediction["known"] == expected.known


def test_an_explanation_names_images_for_and_against(client, state):
    query = files(characters()["ka"][-1])
    answer = call(client, "POST", f"/{state['id']}/explain", files=query, data={"label": "mo", "other": "ka"})
    [card] = answer["explanation"]["cards"]
    assert card["classes"][card["label"]] == "mo"
    assert card["classes"][card["other"]] == "ka"
    assert answer["prediction"]["closest"] == "ka"
    assert card["examples"]
    refused = call(client, "POST", f"/{state['id']}/explain", 422, files=query, data={"label": "none"})
    assert "label must be one of ka, mo, ti, got 'none'" in refused["error"]


def test_an_explanation_says_how_the_images_of_the_class_are_rejected(client, state):
    image = files(characters()["mo"][2])
    state = call(client, "POST", f"/{state['id']}/examples", 201, data={"label": "mo"}, files=image)
    query = files(characters()["mo"][-1])
    left_out = call(client, "POST", f"/{state['id']}/explain", files=query)["left_out"]
    assert (left_out["label"], left_out["images"]) == ("mo", 3)
    classifier = client.app.state.services.fits.kept(state["id"], state["version"]).classifier
    logits = torch.cat([logits[labels == 1] for logits, labels, _ in classifier.fitted.held_out])
    scores = 1 - classifier.calibration.known_score(logits)  # of its images, each left out
    assert left_out["mean"] == pytest.approx(scores.mean().item())
    assert left_out["highest"] == pytest.approx(scores.max().item())
    single = new_classifier(client, shot=1)
    answer = call(client, "POST", f"/{single['id']}/explain", files=query)["left_out"]
    assert (answer["images"], answer["mean"], answer["highest"]) == (0, None, None)


def test_a_classifier_is_read_at_once_without_waiting_for_its_fit(client, state):
    services, path = client.app.state.services, f"/{state['id']}"
    services.fits._fits = Recent(limits.MAX_WEB_FITS)  # as after a restart
    found = call(client, "GET", path, params={"wait": False})
    assert (found["fitted"], found["fitting"], found["warnings"]) == (False, True, [])
    assert found["reason"] == "the classifier must be fitted first, got one that is being fitted; try again"
    assert names(found) == names(state)
    while services.fits.kept(state["id"], state["version"]) is None:  # it is fitted without another request
        time.sleep(0.01)
    found = call(client, "GET", path)
    assert (found["fitted"], found["fitting"]) == (True, False)
    assert call(client, "GET", path, params={"wait": False}) == found


def test_the_status_has_the_progress_of_a_fit(client, monkeypatch):
    state = new_classifier(client, shot=2)
    embedder, seen = client.app.state.services.fits.base("glyphs").image_embedder, []
    embed = type(embedder).embed

    def observed(self, *arguments, **options):
        seen.append(call(client, "GET", f"/{state['id']}/status")["progress"])
        return embed(self, *arguments, **options)

    monkeypatch.setattr(type(embedder), "embed", observed)
    added = files(*characters()["ka"][2:4])
    call(client, "POST", f"/{state['id']}/examples", 201, data={"label": "ka"}, files=added)
    total = state["num_examples"] + 2  # those of before are kept
    assert seen[:2] == [{"embedded": total - 2, "images": total}, {"embedded": total - 1, "images": total}]
    assert call(client, "GET", f"/{state['id']}/status")["progress"] is None


def test_the_status_has_the_version_and_is_not_logged(client, state, caplog):
    caplog.set_level("INFO", "sightline.web")
    path = f"/{state['id']}"
    assert call(client, "GET", f"{path}/status")["version"] == state["version"]
    changed = call(client, "PATCH", path, json={"name": "renamed"})
    assert call(client, "GET", f"{path}/status")["version"] == changed["version"] == state["version"] + 1
    call(client, "GET", f"/{'0' * 16}/status", 404)
    logged = [(record.values["method"], record.values["status"]) for record in caplog.records]
    assert logged == [("PATCH", 200), ("GET", 404)]


def test_a_change_that_a_fit_does_not_depend_on_keeps_it(client, state):
    fits, path = client.app.state.services.fits, f"/{state['id']}"
    first = fits.kept(state["id"], state["version"]).classifier
    for method, address, values in (("POST", f"{path}/classes", {"name": "new"}), ("PATCH", path, {"name": "other"})):
        state = call(client, method, address, 201 if method == "POST" else 200, json=values)
        assert fits.kept(state["id"], state["version"]).classifier is first
    group = state["classes"][0]
    state = call(client, "PATCH", f"{path}/classes/{group['id']}", json={"name": "kaa"})
    assert fits.kept(state["id"], state["version"]).classifier.classes == ("kaa", "mo", "ti")


def test_the_accuracy_is_estimated_with_images_of_two_classes(client):
    state = new_classifier(client, shot=1)
    image = files(characters()["ka"][1])
    state = call(client, "POST", f"/{state['id']}/examples", 201, data={"label": "ka"}, files=image)
    assert state["fitted"]
    assert state["fit"]["estimate"] is None
    assert [group["accuracy"] for group in state["classes"]] == [None] * 3
    image = files(characters()["mo"][1])
    state = call(client, "POST", f"/{state['id']}/examples", 201, data={"label": "mo"}, files=image)
    assert state["fit"]["estimate"]["images"] == 4


def test_several_images_are_removed_as_one_change(client, state):
    path = f"/{state['id']}/examples/remove"
    ka, mo, _ = ([example["id"] for example in group["examples"]] for group in state["classes"])
    refused = call(client, "POST", path, 404, json={"ids": [ka[0], 2**31 - 1]})
    assert f"an image must exist, got '{2**31 - 1}'" in refused["error"]
    call(client, "POST", path, 422, json={"ids": []})
    changed = call(client, "POST", path, json={"ids": [ka[1], mo[0], ka[1]]})
    assert names(changed) == {"ka": 1, "mo": 1, "ti": 2}
    assert changed["undo"] == "remove 2 images"
    assert call(client, "POST", f"/{state['id']}/undo")["classes"] == state["classes"]
    assert call(client, "POST", path, json={"ids": ka})["undo"] == "remove 2 images from ka"


def test_every_change_can_be_undone_in_turn(client, state):
    path, before = f"/{state['id']}", state
    ka, mo, _ = state["classes"]
    steps = [state]
    steps.append(call(client, "PATCH", f"{path}/classes/{ka['id']}", json={"name": "kaa"}))
    steps.append(call(client, "DELETE", f"{path}/examples/{ka['examples'][0]['id']}"))
    example = mo["examples"][1]["id"]
    steps.append(call(client, "PATCH", f"{path}/examples/{example}", json={"class_id": ka["id"]}))
    steps.append(call(client, "DELETE", f"{path}/classes/{ka['id']}"))
    steps.append(call(client, "POST", f"{path}/classes", 201, json={"name": "new"}))
    added = files(characters()["ti"][2])
    steps.append(call(client, "POST", f"{path}/examples", 201, data={"label": "newer"}, files=added))
    steps.append(call(client, "PATCH", path, json={"name": "renamed", "model": "auto"}))
    assert [step["undo"] for step in steps[1:]] == [
        "rename ka to kaa",
        "remove an image from kaa",
        "move an image from mo to kaa",
        "remove the class kaa",
        "add the class new",
        "add the class newer",
        "rename the classifier",
    ]
    assert names(steps[4]) == {"mo": 1, "ti": 2}
    for step in reversed(steps[:-1]):
        undone = call(client, "POST", f"{path}/undo")
        assert undone["classes"] == step["classes"]
        assert (undone["name"], undone["model"]) == (step["name"], step["model"])
    assert undone["classes"] == before["classes"]
    assert "must have a change to undo" in call(client, "POST", f"{path}/undo", 409)["error"]


def test_old_changes_cannot_be_undone_and_their_images_are_deleted(client, state, monkeypatch):
    monkeypatch.setattr(limits, "MAX_WEB_UNDO_STEPS", 2)
    path, size = f"/{state['id']}", state["bytes"]
    removed = state["classes"][0]["examples"][0]["id"]
    state = call(client, "DELETE", f"{path}/examples/{removed}")
    assert state["bytes"] == size  # it can be restored
    for name in ("a", "b"):
        state = call(client, "PATCH", path, json={"name": name})
    assert state["bytes"] < size
    assert client.get(f"/api/classifiers{path}/examples/{removed}/image").status_code == 404
    call(client, "POST", f"{path}/undo")
    call(client, "POST", f"{path}/undo")
    call(client, "POST", f"{path}/undo", 409)


def test_old_changes_are_dropped_where_a_classifier_would_be_too_large(client, state, monkeypatch):
    path, size = f"/{state['id']}", state["bytes"]
    monkeypatch.setattr(limits, "MAX_WEB_CLASSIFIER_BYTES", size)
    call(client, "DELETE", f"{path}/examples/{state['classes'][0]['examples'][0]['id']}")
    image = files(characters()["ka"][0])
    changed = call(client, "POST", f"{path}/examples", 201, data={"label": "ka"}, files=image)
    assert changed["bytes"] == size
    call(client, "POST", f"{path}/undo")
    assert "must have a change to undo" in call(client, "POST", f"{path}/undo", 409)["error"]


def test_a_request_that_changes_nothing_keeps_the_version(client, state):
    path, group = f"/{state['id']}", state["classes"][0]
    for address, values in (
        (path, {}),
        (path, {"name": state["name"], "model": state["model"]}),
        (f"{path}/classes/{group['id']}", {"name": group["name"]}),
        (f"{path}/examples/{group['examples'][0]['id']}", {"class_id": group["id"]}),
    ):
        found = call(client, "PATCH", address, json=values)
        assert (found["version"], found["updated"], found["undo"]) == (state["version"], state["updated"], None)
    assert call(client, "PATCH", path, json={"name": "renamed"})["version"] == state["version"] + 1


def test_duplicates_blank_images_and_wrong_labels_are_found(client):
    state = new_classifier(client, shot=4)
    wrong, blank = characters()["mo"][0], png(np.full((20, 20), 255, np.uint8))
    images = files(wrong, blank)
    state = call(client, "POST", f"/{state['id']}/examples", 201, data={"label": "ka"}, files=images)
    by_kind = {warning["kind"]: warning for warning in state["warnings"]}
    first = state["classes"][1]["examples"][0]["id"]
    assert sorted(by_kind["duplicate"]["examples"]) == sorted([state["added"][0], first])
    assert "in 2 classes" in by_kind["duplicate"]["text"]
    assert by_kind["blank"]["examples"] == [state["added"][1]]
    labels = [warning for warning in state["warnings"] if warning["kind"] == "label"]
    suggestions = {warning["examples"][0]: warning["suggestion"]["name"] for warning in labels}
    assert suggestions[state["added"][0]] == "mo"


def test_an_archive_of_images_can_be_imported_again(client, state):
    response = client.get(f"/api/classifiers/{state['id']}/download", params={"format": "zip"})
    with zipfile.ZipFile(io.BytesIO(response.content)) as archive:
        assert len(archive.namelist()) == 6
    archive = [("archive", ("a.zip", response.content, "application/zip"))]
    copy = call(client, "POST", "/import", 201, files=archive, data={"name": "copy"})
    assert copy["name"] == "copy"
    assert names(copy) == names(state)
    listed = call(client, "GET", "")["classifiers"]
    assert (listed[0]["id"], listed[0]["num_classes"], listed[0]["num_examples"]) == (copy["id"], 3, 6)
    assert listed[0]["class_names"] == [*names(copy)]


def test_a_downloaded_classifier_can_be_opened_again(client, state):
    path, data = f"/{state['id']}", client.get(f"/api/classifiers/{state['id']}/download").content
    archive = [("archive", ("signs.sightline", data, "application/octet-stream"))]
    copy = call(client, "POST", "/import", 201, files=archive, data={"name": "copy"})
    assert copy["model"] == "glyphs"  # that of the file
    assert names(copy) == names(state)
    call(client, "PATCH", path, json={"name": 'für "3b" & more'})
    disposition = client.get(f"/api/classifiers{path}/download").headers["content-disposition"]
    assert disposition.endswith(
        "filename=\"f-r-3b-more.sightline\"; filename*=UTF-8''f%C3%BCr%20_3b_%20%26%20more.sightline"
    )
    query = files(characters()["mo"][-1])
    expected, found = (call(client, "POST", f"{p}/predict", files=query) for p in (path, f"/{copy['id']}"))
    assert found["predictions"][0]["scores"] == pytest.approx(expected["predictions"][0]["scores"], abs=1e-4)
    assert found["predictions"][0]["none_score"] == pytest.approx(expected["predictions"][0]["none_score"], abs=1e-4)


def with_tensor(data, dtype):
    """A safetensors file with one more tensor, of two values in one byte."""
    size = int.from_bytes(data[:8], "little")
    header, content = json.loads(data[8 : 8 + size]), data[8 + size :]
    header["extra"] = {"dtype": dtype, "shape": [2], "data_offsets": [len(content), len(content) + 1]}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + content + b"\0"


def test_a_classifier_file_is_bounded_and_checked(client, state, tmp_path, monkeypatch):
    def refused(data):
        return call(client, "POST", "/import", 422, files=[("archive", ("../a.sightline", data))])["error"]

    data = client.get(f"/api/classifiers/{state['id']}/download").content
    assert "archive must be a complete classifier file" in refused(data[:-1])
    assert "archive must be a complete classifier file" in refused(data[:8] + b"{}" + data[10:])
    assert "or `save`, got a tensor of type 'F4'; fit it again" in refused(with_tensor(data, "F4"))
    long = FewShotClassifier.pretrained("glyphs").fit({"x" * 150 + label: characters()[label] for label in LABELS})
    path = long.save(tmp_path / "long.sightline")
    assert "classes must differ in their first 100 characters, got 3 classes" in refused(path.read_bytes())
    embeddings = {label: torch.eye(7)[i : i + 2] for i, label in enumerate(LABELS)}
    path = FewShotClassifier().fit(embeddings).save(tmp_path / "vectors.sightline")
    assert "must hold images to be opened here, got one that was fitted to embeddings" in refused(path.read_bytes())
    for limit, value, message in (
        ("MAX_WEB_HEADER_BYTES", 1000, "got a header of "),
        ("MAX_WEB_EXAMPLES", 5, "archive must have at most 5 images, got 6"),
        ("MAX_WEB_CLASSES", 2, "archive must have at most 2 classes, got 3"),
        ("MAX_WEB_ARCHIVE_PIXELS", 1000, "the images of an archive must have at most 1,000 pixels"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(limits, limit, value)
            assert message in refused(data)


def test_class_names_survive_a_download_and_an_import():
    labels = ["\U0001f600", "\U0001f44d\U0001f3fd", "C++", "C#", "50% & more", "na\u00efve", "\u6f22\u5b57", "L" * 100]
    images = [("0.png", characters()["ka"][0])]
    found = uploads.read_archive(uploads.write_archive([(label, images) for label in labels]))
    assert [label for label, _ in found] == sorted(labels)
    changed = ["__hidden", "..", ".", "???", "a:b", "a/b", "a_b", "end.", "\U0001f600" * 100]
    written = uploads.write_archive([(label, images) for label in changed])
    assert [label for label, _ in uploads.read_archive(written)] == sorted(changed)
    with zipfile.ZipFile(io.BytesIO(written)) as archive:  # names that every system can unpack
        folders = sorted({name.partition("/")[0] for name in archive.namelist() if "/" in name})
    short = "\U0001f600" * 50
    assert folders == ["a_b", "a_b 2", "a_b 3", "class", "class 2", "class 3", "end", "hidden", short]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b'{"a": "b/c"}', "b/c"),
        (b'{"other": "b"}', "a"),
        (b'{"a": ["b"]}', "a"),
        (b'["a"]', "a"),
        (b'{"a": "c", "b": "c"}', "a"),
        (b"[" * 100_000, "a"),
        (b"\xff{", "a"),
        (b'{"a": "' + b"b" * (1 << 18) + b'"}', "a"),
        (b'{"a": "' + b"b" * 200 + b'"}', "b" * 99 + "\u2026"),
    ],
)
def test_names_in_an_archive_are_used_only_if_they_are_texts(content, expected):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a/0.png", characters()["ka"][0])
        archive.writestr("sightline-classes.json", content)
    [(label, images)] = uploads.read_archive(file.getvalue())
    assert label == expected
    assert len(images) == 1


def test_class_names_never_become_paths(client):
    state = new_classifier(client, labels=("ka",))
    path = f"/{state['id']}"
    for name in ("../../etc", "a/b", "..", "CON"):
        image = files(characters()["mo"][0])
        call(client, "POST", f"{path}/examples", 201, data={"label": name}, files=image)
    response = client.get(f"/api/classifiers{path}/download", params={"format": "zip"})
    with zipfile.ZipFile(io.BytesIO(response.content)) as archive:
        assert "sightline-classes.json" in archive.namelist()
        for entry in {*archive.namelist()} - {"sightline-classes.json"}:
            assert entry.count("/") == 1
            assert ".." not in entry


def test_images_are_stored_upright_small_and_without_metadata(client, state):
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "a secret place"
    file = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 255, (700, 1100, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, "jpeg", exif=exif)
    changed = call(client, "POST", f"/{state['id']}/examples", 201, data={"label": "ka"}, files=files(file.getvalue()))
    [example] = [e for e in changed["classes"][0]["examples"] if e["id"] == changed["added"][0]]
    assert (example["width"], example["height"]) == (326, 512)
    response = client.get(example["url"])
    assert response.headers["content-type"] == "image/jpeg"
    assert "immutable" in response.headers["cache-control"]
    assert b"a secret place" not in response.content
    assert Image.open(io.BytesIO(response.content)).size == (326, 512)


def test_a_bad_file_of_several_does_not_cost_the_others(client, state):
    images = files(b"not an image", characters()["ka"][3])
    changed = call(client, "POST", f"/{state['id']}/examples", 201, data={"label": "ka"}, files=images)
    assert len(changed["added"]) == 1
    [error] = changed["errors"]
    assert error["name"] == "0.png"
    assert "0.png must be a complete PNG" in error["error"]
    refused = call(client, "POST", f"/{state['id']}/examples", 422, data={"label": "new"}, files=images[:1])
    assert "0.png must be a complete PNG" in refused["error"]
    assert [file["name"] for file in refused["errors"]] == ["0.png"]
    bad = files(b"not an image", b"", b"another")
    refused = call(client, "POST", f"/{state['id']}/examples", 422, data={"label": "new"}, files=bad)
    assert "one of the 3 files must be an image that can be used, got none; the first: 0.png must" in refused["error"]
    assert [file["name"] for file in refused["errors"]] == ["0.png", "1.png", "2.png"]
    assert refused["errors"][1]["error"].startswith("1.png must be a complete PNG")
    assert "got an empty file (0 bytes); copy or download it again" in refused["errors"][1]["error"]
    assert names(call(client, "GET", f"/{state['id']}")) == {"ka": 3, "mo": 2, "ti": 2}  # nothing was added
    good, bad = call(client, "POST", f"/{state['id']}/predict", files=images[::-1])["predictions"]
    assert good["error"] is None
    assert "must be a complete PNG" in bad["error"]


def test_a_change_of_another_version_is_refused(client, state):
    path, params = f"/{state['id']}", {"version": state["version"]}
    call(client, "PATCH", path, json={"name": "first"}, params=params)
    refused = call(client, "PATCH", path, 409, json={"name": "second"}, params=params)
    assert "version must be that of the classifier" in refused["error"]
    assert call(client, "GET", path)["name"] == "first"


@pytest.mark.parametrize(
    ("limit", "value", "message"),
    [
        ("MAX_WEB_CLASSES", 3, "a classifier must have at most 3 classes, got more"),
        ("MAX_WEB_EXAMPLES", 6, "a classifier must have at most 6 images, got 7"),
        ("MAX_WEB_CLASSIFIER_BYTES", 1000, "the images of a classifier must have at most 1,000 bytes"),
        ("MAX_WEB_STORE_BYTES", 1000, "the images of all classifiers must have at most 1,000 bytes"),
    ],
)
def test_the_size_of_stored_classifiers_is_bounded(client, state, monkeypatch, limit, value, message):
    monkeypatch.setattr(limits, limit, value)
    request = {"data": {"label": "new"}, "files": files(characters()["ka"][2])}
    assert message in call(client, "POST", f"/{state['id']}/examples", 409, **request)["error"]
    assert call(client, "GET", f"/{state['id']}")["classes"] == state["classes"]


def test_the_number_of_classifiers_is_bounded_and_deletion_makes_room(client, state, monkeypatch):
    count = len(call(client, "GET", "")["classifiers"])
    monkeypatch.setattr(limits, "MAX_WEB_CLASSIFIERS", count)
    assert "stored classifiers must be at most" in call(client, "POST", "", 409, json={})["error"]
    call(client, "DELETE", f"/{state['id']}", 204)
    call(client, "GET", f"/{state['id']}", 404)
    call(client, "POST", "", 201, json={})


@pytest.mark.parametrize(
    ("method", "path", "status", "options", "message"),
    [
        ("GET", "/0123456789abcdef", 404, {}, "which does not; GET /api/classifiers lists those that do"),
        ("GET", "/../../etc/passwd", 404, {}, "the address must be one of this server, got '/etc/passwd'; see /docs"),
        ("GET", "/nothing", 422, {}, "16 of 0-9 and a-f, got 'nothing'; GET /api/classifiers lists them"),
        ("POST", "", 422, {"json": {"name": " "}}, "name must be printable text with at least one character, got"),
        ("POST", "", 422, {"json": {"name": "a\x1bb"}}, "name must be printable text with at least one character, got"),
        ("POST", "", 422, {"json": {"name": "a" * 101}}, "name must have at most 100 characters"),
        ("POST", "", 422, {"json": {"model": "glyph"}}, "did you mean 'glyphs'?"),
        (
            "POST",
            "",
            422,
            {"content": b"{", "headers": {"content-type": "application/json"}},
            "the request body must be JSON",
        ),
        ("PUT", "", 405, {}, "the method must be GET or POST, got PUT; see /docs"),
        ("POST", "/0123456789abcdef", 405, {}, "the method must be DELETE or GET or PATCH, got POST"),
        (
            "POST",
            "",
            415,
            {"data": {"name": "a"}},
            "content-type must be application/json, got 'application/x-www-form-",
        ),
        (
            "POST",
            "",
            415,
            {"content": b"{}"},
            "content-type must be application/json, got none; send JSON with this header",
        ),
        ("POST", "", 422, {}, "the request body must be given, got nothing"),
        (
            "POST",
            "/0123456789abcdef/predict",
            415,
            {"json": {"image": "a.png"}},
            "content-type must be multipart/form-data, got 'application/json'; send files as fields of a form",
        ),
    ],
)
def test_malformed_requests_are_refused_with_a_sentence(client, method, path, status, options, message):
    assert message in call(client, method, path, status, **options)["error"]


def test_a_method_that_is_not_allowed_is_answered_with_those_that_are(client):
    assert client.put("/api/classifiers").headers["allow"] == "GET, POST"
    assert client.post("/static/main.js").json() == {"error": "the method must be GET, got POST; see /docs"}


def test_a_classifier_whose_model_is_not_served_says_so(client, state):
    with client.app.state.services.store.change(state["id"]) as change:
        change.rename(model="gone")
    found = call(client, "GET", f"/{state['id']}")
    assert found["fitted"] is False
    assert found["fitting"] is False
    assert "the model of a classifier must be served, got 'gone'" in found["reason"]
    refused = call(client, "POST", f"/{state['id']}/predict", 422, files=files(characters()["ka"][0]))
    assert "got 'gone'" in refused["error"]
    assert call(client, "POST", f"/{state['id']}/undo")["fitted"]


def test_labels_are_given_once(client, state):
    class_id = state["classes"][0]["id"]
    image = files(characters()["ka"][2])
    for data in ({}, {"label": "ka", "class_id": class_id}):
        refused = call(client, "POST", f"/{state['id']}/examples", 422, data=data, files=image)
        assert "label or class_id must be given, got both or none" in refused["error"]
    changed = call(client, "POST", f"/{state['id']}/examples", 201, data={"class_id": class_id}, files=image)
    assert names(changed)["ka"] == 3
    call(client, "POST", f"/{state['id']}/classes", 201, json={"name": "\u00e9"})
    for name in ("ka", " ka ", "e\u0301"):
        refused = call(client, "POST", f"/{state['id']}/classes", 409, json={"name": name})
        assert "a class name must be new, got " in refused["error"]


def test_classes_and_images_of_another_classifier_are_not_found(client, state):
    other = new_classifier(client, labels=("ka",))
    path = f"/{other['id']}"
    class_id, example_id = state["classes"][0]["id"], state["classes"][0]["examples"][0]["id"]
    call(client, "DELETE", f"{path}/classes/{class_id}", 404)
    call(client, "DELETE", f"{path}/examples/{example_id}", 404)
    call(client, "PATCH", f"{path}/classes/{class_id}", 404, json={"name": "x"})
    assert client.get(f"/api/classifiers{path}/examples/{example_id}/image").status_code == 404
    refused = call(client, "DELETE", f"{path}/examples/{example_id}", 404)["error"]
    assert f"got '{example_id}', which does not; GET /api/classifiers{path} lists those that do" in refused


def test_what_is_kept_is_bounded_by_bytes(monkeypatch):
    monkeypatch.setattr(limits, "MAX_WEB_CACHE_BYTES", 1000)
    kept = Recent(5)
    for i in range(4):
        kept.put(i, (torch.zeros(100), torch.zeros(7, dtype=torch.uint8)))
    assert [kept.get(i) is not None for i in range(4)] == [False, False, True, True]
    assert kept.bytes == 814
    kept.put(2, torch.zeros(11))  # in place of the one before
    kept.get(3)
    assert kept.bytes == 451
    kept.put(4, torch.zeros(140))
    assert [kept.get(i) is not None for i in range(5)] == [False, False, False, True, True]
    kept.put(5, torch.zeros(1000))  # one alone may have more
    assert [kept.get(i) is not None for i in range(6)] == [False] * 5 + [True]
    for i in range(7):
        kept.put(i, torch.zeros(1))
    assert [kept.get(i) is not None for i in range(7)] == [False, False, True, True, True, True, True]


def test_a_fit_has_the_bytes_of_its_tensors_and_grows_with_explanations(client, state):
    fits = client.app.state.services.fits
    fit, total = fits.kept(state["id"], state["version"]), fits._fits.bytes
    size, support = num_bytes(fit), fit.classifier.fitted.support
    assert size > support.embeddings.nbytes + support.images.nbytes
    assert size < sum(weight.nbytes for weight in fit.classifier.model.parameters())  # it is shared
    call(client, "POST", f"/{state['id']}/explain", files=files(characters()["ka"][-1]))
    assert num_bytes(fit) > size
    assert fits._fits.bytes == total + num_bytes(fit) - size

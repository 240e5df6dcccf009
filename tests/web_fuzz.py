"""Generated requests for every operation of the API, and damaged images, archives and classifier files."""

import io
import random
import struct
from collections import Counter

import hypothesis
import numpy as np
import schemathesis.checks as checks
from hypothesis import HealthCheck, given, settings
from PIL import Image

from web_client import characters, class_folders, new_classifier

CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]
MAX_DAMAGED = 20_000
"""Bytes from the start of a file, its header among them, in which damage is done."""
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM")


def call_operations(schema, client, max_examples, seed=0):
    """Call every operation with generated requests and check the answers; returns the number of each status.

    Most generated ids name nothing, so half of the requests get those of a stored classifier, and a real image.
    """
    statuses, rng = Counter(), random.Random(seed)
    for result in schema.get_all_operations():
        state = new_classifier(client)
        _call_operation(result.ok(), state, max_examples, rng, statuses, seed)
        client.delete(f"/api/classifiers/{state['id']}")
    return statuses


def _call_operation(operation, state, max_examples, rng, statuses, seed):
    options = {"database": None, "deadline": None, "suppress_health_check": list(HealthCheck)}

    @hypothesis.seed(seed)
    @given(case=operation.as_strategy())
    @settings(max_examples=max_examples, derandomize=False, **options)
    def run(case):
        if rng.random() < 0.7:
            _make_real(case, state, rng)
        response = case.call(timeout=120)
        statuses[response.status_code] += 1
        case.validate_response(response, checks=CHECKS)

    run()


def _make_real(case, state, rng):
    """Replace ids by those of a stored classifier, and one upload by a real one."""
    group = rng.choice(state["classes"])
    real = {"identifier": state["id"], "name": "de-en", "class_id": group["id"]}
    real["example_id"] = rng.choice(group["examples"])["id"]
    for name, value in real.items():
        if name in case.path_parameters:
            case.path_parameters[name] = value
    if isinstance(case.query, dict):
        case.query.pop("version", None)
    if isinstance(case.body, dict):
        if isinstance(case.body.get("image"), list):
            case.body["image"] = [rng.choice(characters()[label]) for label in ("ka", "mo")]
        elif "image" in case.body:
            case.body["image"] = characters()["ka"][-1]
        if "archive" in case.body:
            case.body["archive"] = class_folders(("ka", "mo"), 1)


def broken_files(count, classifier, seed=0):
    """Damaged images of all formats, archives and classifier files: truncated, with changed bytes, or wrong sizes."""
    rng, pixels = random.Random(seed), np.random.default_rng(seed).integers(0, 255, (37, 23, 3), dtype=np.uint8)
    whole = []
    for kind in FORMATS:
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, kind)
        whole.append(file.getvalue())
    whole += [class_folders(("ka", "mo"), 2), classifier]
    for i in range(count):
        data = bytearray(whole[i % len(whole)])
        damaged = min(len(data), MAX_DAMAGED)
        damage = rng.choice(("cut", "bytes", "size", "zeros", "repeat"))
        if damage == "cut":
            data = data[: rng.randrange(len(data))]
        elif damage == "bytes":
            for _ in range(rng.randrange(1, 40)):
                data[rng.randrange(damaged)] = rng.randrange(256)
        elif damage == "size":
            start = rng.randrange(min(60, len(data) - 4))
            data[start : start + 4] = struct.pack(rng.choice("<>") + "I", rng.choice((0, 1, 1 << 16, (1 << 31) - 1)))
        elif damage == "zeros":
            start = rng.randrange(damaged)
            data[start : start + 200] = bytes(200)
        else:
            data += data[rng.randrange(len(data)) :] * 3
        yield bytes(data)


def send_broken_files(client, count, seed=0):
    """Upload damaged files wherever files are taken; returns the number of each status."""
    state, statuses = new_classifier(client), Counter()
    path = f"/api/classifiers/{state['id']}"
    targets = [(f"{path}/predict", "image"), (f"{path}/examples", "image"), ("/api/classifiers/import", "archive")]
    targets.append((f"{path}/explain", "image"))
    for i, data in enumerate(broken_files(count, client.get(f"{path}/download").content, seed)):
        is_archive = data[:2] == b"PK" or b"__metadata__" in data[:MAX_DAMAGED]
        url, name = targets[2] if is_archive and i % 3 else targets[i % len(targets)]
        response = client.post(url, files=[(name, ("file", data))], data={"label": "ka"})
        statuses[response.status_code] += 1
        assert response.status_code in (200, 201, 409, 422), (url, response.status_code, response.text)
        if url == targets[1][0] and response.status_code == 201:  # some damage does no harm
            client.post(f"{path}/undo")
        if url == targets[2][0] and response.status_code == 201:
            client.delete(f"/api/classifiers/{response.json()['id']}")
    client.delete(path)
    return statuses

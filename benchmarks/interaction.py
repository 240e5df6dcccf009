"""How long the web app takes for what a person does: teach an image, ask why, remove a word, switch a head off.

    python -m benchmarks.interaction [--images FOLDER] > benchmarks/results/interaction.txt

Sends the requests of the page to `sightline serve` over loopback, one at a time, and prints the median and the slowest.
`--images` is a folder with a folder of images for each of six classes, five images each; by default, drawn characters.
The models `photos` and `caption` are measured if the extra `photos` is installed.
"""

import argparse
import base64
import io
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2 as httpx
from PIL import Image

from sightline.demo import characters

from .serve import started

REPEATS = 20
TEXTS = {
    "de-en": "Zwei Kinder spielen im Park mit einem roten Ball.",
    "fill-mask": "Two children play in the park with a [MASK] ball.",
}
IMAGE_LIMITS = {"fashion": 200, "caption": 1000}
"""Bars of the models of images, in milliseconds."""


def measure(
    name: str, limit: float, ask: Callable[[int], object], after: Callable[[int], object] | None = None
) -> None:
    """Print the times of several calls, in milliseconds, after one that is not counted."""
    times = []
    for i in range(REPEATS + 1):
        start = time.perf_counter()
        ask(i)
        times.append(1000 * (time.perf_counter() - start))
        if after is not None:
            after(i)
    times = times[1:]
    print(f"{name:<44}  {statistics.median(times):6.0f} ms  {max(times):6.0f} ms  {limit:5.0f} ms", flush=True)


def teach(client: httpx.Client, model: str, classes: dict[str, list[bytes]]) -> None:
    """Times of a classifier that a person teaches."""
    made = client.post("/api/classifiers", json={"name": model, "model": model}).raise_for_status().json()
    url = f"/api/classifiers/{made['id']}"
    for label, images in classes.items():
        files = [("image", image) for image in images]
        client.post(f"{url}/examples", data={"label": label}, files=files).raise_for_status()
    label, image = next((label, images[-1]) for label, images in classes.items())
    count = f"{len(classes)} classes of {min(map(len, classes.values()))} images"

    def remove(_: int) -> None:
        example = client.get(url).raise_for_status().json()["classes"][0]["examples"][-1]["id"]
        client.delete(f"{url}/examples/{example}").raise_for_status()

    def change(i: int) -> None:
        """Teach an image that is new to the server."""
        client.post(f"{url}/examples", data={"label": label}, files={"image": variant(image, i)}).raise_for_status()

    measure(f"{model}: {count}, teach one more", 1000, change, after=remove)
    query = {"image": image}
    measure(f"{model}: classify an image", 200, lambda _: client.post(f"{url}/predict", files=query).raise_for_status())
    measure(f"{model}: why?", 500, lambda _: client.post(f"{url}/explain", files=query).raise_for_status())


def variant(image: bytes, i: int) -> bytes:
    """The image with some other pixels, as a PNG file."""
    buffer = io.BytesIO()
    with Image.open(io.BytesIO(image)) as opened:
        changed = opened.convert("RGB")
        changed.putpixel((i, 0), (128, 128, 128))
        changed.save(buffer, "png")
    return buffer.getvalue()


def edit(client: httpx.Client, model: str) -> None:
    """Times of answers with a word removed, and with a head switched off."""
    url, request = f"/api/models/{model}/predict", {"texts": [TEXTS[model]], "attention": "packed"}

    def ask(**changes: object) -> Any:
        answer = client.post(url, json={**request, **changes}).raise_for_status().json()
        return answer["predictions"][0]["inspection"]

    inspection = ask()
    layer, words = inspection["layers"][-1]["name"], [i for i, can_go in enumerate(inspection["removable"]) if can_go]
    measure(f"{model}: the answer with its attention", 200, lambda _: ask())
    measure(f"{model}: a word removed", 200, lambda i: ask(remove_tokens=[words[i % len(words)]]))
    measure(f"{model}: a head switched off", 200, lambda i: ask(ablate_heads={layer: [i % 4]}))


def edit_image(client: httpx.Client, model: dict[str, Any], limit: float) -> None:
    """Times of answers for an image to try, with a part removed, and with a head of a layer switched off."""
    name, url = model["name"], f"/api/models/{model['name']}/predict-image"
    image = base64.b64decode(model["examples"][0].partition(",")[2])

    def ask(**changes: object) -> Any:
        data = {"attention": "packed", **{key: json.dumps(value) for key, value in changes.items()}}
        answer = client.post(url, data=data, files={"image": image}).raise_for_status().json()
        return answer["predictions"][0]["inspection"]

    inspection = ask()
    patches = [i for i, can_go in enumerate(inspection["removable"]) if can_go]
    measure(f"{name}: the answer with its attention", limit, lambda _: ask())
    if inspection["layers"]:  # a caption has maps of words instead
        measure(f"{name}: a part removed", limit, lambda i: ask(remove_tokens=[patches[i % len(patches)]]))
        layer = inspection["layers"][-1]["name"]
        measure(f"{name}: a head switched off", limit, lambda i: ask(ablate_heads={layer: [i % 3]}))


def main() -> None:
    """Start a server and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, help="a folder of class folders")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = options.images or characters.write_images(Path(name))[0]
        classes = {
            path.name: [image.read_bytes() for image in sorted(path.iterdir())[:5]]
            for path in sorted(folder.iterdir())[:6]
        }
        command = ["-m", "sightline", "serve", "--port", "0", "--store", f"{name}/store.sqlite"]
        print(f"{os.cpu_count()} cores; median, slowest of {REPEATS}, bar\n")
        with (
            started(command) as (port, _),
            httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
        ):
            models = client.get("/api/models").raise_for_status().json()
            for model in models["few_shot_models"]:
                if model["available"] and model["name"] != "auto":
                    teach(client, model["name"], classes)
            for model in TEXTS:
                edit(client, model)
            for model in models["models"]:
                if model["name"] in IMAGE_LIMITS:
                    edit_image(client, model, IMAGE_LIMITS[model["name"]])


if __name__ == "__main__":
    main()

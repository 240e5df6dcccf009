"""A Chromium browser for tests, docs and benchmarks: finding one, launching it, and driving a page of the viewer.

`python tests/browser.py` prints the browser that is used, or how to install one.
"""

import base64
import io
import os
import re
import shutil
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from playwright.sync_api import Browser, BrowserContext, Frame, Page, Playwright, ViewportSize, sync_playwright

SVG = "{http://www.w3.org/2000/svg}"
VARIABLE = "SIGHTLINE_BROWSER"
COMMANDS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-quic",
    "--in-process-gpu",
]
VIEWPORT: ViewportSize = {"width": 1280, "height": 800}
TIMEOUT = 300_000
"""Milliseconds after which a page is considered to hang, also on a busy machine."""
SETTLE = """async () => {
    const frame = () => new Promise(requestAnimationFrame);
    do await frame(), await frame(); // a scroll event comes with the next frame
    while (document.querySelector("#viewport")?.ariaBusy !== "false" || !document.documentElement.dataset.view);
}"""
EXPECT_WHEEL = """() => {
    window.gotWheel = new Promise((done) => addEventListener("wheel", () => done(), { once: true }));
}"""


class NoBrowserError(Exception):
    """No Chromium is installed."""


def find_browser(playwright: Playwright) -> str:
    """The path of a Chromium: the environment variable, a command on the PATH, or the browser of Playwright."""
    if chosen := os.environ.get(VARIABLE):
        if path := shutil.which(chosen):
            return path
        raise NoBrowserError(f"{VARIABLE} must be an executable, got {chosen!r}")
    for path in (*map(shutil.which, COMMANDS), shutil.which(playwright.chromium.executable_path)):
        if path:
            return path
    raise NoBrowserError(
        f"browser tests must have a Chromium, got none of {', '.join(COMMANDS)}; install one (Debian: apt-get install "
        f"chromium-headless-shell; elsewhere: .venv/bin/playwright install chromium) or set {VARIABLE} to an executable"
    )


def launch(playwright: Playwright) -> Browser:
    """Start the browser."""
    return playwright.chromium.launch(executable_path=find_browser(playwright), args=FLAGS, timeout=TIMEOUT)


class ViewerPage:
    """A browser page with the viewer. `errors` collects console errors, dialogs and requests to any host."""

    def __init__(self, page: Page):
        page.set_default_timeout(TIMEOUT)
        self.page = page
        self.frame: Page | Frame = page
        self.errors: list[str] = []
        page.on("console", lambda message: message.type == "error" and self.errors.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: self.errors.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (self.errors.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: self._check_request(request.url))

    def _check_request(self, url: str) -> None:
        if not url.startswith(("file:", "data:", "blob:", "about:")):
            self.errors.append(f"request: {url}")

    def reset(self) -> list[str]:
        """Undo what a test did, and return the errors."""
        errors, self.errors = self.errors, []
        self.frame = self.page
        self.page.mouse.move(0, 0)
        self.page.emulate_media(color_scheme="light")
        if self.page.viewport_size != VIEWPORT:
            self.page.set_viewport_size(VIEWPORT)
        return errors

    def open(self, path: Path, state: str = "") -> "ViewerPage":
        self.page.goto(f"{path.as_uri()}#{state}" if state else path.as_uri())
        self.settle()
        return self

    def reload(self) -> None:
        self.page.reload()
        self.settle()

    def settle(self) -> None:
        """Wait until everything is loaded and drawn."""
        self.frame.evaluate(SETTLE)

    @property
    def hash(self) -> str:
        return self.page.evaluate("() => location.hash")

    @property
    def state(self) -> dict[str, str]:
        """The hash as names and values."""
        return dict(part.split("=") for part in self.hash.lstrip("#").split("&"))

    @property
    def status(self) -> str:
        return self.frame.locator(".status").inner_text()

    @property
    def weight(self) -> str:
        """The weight in the status line."""
        return re.search(r": (\S+) · ", self.status).group(1)

    @property
    def tooltip(self) -> list[str]:
        return self.frame.locator(".tooltip > div").all_inner_texts()

    @property
    def weights(self) -> list[tuple[str, str]]:
        """The list beside the drawing: tokens and weights."""
        rows = self.frame.locator(".weights li")
        return list(zip(rows.locator(".name").all_inner_texts(), rows.locator(".value").all_inner_texts(), strict=True))

    @property
    def view(self) -> str:
        return self.frame.locator("html").get_attribute("data-view")

    @property
    def tabs(self) -> list[str]:
        return self.frame.locator("[role=tab]:not([hidden])").all_inner_texts()

    def tab(self, name: str) -> None:
        self.frame.get_by_role("tab", name=name).click()
        self.settle()

    def button(self, name: str) -> None:
        self.frame.get_by_role("button", name=name, exact=True).click()
        self.settle()

    def choose(self, label: str, option: str) -> None:
        self.frame.get_by_label(label, exact=True).select_option(label=option)
        self.settle()

    def slide(self, label: str, value: float) -> None:
        self.frame.get_by_role("slider", name=label).fill(str(value))
        self.settle()

    def press(self, *keys: str) -> None:
        """Press keys with the drawing focused."""
        self.frame.locator(".scroller").focus()
        for key in keys:
            self.page.keyboard.press(key)
        self.settle()

    def step(self, key: str) -> None:
        """Press one key and wait for two frames."""
        self.page.keyboard.press(key)
        self.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def wheel(self, pixels: float) -> None:
        """Turn the mouse wheel and wait until the page has got the event."""
        self.page.evaluate(EXPECT_WHEEL)
        self.page.mouse.wheel(0, pixels)
        self.page.evaluate("() => window.gotWheel")
        self.settle()

    def export(self, format: str) -> bytes:
        """The file of the SVG or PNG button."""
        with self.page.expect_download() as download:
            button = self.frame.locator(f"button[aria-label='Save this view as {format}']")
            button.dispatch_event("click")  # also if it is folded away
        return Path(download.value.path()).read_bytes()

    def svg(self) -> ET.Element:
        return ET.fromstring(self.export("SVG"))

    def texts(self) -> list[tuple[str, float, float]]:
        """Every text of the drawing and its position."""
        return [(t.text or "", float(t.get("x")), float(t.get("y"))) for t in self.svg().iter(f"{SVG}text")]

    def words(self) -> list[str]:
        """Every text of the drawing."""
        return [text for text, _, _ in self.texts()]

    def locate(self, text: str, occurrence: int = 0) -> tuple[float, float]:
        """The position of a text of the drawing on the screen."""
        positions = [(x, y) for t, x, y in self.texts() if t == text]
        assert len(positions) > occurrence, f"{text!r} is not in the drawing"
        return self.on_screen(*positions[occurrence])

    def on_screen(self, x: float, y: float) -> tuple[float, float]:
        box = self.frame.locator(".scroller").bounding_box()
        left, top = self.scroll_position
        return box["x"] + x - left, box["y"] + y - top

    @property
    def scroll_position(self) -> list[float]:
        return self.frame.evaluate(
            "() => ['scrollLeft', 'scrollTop'].map((edge) => document.querySelector('.scroller')[edge])"
        )

    def hover(self, text: str, occurrence: int = 0, dx: float = 0, dy: float = 0) -> None:
        x, y = self.locate(text, occurrence)
        self.page.mouse.move(x + dx, y + dy)
        self.settle()

    def click(self, text: str, occurrence: int = 0, dx: float = 0, dy: float = 0) -> None:
        x, y = self.locate(text, occurrence)
        self.page.mouse.click(x + dx, y + dy)
        self.settle()

    def canvas(self) -> str:
        """The drawing without the tooltip."""
        return self.frame.evaluate("() => document.querySelector('canvas').toDataURL()")

    def screenshot(self) -> bytes:
        return self.frame.locator(".scroller").screenshot()


def is_close(text: str, exact: float, row_max: float) -> bool:
    """Whether a printed weight is within the quantization error of the recorded one."""
    return abs(printed_weight(text) - float(exact)) <= float(row_max) / 255


def printed_weight(text: str) -> float:
    """The value of a printed weight; ≈0 and <0.0001 are 0."""
    return 0.0 if text[0] in "<≈" else float(text)


def image_pixels(image: ET.Element) -> np.ndarray:
    """The RGB pixels of an image in a drawing: (H, W, 3)"""
    data = base64.b64decode(image.get("href").partition(",")[2])
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def curved_lines(svg: ET.Element) -> dict[str, list[tuple[float, ...]]]:
    """The curved lines of a drawing by color: (x1, y1, x2, y2)"""
    lines: dict[str, list[tuple[float, ...]]] = {}
    for path in svg.iter(f"{SVG}path"):
        for x1, y1, curve in re.findall(r"M([\d.-]+) ([\d.-]+)C([\d. -]+)", path.get("d")):
            x2, y2 = curve.split()[-2:]
            lines.setdefault(path.get("stroke"), []).append((float(x1), float(y1), float(x2), float(y2)))
    return lines


def new_window(browser: Browser, **options: Any) -> BrowserContext:
    """A window of 1280 x 800 pixels, with storage of its own."""
    return browser.new_context(viewport=VIEWPORT, accept_downloads=True, **options)


@contextmanager
def open_viewer(window: BrowserContext) -> Iterator[ViewerPage]:
    """A new page. Leaving the block asserts that it has no errors."""
    viewer = ViewerPage(window.new_page())
    try:
        yield viewer
        assert viewer.errors == []
    finally:
        viewer.page.close()


if __name__ == "__main__":
    with sync_playwright() as playwright:
        try:
            print(find_browser(playwright))  # noqa: T201
        except NoBrowserError as error:
            sys.exit(str(error))

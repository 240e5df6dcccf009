"""Someone who looks at a page in a real browser, and notices everything that goes wrong."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Frame, Page

SVG = "{http://www.w3.org/2000/svg}"
CHROMIUM = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-quic",
]


class Visitor:
    """Drives one page. `problems` holds console errors, dialogs and requests to any host."""

    def __init__(self, page: Page):
        page.set_default_timeout(8000)
        self.page = page
        self.frame: Page | Frame = page
        self.problems: list[str] = []
        page.on("console", lambda message: message.type == "error" and self.problems.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (self.problems.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: self._check(request.url))

    def _check(self, url: str) -> None:
        if not url.startswith(("file:", "data:", "blob:", "about:")):
            self.problems.append(f"request: {url}")

    def open(self, path: Path, state: str = "") -> "Visitor":
        self.page.goto(f"{path.as_uri()}#{state}" if state else path.as_uri())
        self.ready()
        return self

    def ready(self) -> None:
        self.frame.wait_for_selector("html[data-view]", state="attached")
        self.rest()

    def rest(self) -> None:
        """Until what is asked for has been unpacked and drawn."""
        self.page.wait_for_timeout(30)
        self.frame.wait_for_selector("#stage[aria-busy=false]", state="attached")
        self.page.wait_for_timeout(20)

    @property
    def hash(self) -> str:
        return self.page.evaluate("() => location.hash")

    @property
    def status(self) -> str:
        return self.frame.locator(".status").inner_text()

    @property
    def tip(self) -> list[str]:
        return self.frame.locator(".tip > div").all_inner_texts()

    @property
    def looks(self) -> list[tuple[str, str]]:
        """The list beside the drawing: names and numbers."""
        rows = self.frame.locator(".looks li")
        return list(zip(rows.locator(".name").all_inner_texts(), rows.locator(".value").all_inner_texts(), strict=True))

    @property
    def views(self) -> list[str]:
        return self.frame.locator("[role=tab]:not([hidden])").all_inner_texts()

    def tab(self, name: str) -> None:
        self.frame.get_by_role("tab", name=name).click()
        self.rest()

    def button(self, name: str) -> None:
        self.frame.get_by_role("button", name=name, exact=True).click()
        self.rest()

    def choose(self, label: str, option: str) -> None:
        self.frame.get_by_label(label, exact=True).select_option(label=option)
        self.rest()

    def slide(self, label: str, value: float) -> None:
        self.frame.get_by_role("slider", name=label).fill(str(value))
        self.rest()

    def press(self, *keys: str) -> None:
        """On the drawing."""
        self.frame.locator(".scroller").focus()
        for key in keys:
            self.page.keyboard.press(key)
        self.rest()

    def step(self, key: str) -> None:
        """One key, and the frames that answer it."""
        self.page.keyboard.press(key)
        self.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def saved(self, format: str) -> bytes:
        """What the SVG or PNG button gives."""
        with self.page.expect_download() as download:
            self.frame.get_by_role("button", name=f"Save this view as {format}").click()
        return Path(download.value.path()).read_bytes()

    def drawing(self) -> ET.Element:
        return ET.fromstring(self.saved("SVG"))

    def texts(self) -> list[tuple[str, float, float]]:
        """Every text of the drawing, and where it stands."""
        return [(t.text or "", float(t.get("x")), float(t.get("y"))) for t in self.drawing().iter(f"{SVG}text")]

    def place(self, text: str, which: int = 0) -> tuple[float, float]:
        """Where a text of the drawing is, on the screen."""
        found = [(x, y) for t, x, y in self.texts() if t == text]
        assert len(found) > which, f"{text!r} is not in the drawing"
        return self.on_screen(*found[which])

    def on_screen(self, x: float, y: float) -> tuple[float, float]:
        box = self.frame.locator(".scroller").bounding_box()
        left, top = self.scrolled
        return box["x"] + x - left, box["y"] + y - top

    @property
    def scrolled(self) -> list[float]:
        return self.frame.evaluate(
            "() => ['scrollLeft', 'scrollTop'].map((edge) => document.querySelector('.scroller')[edge])"
        )

    def hover(self, text: str, which: int = 0, dx: float = 0, dy: float = 0) -> None:
        x, y = self.place(text, which)
        self.page.mouse.move(x + dx, y + dy)
        self.rest()

    def click(self, text: str, which: int = 0, dx: float = 0, dy: float = 0) -> None:
        x, y = self.place(text, which)
        self.page.mouse.click(x + dx, y + dy)
        self.rest()

    def canvas(self) -> str:
        """The drawing as it is now, without what floats above it."""
        return self.frame.evaluate("() => document.querySelector('canvas').toDataURL()")

    def shot(self) -> bytes:
        return self.frame.locator(".scroller").screenshot()


def line_ends(drawing: ET.Element) -> dict[str, list[tuple[float, ...]]]:
    """Bent lines by color: (x1, y1, x2, y2)"""
    found: dict[str, list[tuple[float, ...]]] = {}
    for path in drawing.iter(f"{SVG}path"):
        for x1, y1, curve in re.findall(r"M([\d.-]+) ([\d.-]+)C([\d. -]+)", path.get("d")):
            x2, y2 = curve.split()[-2:]
            found.setdefault(path.get("stroke"), []).append((float(x1), float(y1), float(x2), float(y2)))
    return found


@contextmanager
def visiting(browser: Browser, **options: object) -> Iterator[Visitor]:
    """A visitor with a fresh window, who must have met no problem by the time they leave."""
    context = browser.new_context(viewport={"width": 1280, "height": 800}, accept_downloads=True, **options)
    visitor = Visitor(context.new_page())
    try:
        yield visitor
        assert visitor.problems == []
    finally:
        context.close()

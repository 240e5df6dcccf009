"""The saved page and the pages of BertViz with the same record: file size, time to the first view, memory.

The heads view is compared with `head_view` (one layer, all heads) and the grid view with `model_view` (all layers and
heads). Time is measured from the start of the navigation until the weights are drawn and two frames have passed. Memory
is the resident memory of the renderer process after loading, minus that of a blank page, and the JavaScript heap after
a garbage collection. Each page is opened in a new browser. A page that is not drawn within `TIMEOUT` seconds, or whose
renderer crashes, fails. Scrolling moves 40 pixels per frame between both ends; only frames in which the view moved
count. A 60 Hz screen shows a frame every 17 ms. The alignment view shows the same weights as cross-attention.

The pages of BertViz load require.js, d3 and jQuery from a CDN. Here the npm packages of the same versions are served
locally from .peers/libraries and the addresses are replaced (jQuery 2.0.0 is not on npm, so 2.1.1 is used).
"""

import functools
import http.server
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from playwright.sync_api import Browser, Error, Playwright, sync_playwright
from transformers import BertConfig, BertModel

from sightline.attention import AttentionMap, Record, record_attention

from .clock import Samples
from .peers import FOLDER, ROOT, PeerProcess
from .record import Report
from .suite import Settings

sys.path.append(str(ROOT / "tests"))
from browser import NoBrowserError, launch

TIMEOUT = 120
VIEWS = {"heads": "head_view", "grid": "model_view"}
LIBRARIES = {
    "https://cdnjs.cloudflare.com/ajax/libs/require.js/2.3.6/require.min.js": "requirejs/require.js",
    "https://cdnjs.cloudflare.com/ajax/libs/d3/5.7.0/d3.min": "d3/dist/d3.min",
    "https://cdnjs.cloudflare.com/ajax/libs/jquery/2.0.0/jquery.min": "jquery/dist/jquery.min",
}
DRAWN = {"sightline": "#viewport[aria-busy=false]", "bertviz": "#vis svg line"}
"""Selectors that match once the weights are drawn."""
RECORD_FIRST_VIEW = """(() => {
  const check = () => {
    if (!document.querySelector(%r)) return requestAnimationFrame(check);
    requestAnimationFrame(() => requestAnimationFrame(() => { window.firstView = performance.now(); }));
  };
  requestAnimationFrame(check);
})()"""
SCROLL = """async () => {
  const scroller = document.querySelector(".scroller");
  const nextFrame = () => new Promise(requestAnimationFrame);
  const height = scroller.scrollHeight - scroller.clientHeight, width = scroller.scrollWidth - scroller.clientWidth;
  const edge = height >= width ? "scrollTop" : "scrollLeft";
  const times = [];
  let [step, before] = [40, await nextFrame()];
  for (let i = 0; i < 120; i++) {
    const position = scroller[edge];
    scroller[edge] += step;
    if (scroller[edge] === position) scroller[edge] += step = -step;
    const moved = scroller[edge] !== position;
    const now = await nextFrame();
    if (moved) times.push(now - before);
    before = now;
  }
  return [times, Math.max(height, width)];
}"""


def run(settings: Settings, report: Report) -> None:
    """Compare pages of several lengths, then open and scroll a long page."""
    settings.has_peer("transformers", report)
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        try:
            browser = launch(playwright)
        except NoBrowserError as error:
            report.skip(error)
            return
        report.note(f"Chromium {browser.version}")
        browser.close()
        with settings.peer("bertviz", report) as peer, served_libraries() as address:
            if peer is not None and not address:
                report.skip("npm packages: not installed: see benchmarks/README.md")
            for num_tokens, views, repeats in settings.pick(
                tiny=[(8, ("heads",), 1)],
                cpu=[(64, ("heads", "grid"), 2), (256, ("heads",), 2)],
                gpu=[(64, ("heads", "grid"), 2), (256, ("heads",), 2)],
            ):
                record, tokens = bert_record(num_tokens), [f"w{i}" for i in range(num_tokens)]
                page = record.save_html(Path(folder) / "sightline.html", tokens)
                theirs = bertviz_pages(record, tokens, Path(folder), peer, address) if peer and address else {}
                for view in views:
                    compare(playwright, f"{view}, {num_tokens} tokens", view, page, theirs.get(view), repeats, report)
        if not settings.tiny:
            measure_scrolling(playwright, Path(folder), report)


@contextmanager
def served_libraries() -> Iterator[str]:
    """The address of the npm packages; empty if they are not installed."""
    folder = FOLDER / "libraries" / "node_modules"
    if not folder.is_dir():
        yield ""
        return
    handler = functools.partial(QuietHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """Serves files without logging."""

    def log_message(self, *args: object) -> None:
        """Log nothing."""


def bert_record(tokens: int) -> Record:
    """The attention of 12 layers with 12 heads and random weights. This initializer range compresses worst."""
    torch.manual_seed(0)
    config = BertConfig(hidden_size=192, num_attention_heads=12, intermediate_size=192, initializer_range=0.05)
    model = BertModel(config).eval()
    with record_attention(model) as record, torch.no_grad():
        model(torch.randint(0, config.vocab_size, (1, tokens)))
    return record


def bertviz_pages(record: Record, tokens: list[str], folder: Path, peer: PeerProcess, address: str) -> dict[str, Path]:
    """The pages of BertViz by the view they are compared with; libraries are loaded from `address`."""
    pages = {view: folder / f"{name}.html" for view, name in VIEWS.items()}
    path = folder / "record.safetensors"
    record.save(path)
    peer.call(record=str(path), tokens=tokens, pages={view: str(page) for view, page in pages.items()})
    for page in pages.values():
        text = page.read_text(encoding="utf-8")
        for cdn, local in LIBRARIES.items():
            text = text.replace(cdn, f"{address}/{local}")
        page.write_text(text, encoding="utf-8")
    return pages


def measure_once(playwright: Playwright, url: str, drawn: str) -> dict[str, float] | None:
    """Open a page in a new browser; None if it fails."""
    browser = launch(playwright)
    try:
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.set_default_timeout(TIMEOUT * 1000)
        session = page.context.new_cdp_session(page)
        blank = resident_bytes(browser)
        page.add_init_script(RECORD_FIRST_VIEW % drawn)
        page.goto(url, wait_until="commit")
        page.wait_for_selector(drawn, state="attached")
        while not (milliseconds := page.evaluate("() => window.firstView || 0")):
            page.wait_for_timeout(20)
        page.wait_for_load_state("load")
        session.send("HeapProfiler.collectGarbage")
        session.send("Performance.enable")
        metrics = {metric["name"]: metric["value"] for metric in session.send("Performance.getMetrics")["metrics"]}
        memory = resident_bytes(browser) - blank
        return {"time": milliseconds / 1000, "memory": memory, "heap": metrics["JSHeapUsedSize"]}
    except Error:
        return None
    finally:
        browser.close()


def scroll_times(playwright: Playwright, url: str) -> tuple[list[float], float]:
    """Sorted milliseconds per frame while scrolling, and the scrollable pixels."""
    browser = launch(playwright)
    try:
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto(url)
        page.wait_for_selector(DRAWN["sightline"], state="attached")
        times, pixels = page.evaluate(SCROLL)
        return sorted(times), pixels
    finally:
        browser.close()


def resident_bytes(browser: Browser) -> float:
    """The resident memory of the largest renderer process."""
    processes = browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")["processInfo"]
    sizes = []
    for process in processes:
        if process["type"] == "renderer":
            status = Path(f"/proc/{process['id']}/status").read_text()
            sizes.append(int(status.split("VmRSS:")[1].split()[0]) * 1024)
    return max(sizes)


def compare(
    playwright: Playwright, name: str, view: str, page: Path, theirs: Path | None, repeats: int, report: Report
) -> None:
    """Open the pages alternately."""
    pages = {"Sightline": (page, f"{page.as_uri()}#view={view}", DRAWN["sightline"])}
    if theirs is not None:
        pages["BertViz"] = (theirs, theirs.as_uri(), DRAWN["bertviz"])
    results: dict[str, list[dict[str, float]]] = {viewer: [] for viewer in pages}
    for _ in range(repeats):
        for viewer, (_, url, drawn) in pages.items():
            result = measure_once(playwright, url, drawn)
            if result is None:
                report.note(f"{viewer}, {name}: not drawn within {TIMEOUT} s, or the renderer crashed.")
                return
            results[viewer].append(result)
    sizes = {viewer: Samples((path.stat().st_size,)) for viewer, (path, *_) in pages.items()}
    samples = {
        quantity: {viewer: Samples(tuple(row[quantity] for row in rows)) for viewer, rows in results.items()}
        for quantity in ("time", "memory", "heap")
    }
    titles = {"time": "first view", "memory": "memory", "heap": "JavaScript heap", "size": "file"}
    for quantity, values in {"size": sizes, **samples}.items():
        unit = "s" if quantity == "time" else "bytes"
        if theirs is None:
            report.add(f"{titles[quantity]}, {name}", values["Sightline"], unit)
        else:
            both = ("Sightline", values["Sightline"]), ("BertViz", values["BertViz"])
            report.compare(f"{titles[quantity]}, {name}", *both, unit=unit)


def measure_scrolling(playwright: Playwright, folder: Path, report: Report) -> None:
    """Times and memory of each view with 512 tokens."""
    record = bert_record(512)
    cross = Record(record.model, [AttentionMap(name=m.name, kind="cross", weights=m.weights) for m in record])
    page, cross_page = record.save_html(folder / "long.html"), cross.save_html(folder / "cross.html")
    report.add("file, 512 tokens", page.stat().st_size, "bytes")
    for view in ("heads", "grid", "matrix", "alignment", "temperature"):
        url = f"{(cross_page if view == 'alignment' else page).as_uri()}#view={view}"
        result = measure_once(playwright, url, DRAWN["sightline"])
        if result is None:
            report.note(f"Sightline, {view}, 512 tokens: not drawn within {TIMEOUT} s, or the renderer crashed.")
            continue
        times, _ = scroll_times(playwright, url)
        report.add(f"first view, {view}, 512 tokens", result["time"])
        report.add(f"memory, {view}, 512 tokens", result["memory"], "bytes")
        report.add(f"frame while scrolling, {view}, 512 tokens", Samples(tuple(ms / 1000 for ms in times)))

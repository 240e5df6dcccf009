"""The saved page and that of BertViz 1.4 with the same record: file size, time to first view, memory.

BertViz is installed in a separate environment. Its pages load require.js, d3 and jQuery from a CDN. Here the npm
packages of the same versions are served locally and the URLs are replaced (jQuery 2.0.0 is not on npm, so 2.1.1 is
used).

    python -m venv .peers/bertviz
    .peers/bertviz/bin/pip install torch==2.13.0 'bertviz>=1.4,<1.5'
    npm install --prefix .peers/libraries requirejs@2.3.6 d3@5.7.0 jquery@2.1.1
    python benchmarks/viewer.py | tee benchmarks/results/viewer.txt

The heads view is compared with `head_view` (one layer, all heads) and the grid view with `model_view` (all layers and
heads). Time is measured from the start of the navigation until the weights are drawn and two frames have passed. Memory
is the resident memory of the renderer process after loading, minus that of a blank page, and the JavaScript heap after
a garbage collection. Each page is opened in a new browser `REPEATS` times; medians are printed. A page that is not
drawn within `TIMEOUT` seconds, or whose renderer crashes, fails. Scrolling moves 40 pixels per frame between both ends;
only frames in which the view moved count. A 60 Hz screen shows a frame every 17 ms. The alignment view shows the same
weights as cross-attention. `python benchmarks/viewer.py sightline` omits BertViz.
"""

import functools
import http.server
import json
import statistics
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import torch
from playwright.sync_api import Browser, Error, Playwright, sync_playwright
from transformers import BertConfig, BertModel

from sightline.attention import AttentionMap, Record, record_attention

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "tests"))
from browser import launch  # noqa: E402

PEERS = ROOT / ".peers"
REPEATS = 3
TIMEOUT = 120
LIBRARIES = {
    "https://cdnjs.cloudflare.com/ajax/libs/require.js/2.3.6/require.min.js": "requirejs/require.js",
    "https://cdnjs.cloudflare.com/ajax/libs/d3/5.7.0/d3.min": "d3/dist/d3.min",
    "https://cdnjs.cloudflare.com/ajax/libs/jquery/2.0.0/jquery.min": "jquery/dist/jquery.min",
}
WRITE_BERTVIZ = """
import json, sys
from bertviz import head_view, model_view
from safetensors.torch import load_file
record, tokens, head, model = sys.argv[1:]
weights = load_file(record)
layers = [weights[f"{i}.weights"] for i in range(len(weights))]
tokens = json.loads(tokens)
for view, path in ((head_view, head), (model_view, model)):
    open(path, "w").write("<!doctype html><body>" + view(layers, tokens, html_action="return").data)
"""
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


def bert_record(tokens: int) -> Record:
    """The attention of 12 layers with 12 heads and random weights. This initializer range compresses worst."""
    torch.manual_seed(0)
    config = BertConfig(hidden_size=192, num_attention_heads=12, intermediate_size=192, initializer_range=0.05)
    model = BertModel(config).eval()
    with record_attention(model) as record, torch.no_grad():
        model(torch.randint(0, config.vocab_size, (1, tokens)))
    return record


def bertviz_pages(record: Record, tokens: list[str], folder: Path, address: str) -> dict[str, Path]:
    """The pages of BertViz by the view they are compared with; libraries are loaded from `address`."""
    pages = {"heads": folder / "head_view.html", "grid": folder / "model_view.html"}
    path = folder / "record.safetensors"
    record.save(path)
    python = PEERS / "bertviz/bin/python"
    subprocess.run([python, "-c", WRITE_BERTVIZ, path, json.dumps(tokens), *pages.values()], check=True)
    for page in pages.values():
        text = page.read_text()
        for cdn, local in LIBRARIES.items():
            text = text.replace(cdn, f"{address}/{local}")
        page.write_text(text)
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
        memory = (resident_bytes(browser) - blank) / 1e6
        return {"time": milliseconds / 1000, "memory": memory, "heap": metrics["JSHeapUsedSize"] / 1e6}
    except Error:
        return None
    finally:
        browser.close()


def measure(playwright: Playwright, url: str, drawn: str) -> dict[str, float] | None:
    """Medians of several openings; None if one fails."""
    results = []
    for _ in range(REPEATS):
        result = measure_once(playwright, url, drawn)
        if result is None:
            return None
        results.append(result)
    return {key: statistics.median(result[key] for result in results) for key in results[0]}


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


def compare(playwright: Playwright, num_tokens: int, folder: Path, address: str) -> None:
    """Print a table of both viewers with one record; without an address, of Sightline only."""
    record = bert_record(num_tokens)
    tokens = [f"w{i}" for i in range(num_tokens)]
    page = record.save_html(folder / "sightline.html", tokens)
    bertviz = bertviz_pages(record, tokens, folder, address) if address else {}
    print(f"\n12 layers, 12 heads, {num_tokens} tokens")
    print(f"{'':24}{'file, MB':>11}{'time, s':>10}{'memory, MB':>12}{'JS heap, MB':>13}")
    for view, bertviz_name in (("heads", "head_view"), ("grid", "model_view")):
        entries = [(f"Sightline {view}", page, f"{page.as_uri()}#view={view}", DRAWN["sightline"])]
        if bertviz:
            path = bertviz[view]
            entries.append((f"BertViz {bertviz_name}", path, path.as_uri(), DRAWN["bertviz"]))
        rows = []
        for name, path, url, drawn in entries:
            result = measure(playwright, url, drawn)
            size = path.stat().st_size / 1e6
            rows.append({"size": size, **(result or {})})
            if result is None:
                print(f"{name:24}{size:11.2f}   not drawn within {TIMEOUT} s, or the renderer crashed")
            else:
                print(f"{name:24}{size:11.2f}{result['time']:10.2f}{result['memory']:12.0f}{result['heap']:13.1f}")
        if bertviz:
            keys = ("size", "time", "memory", "heap")
            ratios = [f"{rows[1][key] / rows[0][key]:.1f}x" if key in rows[1] else "-" for key in keys]
            print("{:24}{:>11}{:>10}{:>12}{:>13}".format("  BertViz / Sightline", *ratios))
        sys.stdout.flush()


def print_scrolling(playwright: Playwright, folder: Path) -> None:
    """Print times and memory of each view with 512 tokens."""
    record = bert_record(512)
    cross = Record(record.model, [AttentionMap(name=m.name, kind="cross", weights=m.weights) for m in record])
    page, cross_page = record.save_html(folder / "long.html"), cross.save_html(folder / "cross.html")
    print(f"\nSightline, 12 layers, 12 heads, 512 tokens: {page.stat().st_size / 1e6:.1f} MB")
    for view in ("heads", "grid", "matrix", "alignment", "temperature"):
        url = f"{(cross_page if view == 'alignment' else page).as_uri()}#view={view}"
        result = measure(playwright, url, DRAWN["sightline"])
        assert result is not None
        times, pixels = scroll_times(playwright, url)
        print(
            f"  {view:11} opens in {result['time']:.2f} s, memory {result['memory']:.0f} MB; scrolling {pixels:.0f} "
            f"pixels: {statistics.median(times):.0f} ms per frame, 95th percentile "
            f"{times[int(0.95 * len(times))]:.0f} ms ({len(times)} frames)",
            flush=True,
        )


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """Serves files without logging."""

    def log_message(self, *args: object) -> None:
        """Log nothing."""


def main() -> None:
    """Run all measurements."""
    only_sightline = sys.argv[1:] == ["sightline"]
    if not only_sightline and not (PEERS / "bertviz/bin/python").exists():
        raise SystemExit("BertViz must be installed in .peers/bertviz; see the top of this file")
    handler = functools.partial(QuietHandler, directory=str(PEERS / "libraries/node_modules"))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = "" if only_sightline else f"http://127.0.0.1:{server.server_port}"
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = launch(playwright)
        print(f"Sightline and BertViz 1.4, Chromium {browser.version}; medians of {REPEATS}")
        browser.close()
        for num_tokens in (64, 256):
            compare(playwright, num_tokens, Path(folder), address)
        print_scrolling(playwright, Path(folder))


if __name__ == "__main__":
    main()

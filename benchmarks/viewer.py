"""The saved page against BertViz 1.4's on the same record: size of the file, time to first view, memory of the page.

BertViz lives in an environment of its own. It asks a CDN for require.js, d3 and jQuery; here the npm packages of the
same versions are served on loopback and the addresses rewritten (jQuery 2.0.0 is not on npm: 2.1.1 stands in for it).

    python -m venv .peers/bertviz
    .peers/bertviz/bin/pip install torch==2.13.0 'bertviz>=1.4,<1.5'
    npm install --prefix .peers/libraries requirejs@2.3.6 d3@5.7.0 jquery@2.1.1
    python benchmarks/viewer.py | tee benchmarks/results/viewer.txt

Heads stands against `head_view` (one layer, all heads, as both open), grid against `model_view` (all layers and heads).
Time runs from the start of the navigation until the weights are drawn and two frames have passed. Memory is what the
renderer process holds (resident) once the page has been read to its end, the blank page's share taken off, and the
JavaScript heap after a collection. Each
page is opened in a fresh browser `REPEATS` times; medians are printed. A page that is not drawn in `PATIENCE` seconds,
or that loses its renderer, is given up. Scrolling goes 40 pixels a frame, to and fro between the ends, and only frames
in which the view moved count; a screen of 60 Hz shows one every 17 ms. The alignment reads the same weights as
cross-attention. `python benchmarks/viewer.py ours` leaves BertViz out.
"""

import functools
import http.server
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import torch
from playwright.sync_api import Error, sync_playwright
from transformers import BertConfig, BertModel

from sightline.attention import AttentionMap, Record, record_attention

ROOT = Path(__file__).parent.parent
PEERS = ROOT / ".peers"
REPEATS = 3
PATIENCE = 120
CHROMIUM = "--no-sandbox --disable-gpu --disable-background-networking --disable-component-update --disable-sync"
LIBRARIES = {
    "https://cdnjs.cloudflare.com/ajax/libs/require.js/2.3.6/require.min.js": "requirejs/require.js",
    "https://cdnjs.cloudflare.com/ajax/libs/d3/5.7.0/d3.min": "d3/dist/d3.min",
    "https://cdnjs.cloudflare.com/ajax/libs/jquery/2.0.0/jquery.min": "jquery/dist/jquery.min",
}
PEER = """
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
READY = {"ours": "#stage[aria-busy=false]", "bertviz": "#vis svg line"}
WATCH = """(() => {
  const look = () => {
    if (!document.querySelector(%r)) return requestAnimationFrame(look);
    requestAnimationFrame(() => requestAnimationFrame(() => { window.firstView = performance.now(); }));
  };
  requestAnimationFrame(look);
})()"""

SCROLL = """async () => {
  const scroller = document.querySelector(".scroller");
  const frame = () => new Promise(requestAnimationFrame);
  const high = scroller.scrollHeight - scroller.clientHeight, wide = scroller.scrollWidth - scroller.clientWidth;
  const edge = high >= wide ? "scrollTop" : "scrollLeft";
  const took = [];
  let [step, before] = [40, await frame()];
  for (let i = 0; i < 120; i++) {
    const at = scroller[edge];
    scroller[edge] += step;
    if (scroller[edge] === at) scroller[edge] += step = -step;
    const moved = scroller[edge] !== at;
    const now = await frame();
    if (moved) took.push(now - before);
    before = now;
  }
  return [took, Math.max(high, wide)];
}"""


def recorded(tokens: int) -> Record:
    """BERT's shape, 12 layers of 12 heads, with random weights; of the ranges tried, this one packs worst."""
    torch.manual_seed(0)
    config = BertConfig(hidden_size=192, num_attention_heads=12, intermediate_size=192, initializer_range=0.05)
    model = BertModel(config).eval()
    with record_attention(model) as record, torch.no_grad():
        model(torch.randint(0, config.vocab_size, (1, tokens)))
    return record


def peer_pages(record: Record, words: list[str], folder: Path, address: str) -> dict[str, Path]:
    """What BertViz writes, its libraries looked for on loopback."""
    pages = {"heads": folder / "head_view.html", "grid": folder / "model_view.html"}
    record.save(folder / "record.safetensors")
    tokens = str(words).replace("'", '"')
    command = [PEERS / "bertviz/bin/python", "-c", PEER, folder / "record.safetensors", tokens, *pages.values()]
    subprocess.run(command, check=True)
    for page in pages.values():
        text = page.read_text()
        for cdn, local in LIBRARIES.items():
            text = text.replace(cdn, f"{address}/{local}")
        page.write_text(text)
    return pages


def opened(playwright: object, url: str, ready: str) -> dict[str, float] | None:
    """Open once in a fresh browser; None if it was given up."""
    browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=CHROMIUM.split())
    try:
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.set_default_timeout(PATIENCE * 1000)
        session = page.context.new_cdp_session(page)
        blank = resident(browser)
        page.add_init_script(WATCH % ready)
        page.goto(url, wait_until="commit")
        page.wait_for_selector(ready, state="attached")
        while not (took := page.evaluate("() => window.firstView || 0")):
            page.wait_for_timeout(20)
        page.wait_for_load_state("load")
        session.send("HeapProfiler.collectGarbage")
        session.send("Performance.enable")
        metrics = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
        held = resident(browser)
        return {"time": took / 1000, "memory": (held - blank) / 1e6, "heap": metrics["JSHeapUsedSize"] / 1e6}
    except Error:
        return None
    finally:
        browser.close()


def scrolled(playwright: object, url: str) -> tuple[list[float], float]:
    """Milliseconds from frame to frame while the view moves, sorted, and how many pixels there are to scroll."""
    browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=CHROMIUM.split())
    try:
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto(url)
        page.wait_for_selector(READY["ours"], state="attached")
        took, pixels = page.evaluate(SCROLL)
        return sorted(took), pixels
    finally:
        browser.close()


def resident(browser: object) -> float:
    """Bytes held by the largest renderer."""
    processes = browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")["processInfo"]
    sizes = []
    for process in processes:
        if process["type"] == "renderer":
            status = Path(f"/proc/{process['id']}/status").read_text()
            sizes.append(int(status.split("VmRSS:")[1].split()[0]) * 1024)
    return max(sizes)


def median(playwright: object, url: str, ready: str) -> dict[str, float] | None:
    """Of several openings; None as soon as one is given up."""
    runs = []
    for _ in range(REPEATS):
        run = opened(playwright, url, ready)
        if run is None:
            return None
        runs.append(run)
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


def compare(playwright: object, tokens: int, folder: Path, address: str) -> None:
    """Both viewers on one record, as a table; ours alone without an address."""
    record = recorded(tokens)
    words = [f"w{i}" for i in range(tokens)]
    ours = record.save_html(folder / "ours.html", words)
    peers = peer_pages(record, words, folder, address) if address else {}
    print(f"\n12 layers, 12 heads, {tokens} tokens")
    print(f"{'':24}{'file, MB':>11}{'time, s':>10}{'memory, MB':>12}{'JS heap, MB':>13}")
    for view, peer in (("heads", "head_view"), ("grid", "model_view")):
        rows = []
        for name, path, url, ready in (
            (f"Sightline {view}", ours, f"{ours.as_uri()}#view={view}", READY["ours"]),
            *((f"BertViz {peer}", peers[at], peers[at].as_uri(), READY["bertviz"]) for at in peers if at == view),
        ):
            found = median(playwright, url, ready)
            size = path.stat().st_size / 1e6
            rows.append({"size": size, **(found or {})})
            if found is None:
                print(f"{name:24}{size:11.2f}   not drawn within {PATIENCE} s, or the renderer was lost")
            else:
                print(f"{name:24}{size:11.2f}{found['time']:10.2f}{found['memory']:12.0f}{found['heap']:13.1f}")
        if not peers:
            continue
        keys = ("size", "time", "memory", "heap")
        ratios = [f"{rows[1][key] / rows[0][key]:.1f}x" if key in rows[1] else "-" for key in keys]
        print("{:24}{:>11}{:>10}{:>12}{:>13}".format("  BertViz / Sightline", *ratios))
        sys.stdout.flush()


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves the libraries without a word."""

    def log_message(self, *args: object) -> None:
        """Nothing."""


def main() -> None:
    """All of it, in one run."""
    alone = sys.argv[1:] == ["ours"]
    if not alone and not (PEERS / "bertviz/bin/python").exists():
        raise SystemExit("BertViz must be in .peers/bertviz; the top of this file says how")
    handler = functools.partial(Quiet, directory=str(PEERS / "libraries/node_modules"))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=CHROMIUM.split())
        print(f"Sightline's viewer and BertViz 1.4, Chromium {browser.version}; medians of {REPEATS}")
        browser.close()
        for tokens in (64, 256):
            compare(playwright, tokens, Path(folder), "" if alone else f"http://127.0.0.1:{server.server_port}")
        record = recorded(512)
        cross = Record(
            record.model, [AttentionMap(name=seen.name, kind="cross", weights=seen.weights) for seen in record]
        )
        pages = [record.save_html(Path(folder) / "long.html"), cross.save_html(Path(folder) / "cross.html")]
        print(f"\nSightline alone, 12 layers, 12 heads, 512 tokens: {pages[0].stat().st_size / 1e6:.1f} MB")
        for view in ("heads", "grid", "matrix", "alignment", "temperature"):
            url = f"{pages[view == 'alignment'].as_uri()}#view={view}"
            found = median(playwright, url, READY["ours"])
            assert found is not None
            frames, pixels = scrolled(playwright, url)
            print(
                f"  {view:11} opens in {found['time']:.2f} s, memory {found['memory']:.0f} MB; scrolled over "
                f"{pixels:.0f} pixels, a frame takes {statistics.median(frames):.0f} ms, 95 of 100 at most "
                f"{frames[int(0.95 * len(frames))]:.0f} ms ({len(frames)} frames)",
                flush=True,
            )


if __name__ == "__main__":
    main()

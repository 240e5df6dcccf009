"""Load on `sightline serve` beside the same model behind a plain FastAPI handler, both over loopback in one run.

    python -m benchmarks.serve --minutes 10 > benchmarks/results/serve.txt

The plain handler calls `predictor.predict(text)` in FastAPI's thread pool, with one thread of torch per call, which is
faster here than torch's default. The servers are loaded in turn, and the client runs on the same machine. With
`--minutes`, the first one is then loaded alone for that long, and its memory is reported.
"""

import argparse
import asyncio
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

SENTENCES = (
    "Kannst du mir bitte helfen?",
    "Ein Hund rennt durch das Wasser.",
    "Wo ist der nächste Bahnhof?",
    "Zwei Kinder spielen im Park mit einem roten Ball.",
    "Ich habe heute keine Zeit.",
    "Eine Frau in einem blauen Kleid steht vor einem Haus.",
    "Das ist ein guter Plan.",
    "Er hat gestern den ganzen Tag gearbeitet.",
    "Warum lachst du?",
    "Ein Mann fährt mit dem Fahrrad eine Straße entlang.",
    "Wir gehen morgen ins Kino.",
    "Die Katze schläft auf dem Sofa.",
    "Was möchtest du essen?",
)


@dataclass
class Load:
    """The answers of one server over some seconds."""

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    failures: int = 0
    cpu_seconds: float = 0.0
    """Of the server."""

    @property
    def rate(self) -> float:
        """Answers per second."""
        return len(self.latencies) / self.seconds

    def percentile(self, percent: int) -> float:
        """A latency in milliseconds."""
        return 1000 * statistics.quantiles(self.latencies, n=100)[percent - 1]


def main() -> None:
    """Run the load and print the results."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--minutes", type=float, default=0)
    parser.add_argument("--plain", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.plain:
        serve_plainly()
        return
    with tempfile.TemporaryDirectory() as folder:
        ours = ["-m", "sightline", "serve", "de-en", "--port", "0", "--store", f"{folder}/store.sqlite"]
        with started(ours) as (port, pid), started(["-m", "benchmarks.serve", "--plain"]) as (plain_port, plain_pid):
            if options.rounds:
                compare((port, pid), (plain_port, plain_pid), options)
            if options.minutes:
                watch_memory(port, pid, options)


def compare(ours: tuple[int, int], plain: tuple[int, int], options: argparse.Namespace) -> None:
    """Load both servers, each a port and a process, in turn and print a table."""
    targets = {"sightline serve": (ours[0], "/api/models/de-en/predict"), "plain FastAPI": (plain[0], "/predict")}
    processes = {"sightline serve": ours[1], "plain FastAPI": plain[1]}
    for target in targets.values():
        asyncio.run(load(*target, seconds=2, connections=options.connections))  # warm
    print(f"de-en, 5 beams, {options.connections} connections, {options.seconds:g} s, {os.cpu_count()} cores\n")
    print("server           round  answers/s  p50 ms  p99 ms  CPU ms per answer  failed")
    loads: dict[str, list[Load]] = {name: [] for name in targets}
    for i in range(options.rounds):
        for name, target in targets.items():
            before = cpu_seconds(processes[name])
            found = asyncio.run(load(*target, seconds=options.seconds, connections=options.connections))
            found.cpu_seconds = cpu_seconds(processes[name]) - before
            loads[name].append(found)
            cost = 1000 * found.cpu_seconds / len(found.latencies)
            numbers = f"{found.rate:9.1f}  {found.percentile(50):6.0f}  {found.percentile(99):6.0f}  {cost:17.1f}"
            print(f"{name:<15}  {i + 1:5}  {numbers}  {found.failures:6}", flush=True)
    pairs = list(zip(*loads.values(), strict=True))
    ratio = statistics.median(a.rate / b.rate for a, b in pairs)
    tail = statistics.median(a.percentile(99) / b.percentile(99) for a, b in pairs)
    print(f"\nratio of the rounds, median: {ratio:.2f} times the answers per second, {tail:.2f} times the p99")
    cost = statistics.median(a.cpu_seconds / len(a.latencies) * len(b.latencies) / b.cpu_seconds for a, b in pairs)
    print(f"CPU time per answer: {cost:.2f} times that of the plain handler")
    print(f"failed requests: {sum(found.failures for rounds in loads.values() for found in rounds)}")


def watch_memory(port: int, pid: int, options: argparse.Namespace) -> None:
    """Load one server for some minutes, and print its memory each minute."""
    print(f"\nmemory of sightline serve over {options.minutes:g} minutes of load")
    end, failures, minute = time.monotonic() + 60 * options.minutes, 0, 0
    while time.monotonic() < end:
        print(f"{minute:3} min  {resident_mib(pid):.0f} MiB", flush=True)
        seconds = min(60.0, max(1.0, end - time.monotonic()))
        path = "/api/models/de-en/predict"
        failures += asyncio.run(load(port, path, seconds=seconds, connections=options.connections)).failures
        minute += 1
    print(f"{minute:3} min  {resident_mib(pid):.0f} MiB, {failures} failed requests")


def resident_mib(pid: int) -> float:
    """Resident memory of a process."""
    [kib] = re.findall(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(kib) / 1024


def cpu_seconds(pid: int) -> float:
    """CPU time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def load(port: int, path: str, *, seconds: float, connections: int) -> Load:
    """Send one request after another on each connection."""
    result, end, start = Load(), time.perf_counter() + seconds, time.perf_counter()
    await asyncio.gather(*(_connection(port, path, i, end, result) for i in range(connections)))
    result.seconds = time.perf_counter() - start
    return result


async def _connection(port: int, path: str, first: int, end: float, result: Load) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    count = first
    while time.perf_counter() < end:
        body = json.dumps({"texts": [SENTENCES[count % len(SENTENCES)]]}).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
        start = time.perf_counter()
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        answer_head = await reader.readuntil(b"\r\n\r\n")
        [length] = re.findall(rb"content-length: (\d+)", answer_head.lower())
        answer = await reader.readexactly(int(length))
        result.latencies.append(time.perf_counter() - start)
        is_answer = answer_head.startswith(b"HTTP/1.1 200") and b'"text":' in answer
        result.failures += not is_answer
        count += 1
    writer.close()
    await writer.wait_closed()


@contextmanager
def started(arguments: list[str]) -> Iterator[tuple[int, int]]:
    """A server process: its port and its id."""
    with subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        try:
            port = next(port for line in process.stdout for port in re.findall(r"http://127.0.0.1:(\d+)/", line))
            yield int(port), process.pid
        finally:
            process.send_signal(signal.SIGTERM)


def serve_plainly() -> None:
    """The model behind a handler without batching."""
    import socket

    import torch
    import uvicorn
    from fastapi import Body, FastAPI

    import sightline

    torch.set_num_threads(1)
    app, predictor = FastAPI(), sightline.load("de-en")

    @app.post("/predict")
    def predict(texts: list[str] = Body(embed=True)) -> dict[str, object]:  # noqa: B008 - as FastAPI has it
        return {"predictions": [predictor.predict(text).to_dict() for text in texts]}

    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listener:
        print(f"http://127.0.0.1:{listener.getsockname()[1]}/", flush=True)
        uvicorn.Server(uvicorn.Config(app, access_log=False, log_level="warning")).run([listener])


if __name__ == "__main__":
    main()

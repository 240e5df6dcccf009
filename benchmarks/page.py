"""The page of a record: one HTML file without outside resources."""

import html
import importlib
import math
import re
from pathlib import Path
from typing import Any

from sightline.files import atomic_write
from sightline.view.page import html_document

from . import plots
from .peers import PEERS
from .record import amount, number, spread

STYLE = plots.STYLE + Path(__file__).with_suffix(".css").read_text(encoding="utf-8")
LEGEND = (
    "Ratios are ours / theirs: the median of all rounds, then the range of the middle half. Bars show on a logarithmic "
    "scale how many times better (right of the line) or worse (left) ours is."
)


def write(record: dict[str, Any], path: Path) -> Path:
    """Write the page of a record."""
    from .suite import BENCHMARKS

    machine, versions = record["machine"], record["versions"]
    known = ", ".join(
        f"{PEERS[name].package if name in PEERS else name} {version}" for name, version in versions.items()
    )
    title = f"Sightline benchmarks: {machine['device']}"
    links = "".join(f'<a href="#{name}">{BENCHMARKS[name]}</a>' for name in record["benchmarks"])
    sections = "".join(_section(name, BENCHMARKS[name], results) for name, results in record["benchmarks"].items())
    tiny = '<p class="skipped">Tiny sizes: these numbers only show that the suite runs.</p>' if record["tiny"] else ""
    head = (
        f"<h1>{_text(title)}</h1><p>{_text(machine['cpu'])}; {_text(known)}</p>{tiny}<p>{LEGEND}</p><nav>{links}</nav>"
    )
    document = html_document(title, head + sections, style=STYLE, policy="img-src data:")
    with atomic_write(path) as part:
        part.write_text(document, encoding="utf-8", newline="\n")
    return path


def _section(name: str, title: str, results: dict[str, Any]) -> str:
    parts = [f"<h2>{_text(title)}</h2>", f"<p>{_text(_introduction(name))}</p>"]
    missing = [*results.get("skipped", ()), *([f"failed: {results['failed']}"] if "failed" in results else [])]
    parts += [f'<p class="skipped">{_text(reason)}</p>' for reason in missing]
    parts += [f"<p>{_text(note)}</p>" for note in results.get("notes", ())]
    if results.get("curves"):
        parts.append(f'<div class="curves">{"".join(curve_plots(results["curves"]))}</div>')
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for comparison in results.get("comparisons", ()):
        groups.setdefault((comparison["ours"]["name"], comparison["theirs"]["name"]), []).append(comparison)
    advantages = [_advantage(c, c["ratio"]) for group in groups.values() for c in group]
    limit = max([2.0, *(max(a, 1 / a) for a in advantages)]) ** 1.05
    for (ours, theirs), comparisons in groups.items():
        better = "higher is better" if comparisons[0]["higher_is_better"] else "lower is better"
        parts.append(f"<h3>{_text(ours)} / {_text(theirs)}; {better}</h3>")
        parts.append(f'<table class="ratios">{"".join(_row(c, limit) for c in comparisons)}</table>')
    if results.get("measurements"):
        rows = (
            f"<tr><th>{_text(m['name'])}</th><td class='values'>{_text(amount(m['median'], m['unit']))}</td></tr>"
            for m in results["measurements"]
        )
        parts.append(f"<h3>Without a peer</h3><table>{''.join(rows)}</table>")
    return f'<section id="{name}">{"".join(parts)}</section>'


def _row(comparison: dict[str, Any], limit: float) -> str:
    ours, theirs, unit = comparison["ours"]["median"], comparison["theirs"]["median"], comparison["unit"]
    advantage = _advantage(comparison, comparison["ratio"])
    low, high = (_advantage(comparison, ratio) for ratio in comparison["ratio_range"])
    kind = "ratio" if advantage >= 1 else "ratio loss"
    return (
        f'<tr><th>{_text(comparison["name"])}</th><td class="{kind}">{number(comparison["ratio"])}</td>'
        f'<td class="range">{spread(comparison)}</td><td class="bar">{plots.bar(advantage, (low, high), limit)}</td>'
        f'<td class="values">{_text(amount(ours, unit))} / {_text(amount(theirs, unit))}</td></tr>'
    )


def _advantage(comparison: dict[str, Any], ratio: float) -> float:
    """How many times better ours is."""
    ratio = ratio if math.isfinite(ratio) and ratio > 0 else 1.0
    return ratio if comparison["higher_is_better"] else 1 / ratio


def curve_plots(curves: list[dict[str, Any]], size: tuple[int, int] = (440, 320)) -> list[str]:
    """One plot for each quantity, with a line for each layer."""
    panels: dict[tuple[str, str], dict[str, plots.Line]] = {}
    for curve in curves:
        panels.setdefault((curve["quantity"], curve["unit"]), {})[curve["name"]] = (curve["lengths"], curve["medians"])
    return [
        plots.log_plot(quantity, lines, x_label="tokens", y_format=unit, size=size)
        for (quantity, unit), lines in panels.items()
    ]


def _introduction(name: str) -> str:
    """The first paragraph of the docstring of a benchmark."""
    try:
        text = importlib.import_module(f".{name}", __package__).__doc__ or ""
    except ImportError:
        return ""
    return " ".join(text.split("\n\n")[0].split())


def _text(text: str) -> str:
    """Escaped text; words in backticks are code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", html.escape(text))

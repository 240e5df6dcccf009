"""The record of a run: what was measured, on which machine, with which versions. Written as JSON without dates.

A comparison has the ratio ours / theirs of every round: the median, and the range of the middle half.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sightline.files import atomic_write

from .clock import Samples


@dataclass
class Report:
    """The results of one benchmark. They are printed as they come."""

    comparisons: list[dict[str, Any]] = field(default_factory=list)
    measurements: list[dict[str, Any]] = field(default_factory=list)
    """Without a peer."""
    curves: list[dict[str, Any]] = field(default_factory=list)
    """Median values by length."""
    skipped: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    failed: str = ""
    """The error that ended the benchmark early."""

    def compare(
        self, name: str, ours: tuple[str, Samples], theirs: tuple[str, Samples], *, unit: str = "s"
    ) -> dict[str, Any]:
        """Add and print a comparison; returns it."""
        ratios = ours[1].relative_to(theirs[1])
        comparison = {
            "name": name,
            "ratio": rounded(ratios.median),
            "ratio_range": [*map(rounded, ratios.quartiles)],
            "higher_is_better": unit.endswith("/s"),
            "unit": unit,
            "ours": {"name": ours[0], **summary(ours[1])},
            "theirs": {"name": theirs[0], **summary(theirs[1])},
        }
        self.comparisons.append(comparison)
        sides = f"{ours[0]} {amount(ours[1].median, unit)}, {theirs[0]} {amount(theirs[1].median, unit)}"
        print(f"{number(comparison['ratio']):>8} {spread(comparison):>14}  {name}: {sides}", flush=True)
        return comparison

    def add(self, name: str, value: Samples | float, unit: str = "s") -> None:
        """Add and print a measurement without a peer."""
        samples = value if isinstance(value, Samples) else Samples((value,))
        self.measurements.append({"name": name, "unit": unit, **summary(samples)})
        print(f"{'':8} {'':14}  {name}: {amount(samples.median, unit)}", flush=True)

    def skip(self, reason: object) -> None:
        """Add and print a peer that is missing."""
        self.skipped.append(str(reason))
        print(f"{'skipped':>8} {'':14}  {reason}", flush=True)

    def note(self, text: str) -> None:
        """Add and print a sentence about what was measured."""
        self.notes.append(text)
        print(f"{'':8} {'':14}  {text}", flush=True)

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value}


def summary(samples: Samples) -> dict[str, Any]:
    """Median, middle half and number of rounds."""
    spread_of_values = [*map(rounded, samples.quartiles)]
    return {"median": rounded(samples.median), "quartiles": spread_of_values, "rounds": len(samples.values)}


def rounded(value: float) -> float:
    """Four significant digits."""
    return float(f"{value:.4g}")


def number(ratio: float) -> str:
    """A ratio as text."""
    if ratio < 0.1:
        return f"{ratio:.2g}"
    return f"{ratio:,.0f}" if ratio >= 99.5 else f"{ratio:.1f}" if ratio >= 9.95 else f"{ratio:.2f}"


def spread(comparison: dict[str, Any]) -> str:
    """The middle half of the ratios as text."""
    low, high = comparison["ratio_range"]
    return f"({number(low)} to {number(high)})"


def amount(value: float, unit: str) -> str:
    """A value with its unit as text."""
    if unit == "s":
        scale, name = (1, "s") if value >= 1 else (1e3, "ms") if value >= 1e-3 else (1e6, "µs")
        return f"{value * scale:.3g} {name}"
    if unit == "bytes":
        return f"{value / 1e9:.3g} GB" if value >= 1e9 else f"{value / 1e6:.3g} MB"
    if unit == "%":
        return f"{value:.0f}%"
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def read(path: Path) -> dict[str, Any]:
    """A record, or an empty one."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def merge(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The new record, with benchmarks that only the old one has if it is of the same machine and versions."""
    if any(old.get(key) != new[key] for key in ("machine", "tiny")) or not _same_versions(old, new):
        return new
    versions = {**old["versions"], **new["versions"]}
    benchmarks = {**old["benchmarks"], **new["benchmarks"]}
    return {**new, "versions": versions, "benchmarks": benchmarks}


def _same_versions(old: dict[str, Any], new: dict[str, Any]) -> bool:
    common = old["versions"].keys() & new["versions"].keys()
    return all(old["versions"][name] == new["versions"][name] for name in common)


def write(path: Path, record: dict[str, Any]) -> None:
    """Write a record; measurements are one line each, so that differences are small."""
    with atomic_write(path) as part:
        part.write_text(_json(record) + "\n", encoding="utf-8")


def _json(value: Any, indent: str = "") -> str:
    """JSON that breaks lines down to the entries of lists."""
    deeper = indent + "  "
    if isinstance(value, dict) and not indent.startswith("      ") and value:
        lines = [f"{deeper}{json.dumps(key)}: {_json(item, deeper)}" for key, item in value.items()]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n" + ",\n".join(deeper + json.dumps(item, ensure_ascii=False) for item in value) + f"\n{indent}]"
    return json.dumps(value, ensure_ascii=False)

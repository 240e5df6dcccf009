"""The pages of BertViz for a saved record. They load their libraries from a CDN; `viewer.py` replaces the addresses."""

from pathlib import Path

from bertviz import head_view, model_view
from safetensors.torch import load_file

from benchmarks.peers import serve

VIEWS = {"heads": head_view, "grid": model_view}


def write_pages(record: str, tokens: list[str], pages: dict[str, str]) -> None:
    """Write the page of each view to its path."""
    weights = load_file(record)
    layers = [weights[f"{i}.weights"] for i in range(len(weights))]
    for view, path in pages.items():
        page = VIEWS[view](layers, tokens, html_action="return").data
        Path(path).write_text(f"<!doctype html><body>{page}", encoding="utf-8")


if __name__ == "__main__":
    serve("bertviz", write_pages)

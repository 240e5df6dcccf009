"""One self-contained page: the viewer's modules, its style and the packed weights in a single file."""

import base64
import hashlib
import html
import json
import operator
import os
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..errors import SightlineError
from ..files import atomic_write
from .maps import Map, joined
from .payload import FINE, LEVELS, Packed, pack, small
from .sides import sides, sides_of, without_filling

IMPORT = re.compile(r'^import (\{[^}]*\}) from "\./([\w-]+)\.js";$', re.MULTILINE)
EXPORT = re.compile(r"^export ((?:async )?(?:function|const) (\w+))", re.MULTILINE)
SUFFIXES = (".html", ".htm")

TEMPLATE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="Sightline">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<noscript>This page draws attention with JavaScript, which is switched off.</noscript>
<script type="application/json" id="sightline-meta">{meta}</script>
<script type="module" async>{script}</script>
{weights}
</body>
</html>
"""


@dataclass(frozen=True)
class Page:
    """The viewer with its weights inside. The last line of a notebook cell shows it."""

    html: str
    height: int = 720
    """Of the frame in a notebook, in pixels."""

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write one file that works from disk and asks no host for anything."""
        path = check_path(Path(path))
        with atomic_write(path) as part:
            part.write_text(self.html, encoding="utf-8", newline="\n")
        return path

    def _repr_html_(self) -> str:
        """In a frame of its own, so that two pages in one notebook share nothing."""
        return (
            f'<iframe title="Attention viewer" style="width:100%;height:{self.height}px;border:0;border-radius:8px" '
            f'sandbox="allow-scripts allow-downloads" srcdoc="{html.escape(self.html)}"></iframe>'
        )

    def __repr__(self) -> str:
        return f"Page({len(self.html.encode()) / 1e6:.1f} MB of HTML)"


def check_path(path: Path) -> Path:
    """The path, if a page can be written there."""
    if path.suffix not in SUFFIXES:
        raise SightlineError(f"path must end in .html, got {path.name!r}")
    return path


def page(
    maps: Sequence[Map],
    *,
    tokens: Any = None,
    source: Any = None,
    target: Any = None,
    written: Any = None,
    images: Any = None,
    query_image: Any = None,
    labels: Any = None,
    grid: tuple[int, int] | None = None,
    special: Collection[str] | None = None,
    batch: int | Sequence[int] = 0,
    names: Sequence[str] | None = None,
    title: str = "Attention",
    height: int = 720,
) -> Page:
    """A page of these maps.

    tokens: a name for each place, where one sequence looks at itself. source, target: the same for encoder-decoder
    models: the encoder is source by source, the decoder target by target, cross target by source. written: what the
    decoder writes from each place of the target, where target is what it reads; it names the rows of cross-attention.
    images: what the source shows: one picture cut into patches (a class token before them is noticed), or a list of
    support pictures, each with one weight or a grid of parts. labels: a name for each. query_image: the picture the
    target shows, if it is another. grid: rows and columns of patches, where that cannot be told.
    special: tokens that a switch hides; left out, [CLS], </s> and their like. A token that is None, at the end of its
    row, is filling, and its place is left out.
    batch: which row of the batch. A list of rows makes a page of several examples, and then tokens, source, target,
    written, images, query_image and labels are lists with one entry for each row. names: what to call each example.
    """
    if not maps:
        raise SightlineError("record must hold at least one attention map, got none")
    several, rows = _rows(batch)
    _check_height(height)
    about = {"tokens": tokens, "source": source, "target": target, "written": written}
    about |= {"images": images, "query_image": query_image, "labels": labels}
    if names is not None and (isinstance(names, str) or len(names) != len(rows)):
        raise SightlineError(f"names must be a list with one for each of the {len(rows)} rows of batch, got {names!r}")
    maps = joined(maps)
    _check_rows(rows, maps, about if several else {})
    examples, weights, smalls = [], [], []
    for i, row in enumerate(rows):
        own = about if not several else {k: None if v is None else v[i] for k, v in about.items()}
        shown, own = without_filling(maps, own)
        both = sides(shown, grid=grid, special=special, **own)
        layers = []
        for j, one in enumerate(shown):
            packed = pack(one.weights[row])
            weights.append(_element(f"weights-{i}-{j}", packed))
            thumbs = small(one.weights[row])
            if thumbs is not None:
                smalls.append(_element(f"small-{i}-{j}", pack(thumbs)))
            shape = None if thumbs is None else thumbs.shape
            layers.append({**_about_layer(one, packed), "sides": sides_of(one.kind, both), "small": shape})
        called = f"row {row}" if names is None else str(names[i])
        examples.append({"name": called, "layers": layers, **{name: side.meta() for name, side in both.items()}})
    levels = [float(f"{level:.7g}") for level in LEVELS]
    return Page(
        _html({"title": str(title), "levels": levels, "fine": FINE, "examples": examples}, smalls + weights), height
    )


def _about_layer(one: Map, packed: Packed) -> dict[str, Any]:
    """What the page must know of a layer before its weights are unpacked."""
    return {
        "name": one.name,
        "kind": one.kind,
        "call": one.call,
        "heads": one.head_names,
        "shape": packed.shape,
        "signed": packed.signed,
        "shares": packed.shares,
        "sharpens": packed.shares and one.heads != (),  # a mean over heads is no softmax of scores
    }


def _check_rows(rows: list[int], maps: Sequence[Map], about: dict[str, Any]) -> None:
    """Rows must be in every batch; what is told of several examples must have an entry for each."""
    for name, value in about.items():
        count = None if isinstance(value, str) or not hasattr(value, "__len__") else len(value)
        if value is not None and count != len(rows):
            got = f"one {type(value).__name__}" if count is None else count
            raise SightlineError(f"{name} must have one entry for each of the {len(rows)} rows of batch, got {got}")
    for row in rows:
        for one in maps:
            if not 0 <= row < one.shape[0]:
                raise SightlineError(
                    f"batch must be at least 0 and below {one.shape[0]}, the size of the batch in {one.name}, got {row}"
                )


def _element(name: str, packed: Packed) -> str:
    return f'<script type="text/plain" id="{name}">{packed.data}</script>'


def _rows(batch: Any) -> tuple[bool, list[int]]:
    """Whether there are several examples, and which rows they are."""
    told = batch.tolist() if hasattr(batch, "tolist") else batch  # of numpy or torch
    several = isinstance(told, Sequence)
    try:
        rows = [operator.index(row) for row in (told if several else [told])]
    except TypeError as error:
        raise SightlineError(f"batch must be an integer or a list of them, got {batch!r}") from error
    if not rows:
        raise SightlineError("batch must name at least one row, got none")
    return several, rows


def _check_height(height: object) -> None:
    if isinstance(height, bool) or not isinstance(height, int) or height < 1:
        raise SightlineError(f"height must be an integer of pixels, got {height!r}")


def _html(meta: dict[str, Any], weights: list[str]) -> str:
    style, script = style_text(), script_text()
    policy = (
        f"default-src 'none'; script-src {digest(script)}; style-src {digest(style)}; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    return TEMPLATE.format(
        policy=policy,
        title=html.escape(meta["title"]).encode("utf-8", "replace").decode("utf-8"),
        style=style,
        meta=inert_json(meta),
        weights="\n".join(weights),
        script=script,
    )


def inert_json(value: Any) -> str:
    """JSON that no HTML parser can mistake for markup, whatever its strings hold."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    text = text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
    return text.encode("utf-8", "backslashreplace").decode("utf-8")  # half a surrogate pair is no UTF-8


@cache
def style_text() -> str:
    """The style sheet."""
    return static("style.css")


@cache
def script_text() -> str:
    """All modules as one, in the order they need each other; each has a scope of its own and hands out its exports."""
    order: dict[str, str] = {}

    def add(name: str) -> None:
        text = static(f"{name}.js")
        for _, needed in IMPORT.findall(text):
            if needed not in order:
                add(needed)
        exports = ", ".join(noun for _, noun in EXPORT.findall(text))
        body = EXPORT.sub(r"\1", IMPORT.sub(r'const \1 = modules["\2"];', text))
        order[name] = f'modules["{name}"] = (() => {{\n{body}return {{ {exports} }};\n}})();\n'

    add("main")
    return '"use strict";\nconst modules = {};\n' + "\n".join(order.values())


def static(name: str) -> str:
    """A file of the front end."""
    return (files("sightline.view") / "static" / name).read_text(encoding="utf-8")


def digest(text: str) -> str:
    """What a content security policy calls this text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

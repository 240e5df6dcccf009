"""The attention viewer as one self-contained HTML page: scripts, style sheet and packed weights in a single file."""

import base64
import hashlib
import html
import json
import operator
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np

from ..errors import SightlineError, check, check_choice, check_int
from ..files import atomic_write
from .encodings import read_encodings
from .heatmaps import LOOK
from .importance import Importance, read_importance
from .information import measure
from .maps import Map, merge_calls
from .payload import LEVELS, THUMBNAIL_SIZE, PackedWeights, downsample, pack_weights
from .scores import read_scores
from .tokens import SPECIAL_TOKENS, drop_padding, query_and_key, token_sequences, warn_of_positions

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
{body}
</body>
</html>
"""
VIEWER_BODY = """<noscript>The attention viewer requires JavaScript, which is disabled.</noscript>
<script type="application/json" id="sightline-meta">{meta}</script>
<script type="module" async>{script}</script>
{weights}"""
CARDS_BODY = """<noscript>This page requires JavaScript, which is disabled.</noscript>
<script type="application/json" id="sightline-{name}">{data}</script>
<script type="module">{script}</script>"""
FAILURES = """<section class="failures" aria-label="Inputs without a prediction">
<p>{count} without a prediction:</p>
<ul>{rows}</ul>
</section>"""
EXAMPLE_OPTIONS = (
    "tokens",
    "source",
    "target",
    "generated",
    "images",
    "query_image",
    "labels",
    "token_type_ids",
    "scores",
)
"""Options with one entry for each example on a page with several."""


class ViewOptions(TypedDict, total=False):
    """What the viewer shows beside the weights."""

    source: Any
    """Tokens of the encoder side. In token lists, None at the end marks padding, which is not shown."""
    target: Any
    """Tokens of the decoder side, as the decoder reads them."""
    generated: Any
    """Tokens the decoder predicts at each position, if shown beside those it reads. They name the rows of
    cross-attention."""
    images: Any
    """The image that the source tokens are patches of, or a list of support images. Path, PIL image or array."""
    query_image: Any
    """The image that the target tokens are patches of, if it is another one."""
    labels: Any
    """A label for each of `images`."""
    grid: tuple[int, int] | None
    """Rows and columns of patches (default: from the shape of the image)."""
    image_tokens: slice | None
    """Positions of the image's patches among the tokens of a text (default: as the model's image token says)."""
    patch_grid: tuple[int, int] | None
    """Rows and columns of patches by the model (default: those of the record). `grid` overrides it."""
    importance: Importance | None
    """By how much the target drops without each head, as `head_importance` returns it. The grid view shows it."""
    tokenizer: Any
    """A tokenizer of Hugging Face, if tokens are given as ids. It also says which tokens are special."""
    join_subwords: bool
    """Whether the page opens with the tokens of a word joined (default: False)."""
    token_type_ids: Any
    """0 for tokens of sentence A, 1 for those of sentence B (default: those of the encoding)."""
    scores: Any
    """Classes or answers with their probabilities, a dict or pairs, or a dict of several of these by their titles. They
    are listed beside the drawing."""
    special_tokens: Collection[str] | None
    """Tokens that the page can hide (default: those of the tokenizer, and common ones such as [CLS] and </s>)."""
    batch: int | Sequence[int]
    """Index of the example in the batch. With several, tokens and images are lists with an entry for each."""
    names: Sequence[str] | None
    """A name for each of several examples (default: their indices)."""
    title: str
    """Title of the page (default: the name of the model)."""
    height: int
    """Height of the frame in a notebook, in pixels."""


@dataclass(frozen=True)
class Page:
    """A self-contained HTML page. Notebooks display it as the last expression of a cell."""

    html: str
    height: int = 720
    """Height of the frame in a notebook, in pixels."""

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page to one file that opens from disk and makes no network request."""
        path = check_path(Path(path))
        with atomic_write(path) as part:
            part.write_text(self.html, encoding="utf-8", newline="\n")
        return path

    def with_failures(self, failures: Sequence[tuple[str, str]]) -> "Page":
        """The page with a list of inputs that have no prediction: the name and the error of each."""
        texts = (
            (name, error.removeprefix(name) if error.startswith(name) else f": {error}") for name, error in failures
        )
        rows = (f"<li><b>{html.escape(name)}</b>{html.escape(text)}</li>" for name, text in texts)
        count = "1 input" if len(failures) == 1 else f"{len(failures):,} inputs"
        section = FAILURES.format(count=count, rows="".join(rows)).encode("utf-8", "replace").decode("utf-8")
        return replace(self, html=self.html.replace("<body>\n", f"<body>\n{section}\n", 1))

    def _repr_html_(self) -> str:
        """A sandboxed frame, so that pages in one notebook do not affect each other."""
        return (
            f'<iframe title="Attention viewer" style="width:100%;height:{self.height}px;border:0;border-radius:8px" '
            f'sandbox="allow-scripts allow-downloads" srcdoc="{html.escape(self.html)}"></iframe>'
        )

    def __repr__(self) -> str:
        return f"Page({len(self.html.encode()) / 1e6:.1f} MB of HTML)"


def check_path(path: Path) -> Path:
    """Return the path if a page can be written to it."""
    check(path.suffix in SUFFIXES, f"path must end in .html, got {path.name!r}")
    return path


def attention_page(maps: Sequence[Map], tokens: Any = None, **options: Unpack[ViewOptions]) -> Page:
    """The attention viewer with these maps. `tokens` has a name for each position of a self-attention model."""
    check(maps, "record must contain at least one attention map, got none")
    for name in options:
        check_choice("the name of an option of the viewer", name, (*ViewOptions.__annotations__, *EXAMPLE_OPTIONS))
    is_list, indices = _batch_indices(options.pop("batch", 0))
    names, height, title = options.pop("names", None), options.pop("height", 720), options.pop("title", "Attention")
    check_int(1, height=height)
    if names is not None and (isinstance(names, str) or len(names) != len(indices)):
        raise SightlineError(f"names must have one entry for each of the {len(indices)} examples, got {names!r}")
    importance = options.pop("importance", None)
    of_page: dict[str, Any] = {"tokens": tokens, **options}
    tokenizer, join_subwords = of_page.pop("tokenizer", None), bool(of_page.pop("join_subwords", False))
    given = {name: of_page.pop(name, None) for name in EXAMPLE_OPTIONS}
    given, special = read_encodings(given, indices, is_list=is_list, tokenizer=tokenizer)
    if of_page.get("special_tokens") is None:
        of_page["special_tokens"] = SPECIAL_TOKENS | special
    maps = merge_calls(maps)
    _check_examples(indices, maps, given if is_list else {})
    importance_of = read_importance(importance, maps)
    examples, weights, thumbnails = [], [], []
    for i, index in enumerate(indices):
        of_example = {k: v if v is None or not is_list else v[i] for k, v in given.items()}
        scores = read_scores(of_example.pop("scores", None))
        example_maps, of_example = drop_padding(maps, of_example)
        sequences = token_sequences(example_maps, **of_page, **of_example)
        if i == 0:
            warn_of_positions(example_maps, sequences, [k for k, v in of_example.items() if v is not None])
        layers = []
        for j, m in enumerate(example_maps):
            packed = pack_weights(m.weights[index])
            weights.append(_element(f"weights-{i}-{j}", packed))
            layer = {
                **_layer_meta(m, packed, m.weights[index]),
                "sequences": query_and_key(m, sequences),
                "thumbnail": None,
                "importance": importance_of[j],
            }
            small = downsample(m.weights[index])
            if small is not None:
                thumbnails.append(_element(f"thumbnail-{i}-{j}", pack_weights(small)))
                layer["thumbnail"] = small.shape
            layers.append(layer)
        name = f"batch index {index}" if names is None else str(names[i])
        named = {k: s.to_dict() for k, s in sequences.items()}
        examples.append({"name": name, "layers": layers, "scores": scores, **named})
    title, script = str(title), bundle_script()
    levels = [float(f"{level:.7g}") for level in LEVELS]
    meta = {"title": title, "levels": levels, "thumbnailSize": THUMBNAIL_SIZE, "examples": examples}
    meta |= {"joinSubwords": join_subwords, "look": asdict(LOOK)}
    body = VIEWER_BODY.format(meta=json_for_html(meta), script=script, weights="\n".join(thumbnails + weights))
    policy = f"script-src {csp_hash(script)}; img-src data: blob:"
    return Page(html_document(title, body, style=read_static("viewer.css"), policy=policy), height)


def cards_page(name: str, title: str, data: Mapping[str, Any], styles: Sequence[str], *, images: str = "data:") -> Page:
    """A page that the script of this name draws from plain values. `images` are the sources that its images may have.

    It makes no network request.
    """
    script, style = bundle_script(name), "".join(map(read_static, styles))
    body = CARDS_BODY.format(name=name, data=json_for_html(data), script=script)
    document = html_document(title, body, style=style, policy=f"script-src {csp_hash(script)}; img-src {images}")
    return Page(document.encode("utf-8", "replace").decode("utf-8"))


def html_document(title: str, body: str, *, style: str, policy: str) -> str:
    """A document without outside resources. `policy` adds to its content security policy."""
    style += read_static("failures.css")
    policy = f"default-src 'none'; {policy}; style-src {csp_hash(style)}; base-uri 'none'; form-action 'none'"
    title = html.escape(title).encode("utf-8", "replace").decode("utf-8")
    return TEMPLATE.format(policy=policy, title=title, style=style, body=body)


def _layer_meta(m: Map, packed: PackedWeights, weights: Any) -> dict[str, Any]:
    """The properties of a layer, weights (H, Q, K), that the page needs before its weights are decompressed."""
    measured = measure(weights) if packed.normalized else None
    return {
        "name": ", ".join(part for part in (m.name, m.over != "tokens" and f"over {m.over}", m.note) if part),
        "kind": m.kind if m.measure == "attention" else m.measure,
        "call": m.module_call,
        "heads": m.head_names,
        "shape": packed.shape,
        "signed": packed.signed,
        "normalized": packed.normalized,
        "information": measured and round(measured.bits, 4),
        "uniform": measured.near_uniform if measured else [],
        "max": float(f"{np.abs(weights).max():.4g}"),
        "hasTemperature": packed.normalized and m.heads != (),  # a mean over heads is not a softmax
    }


def _batch_indices(batch: Any) -> tuple[bool, list[int]]:
    """Whether `batch` is a list, and its indices."""
    value = batch.tolist() if hasattr(batch, "tolist") else batch  # numpy and torch
    is_list = isinstance(value, Sequence)
    try:
        indices = [operator.index(index) for index in (value if is_list else [value])]
    except TypeError as error:
        raise SightlineError(f"batch must be an integer or a list of integers, got {batch!r}") from error
    check(indices, "batch must contain at least one index, got none")
    return is_list, indices


def _check_examples(indices: list[int], maps: Sequence[Map], options: dict[str, Any]) -> None:
    """Indices must be in every batch; each option must have one entry for each example."""
    for name, value in options.items():
        count = None if isinstance(value, str | Mapping) or not hasattr(value, "__len__") else len(value)
        if value is not None and count != len(indices):
            got = f"one {type(value).__name__}" if count is None else count
            raise SightlineError(f"{name} must have one entry for each of the {len(indices)} examples, got {got}")
    for index in indices:
        for m in maps:
            rule = f"batch must be 0 to {m.shape[0] - 1}, the batch indices of {m.name}"
            check(0 <= index < m.shape[0], f"{rule}, got {index}")


def _element(name: str, packed: PackedWeights) -> str:
    return f'<script type="text/plain" id="{name}">{packed.data}</script>'


def json_for_html(value: Any) -> str:
    """JSON with <, > and & escaped, so that an HTML parser finds no markup in it."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    text = text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
    return text.encode("utf-8", "backslashreplace").decode("utf-8")  # lone surrogates cannot be encoded


@cache
def bundle_script(entry: str = "main") -> str:
    """A module and all that it imports in one script, in import order. Each becomes a function with its exports."""
    bundled: dict[str, str] = {}

    def add(name: str) -> None:
        text = read_static(f"{name}.js")
        for _, imported in IMPORT.findall(text):
            if imported not in bundled:
                add(imported)
        exports = ", ".join(identifier for _, identifier in EXPORT.findall(text))
        body = EXPORT.sub(r"\1", IMPORT.sub(r'const \1 = modules["\2"];', text))
        bundled[name] = f'modules["{name}"] = (() => {{\n{body}return {{ {exports} }};\n}})();\n'

    add(entry)
    return '"use strict";\nconst modules = {};\n' + "\n".join(bundled.values())


@cache
def read_static(name: str) -> str:
    """The text of a file in `static/`."""
    return (files("sightline.view") / "static" / name).read_text(encoding="utf-8")


def csp_hash(text: str) -> str:
    """The source expression that allows this inline text in a content security policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

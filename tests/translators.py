"""Every kind of translator, small, and a batch of unequal sentences for it."""

import torch
from torch import Tensor, nn

from sightline.models.rnn_translator import ATTENTIONS, RNNTranslator, RNNTranslatorConfig
from sightline.models.translator import Translator, TranslatorConfig

SOURCE_WORDS, TARGET_WORDS = 13, 17
B, S, T = 3, 7, 5
WORDS = {"source_vocab_size": SOURCE_WORDS, "target_vocab_size": TARGET_WORDS}
TRANSFORMER = {"embed_dim": 12, "ffn_dim": 19, "num_heads": 3, "encoder_layers": 2, "decoder_layers": 3}
RECURRENT = {"hidden_size": 14, "embed_dim": 6}

KINDS: dict[str, dict[str, object]] = {
    "transformer": {},
    "transformer post learned": {"norm": "post", "positions": "learned", "max_positions": 23},
    "transformer cosine untied": {"score": "cosine", "tie_embeddings": "none"},
    **{f"rnn {attention}": {"attention": attention} for attention in ATTENTIONS},
    "rnn hard": {"attention": "general", "hard": True},
    "rnn lstm deep": {"attention": "general", "cell": "lstm", "num_layers": 2, "tie_embeddings": "none"},
    "rnn one way deep": {"attention": "none", "bidirectional": False, "num_layers": 2, "cell": "lstm"},
}


def make(kind: str, **changes: object) -> nn.Module:
    torch.manual_seed(0)
    options = {**WORDS, **KINDS[kind], **changes}
    if kind.startswith("rnn"):
        return RNNTranslator(RNNTranslatorConfig(**{**RECURRENT, **options})).eval()
    return Translator(TranslatorConfig(**{**TRANSFORMER, **options})).eval()


def attends(kind: str) -> bool:
    return KINDS[kind].get("attention") != "none"


def batch() -> tuple[Tensor, Tensor, Tensor]:
    """Sources of 7, 3 and 1 tokens, padded; what is real; targets that begin with BOS."""
    generator = torch.Generator().manual_seed(1)
    real = torch.arange(S) < torch.tensor([[S], [3], [1]])
    source = torch.randint(4, SOURCE_WORDS, (B, S), generator=generator) * real
    target = torch.randint(4, TARGET_WORDS, (B, T), generator=generator)
    target[:, 0] = 1
    return source, real, target

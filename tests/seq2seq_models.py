"""Small sequence-to-sequence models of every kind, and a padded batch for them."""

import torch
from torch import Tensor

from sightline.attention import SCORES
from sightline.models.seq2seq import RecurrentSeq2SeqConfig, Seq2Seq, TransformerSeq2SeqConfig

SOURCE_VOCAB_SIZE, TARGET_VOCAB_SIZE = 13, 17
B, S, T = 3, 7, 5
VOCAB_SIZES = {"source_vocab_size": SOURCE_VOCAB_SIZE, "target_vocab_size": TARGET_VOCAB_SIZE}
TRANSFORMER = {"embed_dim": 12, "ffn_dim": 19, "num_heads": 3, "encoder_layers": 2, "decoder_layers": 3}
RECURRENT = {"hidden_size": 14, "embed_dim": 6}

KINDS: dict[str, dict[str, object]] = {
    "transformer": {},
    "transformer post learned": {"norm": "post", "positions": "learned", "max_positions": 23},
    "transformer cosine untied": {"score": "cosine", "tie_embeddings": "none"},
    "transformer general": {"score": "general"},
    "transformer additive": {"score": "additive"},
    **{f"rnn {attention}": {"attention": attention} for attention in ("none", *SCORES)},
    "rnn hard": {"attention": "general", "hard": True},
    "rnn lstm deep": {"attention": "general", "cell": "lstm", "num_layers": 2, "tie_embeddings": "none"},
    "rnn unidirectional deep": {"attention": "none", "bidirectional": False, "num_layers": 2, "cell": "lstm"},
}


def make_model(kind: str, **changes: object) -> Seq2Seq:
    torch.manual_seed(0)
    options = {**VOCAB_SIZES, **KINDS[kind], **changes}
    if kind.startswith("rnn"):
        return Seq2Seq(RecurrentSeq2SeqConfig(**{**RECURRENT, **options})).eval()
    return Seq2Seq(TransformerSeq2SeqConfig(**{**TRANSFORMER, **options})).eval()


def has_attention(kind: str) -> bool:
    return KINDS[kind].get("attention") != "none"


def make_batch() -> tuple[Tensor, Tensor, Tensor]:
    """Sources of 7, 3 and 1 tokens, padded; their attention mask; targets that start with BOS."""
    generator = torch.Generator().manual_seed(1)
    attention_mask = torch.arange(S) < torch.tensor([[S], [3], [1]])
    source = torch.randint(4, SOURCE_VOCAB_SIZE, (B, S), generator=generator) * attention_mask
    target = torch.randint(4, TARGET_VOCAB_SIZE, (B, T), generator=generator)
    target[:, 0] = 1
    return source, attention_mask, target

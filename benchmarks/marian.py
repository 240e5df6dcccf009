"""Marian of Hugging Face transformers with the dimensions of our Transformer. Both models have random weights."""

import torch
import transformers
from transformers import MarianConfig, MarianMTModel

from sightline.models.seq2seq import Seq2Seq, TransformerSeq2SeqConfig

PAD, BOS, EOS = 0, 1, 2
transformers.logging.set_verbosity_error()


def model_pair(size: str, vocab_size: int, device: str) -> tuple[Seq2Seq, MarianMTModel]:
    """Our model and Marian: equal dimensions, layers and dropout, and one embedding table for all tokens."""
    torch.manual_seed(0)
    config = TransformerSeq2SeqConfig(
        size=size,
        source_vocab_size=vocab_size,
        target_vocab_size=vocab_size,
        tie_embeddings="all",
        norm="post",
        attention_dropout=0.0,
    )
    dimensions = config.dimensions
    marian = MarianConfig(
        vocab_size=vocab_size,
        d_model=dimensions["embed_dim"],
        encoder_layers=dimensions["encoder_layers"],
        decoder_layers=dimensions["decoder_layers"],
        encoder_attention_heads=dimensions["num_heads"],
        decoder_attention_heads=dimensions["num_heads"],
        encoder_ffn_dim=dimensions["ffn_dim"],
        decoder_ffn_dim=dimensions["ffn_dim"],
        activation_function="relu",
        dropout=0.1,
        attention_dropout=0.0,
        activation_dropout=0.1,
        scale_embedding=True,
        max_position_embeddings=512,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        forced_eos_token_id=None,
        decoder_start_token_id=BOS,
        attn_implementation="sdpa",
    )
    return Seq2Seq(config).to(device), MarianMTModel(marian).to(device)

"""Hugging Face's Marian, of the same size as one of our translators and with random weights: whom we race against."""

import torch
import transformers
from transformers import MarianConfig, MarianMTModel

from sightline.models.translator import Translator, TranslatorConfig

PAD, BEGIN, END = 0, 1, 2
transformers.logging.set_verbosity_error()


def pair(size: str, words: int, device: str) -> tuple[Translator, MarianMTModel]:
    """Ours and theirs: the same width, heads, depth and dropout, and one table of words for all."""
    torch.manual_seed(0)
    config = TranslatorConfig(
        size=size,
        source_vocab_size=words,
        target_vocab_size=words,
        tie_embeddings="all",
        norm="post",
        attention_dropout=0.0,
    )
    form = config.form
    theirs = MarianConfig(
        vocab_size=words,
        d_model=form["width"],
        encoder_layers=form["encoder_layers"],
        decoder_layers=form["decoder_layers"],
        encoder_attention_heads=form["heads"],
        decoder_attention_heads=form["heads"],
        encoder_ffn_dim=form["hidden"],
        decoder_ffn_dim=form["hidden"],
        activation_function="relu",
        dropout=0.1,
        attention_dropout=0.0,
        activation_dropout=0.1,
        scale_embedding=True,
        max_position_embeddings=512,
        pad_token_id=PAD,
        bos_token_id=BEGIN,
        eos_token_id=END,
        forced_eos_token_id=None,
        decoder_start_token_id=BEGIN,
        attn_implementation="sdpa",
    )
    return Translator(config).to(device), MarianMTModel(theirs).to(device)

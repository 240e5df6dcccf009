"""Masked language modeling with a bidirectional Transformer."""

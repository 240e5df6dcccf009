"""Text classification with a bidirectional Transformer."""

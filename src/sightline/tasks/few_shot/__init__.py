"""Few-shot classification with the Lightweight Cosine Transformer."""

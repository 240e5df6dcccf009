"""Text data sets: corpora, tokenizers, batching."""

"""Translation with a Transformer or a recurrent encoder-decoder."""

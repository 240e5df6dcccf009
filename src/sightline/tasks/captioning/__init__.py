"""Image captioning: a sentence for an image, and where the model attended for each word."""

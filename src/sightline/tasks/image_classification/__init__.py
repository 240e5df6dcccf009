"""Image classification with a vision transformer."""

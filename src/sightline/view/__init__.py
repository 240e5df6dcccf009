"""Weights and tokens in, pictures and one self-contained page out."""

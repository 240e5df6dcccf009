"""Weights and tokens in, pictures out."""

"""One file = one config and one model."""

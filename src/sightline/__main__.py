"""`python -m sightline`, and `torchrun -m sightline`."""

from .cli import app

app()

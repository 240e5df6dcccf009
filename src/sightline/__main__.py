"""`python -m sightline` is the command `sightline`."""

from .cli import app

app()

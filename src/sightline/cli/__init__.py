"""The command `sightline`: parse arguments, call, print. Heavy modules are imported by the command that needs them."""

from . import training, evaluation, fitting, prediction, data, serving  # isort: skip  # the order of the help
from .application import app

__all__ = ["app", "data", "evaluation", "fitting", "prediction", "serving", "training"]

"""A classifier from a handful of images, that knows when it does not know and shows why."""

from .answers import Answer, Estimate
from .classifier import FewShotClassifier
from .explain import Explanation

__all__ = ["Answer", "Estimate", "Explanation", "FewShotClassifier"]

"""A classifier from a handful of images, that knows when it does not know and shows why."""

from .classifier import FewShotClassifier
from .explanation import Explanation
from .predictions import Answer, Estimate

__all__ = ["Answer", "Estimate", "Explanation", "FewShotClassifier"]

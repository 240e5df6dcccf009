"""Few-shot classifiers that are fitted to a few images per class, detect unknown images and explain predictions."""

from .classifier import FewShotClassifier
from .predictions import Estimate, Explanation, FewShotPrediction

__all__ = ["Estimate", "Explanation", "FewShotClassifier", "FewShotPrediction"]

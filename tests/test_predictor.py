"""The Predictor base class: lists, streams, errors of single inputs and explanations."""

import math
import tracemalloc
from dataclasses import dataclass

import numpy as np
import pytest

from sightline.errors import MissingDependencyError, SightlineError
from sightline.predictor import Predictor
from sightline.results import FailedPrediction, MetricsEvaluation
from sightline.view.page import Page


@dataclass(frozen=True)
class Square:
    value: float
    error: None = None

    def to_dict(self):
        return {"value": self.value}

    def summary(self, top=None):
        return f"{self.value}"


class SquarePredictor(Predictor):
    """Squares numbers. Negative numbers cannot be used, and None needs a missing dependency."""

    batch_size = 4

    def __init__(self):
        self.batches, self.options = [], []

    @classmethod
    def load(cls, path):
        return cls()

    def parse_inputs(self, arguments):
        return map(float, arguments)

    def prepare(self, item):
        if item is None:
            raise MissingDependencyError("numbers must have a package: pip install it")
        if np.min(item) < 0:
            raise SightlineError(f"a number must be at least 0, got {item}")
        return item

    def predict_batch(self, prepared, **options):
        self.batches.append(len(prepared))
        self.options.append(options)
        return [Square(float(np.max(item)) ** 2) for item in prepared]

    def explain_batch(self, prepared, inputs, *, progress=None, **options):
        return self.predict_batch(prepared), Page(f"<body>\n{list(inputs)}")

    def evaluate(self, data=None, *, progress=None, **options):
        return MetricsEvaluation("test", {"accuracy": 0.5})


def test_a_single_input_gives_one_prediction():
    assert SquarePredictor().predict(3) == Square(9)


def test_a_single_bad_input_raises():
    with pytest.raises(SightlineError, match="a number must be at least 0, got -1"):
        SquarePredictor().predict(-1)


@pytest.mark.parametrize("kind", [list, tuple])
def test_a_list_gives_one_prediction_per_input_in_order(kind):
    predictor = SquarePredictor()
    assert predictor.predict(kind(range(10))) == [Square(n * n) for n in range(10)]
    assert predictor.batches == [4, 4, 2]
    assert predictor.predict(kind()) == []


def test_a_bad_input_in_a_list_becomes_a_failed_prediction():
    first, failed, last = SquarePredictor().predict([1, -2, 3])
    assert (first, last) == (Square(1), Square(9))
    assert failed == FailedPrediction("a number must be at least 0, got -2")
    assert (failed.label, failed.text) == (None, None)  # what a classifier and a translator would answer
    assert failed.to_dict() == {"error": failed.error}
    assert str(failed) == failed.summary(3) == "error: a number must be at least 0, got -2"


@pytest.mark.parametrize("count", [1, 4, 9, 12])
def test_bad_inputs_cost_no_forward_pass(count):
    predictor = SquarePredictor()
    numbers = [-1 if n == count // 2 else n for n in range(count)]
    predictor.predict(numbers)
    usable_batches = math.ceil(count / predictor.batch_size) if count > 1 else 0
    assert len(predictor.batches) == usable_batches
    assert sum(predictor.batches) == count - 1


def test_a_missing_dependency_is_raised_once():
    predictor = SquarePredictor()
    with pytest.raises(MissingDependencyError, match="pip install it"):
        predictor.predict([None, None, 3])
    with pytest.raises(MissingDependencyError):
        predictor.explain([3, None])
    assert predictor.batches == []


def test_other_exceptions_are_not_predictions():
    with pytest.raises(TypeError):
        SquarePredictor().predict([1, "two"])


def test_options_and_progress_are_passed_on():
    predictor, calls = SquarePredictor(), []
    predictor.predict(list(range(6)), progress=lambda *progress: calls.append(progress), top_k=2)
    assert predictor.options == [{"top_k": 2}] * 2
    assert calls == [(4, 6), (6, 6)]


def test_a_stream_reads_one_batch_ahead():
    consumed = []

    def numbers():
        for n in range(5000):
            consumed.append(n)
            yield n

    stream = SquarePredictor().stream(numbers())
    assert consumed == []
    assert next(stream) == Square(0)
    assert len(consumed) == 4
    for _ in range(4):
        next(stream)
    assert len(consumed) == 8


def test_memory_of_a_stream_is_that_of_one_batch():
    arrays = (np.full(10_000, n, dtype=np.uint16) for n in range(5000))  # 100 MB
    tracemalloc.start()
    try:
        count = sum(1 for _ in SquarePredictor().stream(arrays))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 5000
    assert peak < 1_000_000


def test_explain_lists_bad_inputs_on_the_page():
    predictor = SquarePredictor()
    explanations = predictor.explain([2, -1, 3])
    assert explanations.page.html.endswith("[2, 3]")
    assert "<li><b>input 2</b>: a number must be at least 0, got -1</li>" in explanations.page.html
    assert [prediction.error is None for prediction in explanations.predictions] == [True, False, True]
    assert list(explanations.pairs()) == list(zip([2, -1, 3], explanations.predictions, strict=True))
    assert predictor.batches == [2]


def test_explain_takes_one_input():
    explanations = SquarePredictor().explain(3)
    assert explanations.page.html == "<body>\n[3]"
    assert explanations.inputs == [3]


def test_explain_without_a_usable_input_has_no_page():
    explanations = SquarePredictor().explain([-1])
    assert explanations.page is None
    assert explanations.predictions == [FailedPrediction("a number must be at least 0, got -1")]


@pytest.mark.parametrize(("count", "fix"), [(0, "give at least one"), (65, "show fewer, or leave out the page")])
def test_a_page_has_1_to_64_examples(count, fix):
    predictor = SquarePredictor()
    with pytest.raises(SightlineError, match=f"inputs must be 1 to 64 to be shown on one page, got {count}; {fix}"):
        predictor.explain([1] * count)
    assert predictor.batches == []


def test_a_predictor_without_figures_says_so():
    with pytest.raises(SightlineError, match="figures must be of a trained run, got SquarePredictor"):
        SquarePredictor().show()


def test_metrics_evaluation_as_text_and_values():
    evaluation = SquarePredictor().evaluate()
    assert str(evaluation) == "test set\naccuracy  0.5000"
    assert evaluation.summary() == "On the test set: accuracy 0.5000."
    assert evaluation.to_dict() == {"split": "test", "accuracy": 0.5}

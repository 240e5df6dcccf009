"""Classifiers in threads and in other processes, and their memory."""

import gc
import os
import pickle
import signal
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from sightline import FewShotClassifier
from sightline.errors import SightlineError


def test_pickle_is_the_content_of_a_file(fitted, drawn, tmp_path):
    content, embedder = fitted.__reduce__()[1]
    assert embedder is None
    (tmp_path / "a.sightline").write_bytes(content)
    data = pickle.dumps(fitted)
    assert len(data) < len(content) + 1000
    images = [image for class_images in drawn.values() for image in class_images[::5]]
    for classifier in (FewShotClassifier.load(tmp_path / "a.sightline"), pickle.loads(data)):  # noqa: S301
        assert classifier.predict(images) == fitted.predict(images)
    with pytest.raises(SightlineError, match="a classifier must be fitted first"):
        pickle.dumps(FewShotClassifier())
    with pytest.raises(SightlineError, match="data must be a complete classifier file"):
        pickle.loads(data.replace(b"few-shot classifier", b"another  classifier"))  # noqa: S301


def test_pickled_prediction_is_without_the_classifier(fitted, drawn):
    prediction = fitted.predict(drawn[fitted.classes[0]][5])
    data = pickle.dumps(prediction)
    assert len(data) < 2000
    assert pickle.loads(data) == prediction  # noqa: S301
    with pytest.raises(SightlineError, match="such as one that was pickled"):
        pickle.loads(data).explain()  # noqa: S301
    assert prediction.explain(grid=2)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_process_predicts_while_another_thread_holds_the_lock(fitted, drawn):
    images = [class_images[7] for class_images in drawn.values()]
    expected = [prediction.label for prediction in fitted.predict(images)]
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    torch.ones(1 << 20).exp()  # starts the threads of torch
    is_held, is_done = threading.Event(), threading.Event()

    def hold():
        with fitted._lock:
            is_held.set()
            is_done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    is_held.wait()
    try:
        if (child := os.fork()) == 0:
            status = 1
            try:
                signal.alarm(300)  # ends the process if it hangs
                torch.ones(1 << 20).exp()
                status = int([prediction.label for prediction in fitted.predict(images)] != expected)
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
    finally:
        is_done.set()
        thread.join()
        torch.set_num_threads(threads)


def test_predictions_in_threads_are_those_of_one_thread(fitted, drawn):
    images = [image for class_images in drawn.values() for image in class_images[5:]]
    loaded = pickle.loads(pickle.dumps(fitted))  # noqa: S301 - its state is computed by the first of the threads
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(loaded.predict, images)) == [fitted.predict(image) for image in images]


def test_predictions_leave_nothing_in_memory():
    classifier = FewShotClassifier().fit({"a": torch.eye(3)[:2], "b": -torch.eye(3)})

    def measure(predictions):
        for _ in range(predictions):
            classifier.predict(torch.ones(3))
        gc.collect()
        return len(gc.get_objects()), tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before, after = measure(70), measure(170)
    finally:
        tracemalloc.stop()
    assert after[0] - before[0] < 50  # objects
    assert after[1] - before[1] < 50_000  # bytes; Python's free lists grow by up to 30,000, a prediction has 1,000

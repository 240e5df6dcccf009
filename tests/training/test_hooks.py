import pytest

import sightline
from processes import SMALL, write_images
from sightline.files import is_finished
from sightline.training.hooks import Hook
from toy_task import logged, train, weights


class Recorder(Hook):
    """Records every call."""

    def __init__(self):
        self.calls = []

    def on_start(self, trainer):
        self.calls.append(("start", trainer.step))

    def on_step(self, trainer):
        self.calls.append(("step", trainer.step))

    def on_log(self, trainer, values):
        self.calls.append(("log", trainer.step, values))

    def on_evaluate(self, trainer, metrics, is_best):
        self.calls.append(("evaluate", trainer.step, metrics, is_best))

    def on_checkpoint(self, trainer, path):
        assert path.is_file()
        self.calls.append(("checkpoint", trainer.step, path.name))

    def on_message(self, trainer, message):
        self.calls.append(("message", trainer.step, message))

    def on_end(self, trainer):
        self.calls.append(("end", trainer.step))

    def of(self, kind):
        return [call[1:] for call in self.calls if call[0] == kind]


class StopAfterEvaluation(Hook):
    """Stops at the second evaluation, as a pruner does."""

    def __init__(self):
        self.values = []

    def on_evaluate(self, trainer, metrics, is_best):
        self.values.append(metrics["loss"])
        if len(self.values) == 2:
            trainer.request_stop("pruned")


def test_hooks_see_every_event(tmp_path):
    recorder = Recorder()
    result, _ = train(tmp_path, hooks=[recorder], steps=5, evaluate_every=2, checkpoint_every=3, log_every=2)
    assert recorder.calls[0] == ("start", 0)
    assert recorder.calls[-1] == ("end", 5)
    assert recorder.of("step") == [(1,), (2,), (3,), (4,), (5,)]
    assert {step: values["loss"] for step, values in recorder.of("log")} == logged(tmp_path)
    assert {step: metrics for step, metrics, _ in recorder.of("evaluate")} == logged(tmp_path, "validation")
    assert {step: is_best for step, _, is_best in recorder.of("evaluate")} == logged(tmp_path, "best")
    assert recorder.of("checkpoint") == [(3, "step-00000003.json"), (5, "step-00000005.json")]
    again = Recorder()
    train(tmp_path, hooks=[again], steps=5, evaluate_every=2, checkpoint_every=3, log_every=2, resume=True)
    assert again.calls == [("message", 5, "resuming from step 5 of 5"), ("start", 5), ("end", 5)]
    assert result.stop_reason is None


def test_on_end_is_called_after_an_error(tmp_path):
    class Failing(Recorder):
        def on_step(self, trainer):
            raise RuntimeError("failure in a hook")

    hook = Failing()
    with pytest.raises(RuntimeError, match="failure in a hook"):
        train(tmp_path, hooks=[hook])
    assert hook.calls == [("start", 0), ("end", 1)]


def test_stop_requested_by_a_hook_keeps_the_best_weights_and_can_be_resumed(tmp_path):
    hook = StopAfterEvaluation()
    result, _ = train(tmp_path / "run", hooks=[hook], evaluate_every=3, checkpoint_every=5)
    assert (result.steps, result.stop_reason) == (6, "pruned")
    assert result.metrics == {"loss": min(hook.values)}
    result, _ = train(tmp_path / "run", evaluate_every=3, checkpoint_every=5, resume=True)
    assert (result.steps, result.stop_reason) == (11, None)
    train(tmp_path / "whole", evaluate_every=3, checkpoint_every=5)
    assert logged(tmp_path / "run") == logged(tmp_path / "whole")
    for name, tensor in weights(tmp_path / "whole").items():
        assert tensor.equal(weights(tmp_path / "run")[name])


def test_pruned_run_is_finished_loads_and_resumes(tmp_path):
    source = write_images(tmp_path / "images.npz")
    changes = [f"data.source={source}", *SMALL, "training.steps=12", f"out={tmp_path / 'run'}"]
    run = sightline.train(None, changes, hooks=[StopAfterEvaluation()], quiet=True)
    assert (run.steps, run.stop_reason) == (10, "pruned")
    assert str(run).startswith(f"{tmp_path / 'run'}: 10 steps (stopped: pruned), validation accuracy ")
    assert is_finished(run.folder)
    assert "10 steps, stopped early (pruned)" in (run.folder / "README.md").read_text()
    sightline.load(run.folder)
    run = sightline.train(None, changes, resume=True, quiet=True)
    assert (run.steps, run.stop_reason) == (12, None)

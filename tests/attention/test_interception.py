"""Recordings of several calls, in which interception is suspended where the first two calls did not need it."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode

from sightline import ablate_heads, record_attention
from sightline.attention.normalizers import Softmax
from sightline.attention.torch_functions import TorchAttentionMode
from sightline.errors import SightlineWarning
from sightline.layers import Encoder
from sightline.models.image_classifier import ImageClassifier, ImageClassifierConfig
from sizes import B, D, H, Q

SDPA = F.scaled_dot_product_attention
X = torch.randn(B, H, Q, D, generator=torch.Generator().manual_seed(0))


class Mixer(nn.Module):
    """Attends in the given form in each of its calls; no attention in its class name."""

    num_heads = H

    def __init__(self, *forms):
        super().__init__()
        self.forms, self.calls = forms, 0

    def forward(self, x):
        form = self.forms[min(self.calls, len(self.forms) - 1)]
        self.calls += 1
        return {"sdpa": self.look_up, "bound": self.bound, "softmax": self.softmax, "none": self.none}[form](x)

    def look_up(self, x):
        return F.scaled_dot_product_attention(x, x, x)

    def bound(self, x):
        return SDPA(x, x, x)

    def softmax(self, x):
        return (x @ x.mT / D**0.5).softmax(-1) @ x

    def none(self, x):
        return x


class MixerAttention(Mixer):
    """With attention in its class name."""


class Noting(MixerAttention):
    """Notes which mode is active in its own code."""

    def __init__(self, *forms):
        super().__init__(*forms)
        self.modes = []

    def forward(self, x):
        self.modes.append(_get_current_function_mode())
        return super().forward(x)


def nested(*modules):
    return nn.Sequential(nn.Sequential(nn.Sequential(*modules)))


def run(model, calls=4, **options):
    with torch.no_grad(), record_attention(model, **options) as record:
        for _ in range(calls):
            model(X)
    return record


def call_indices(record):
    return [m.call_index for m in record]


@pytest.mark.parametrize("form", ["sdpa", "bound", "softmax"])
@pytest.mark.parametrize("mixer", [Mixer, MixerAttention])
def test_every_call_is_recorded(mixer, form):
    record = run(nested(mixer(form)), calls=5)
    assert call_indices(record) == [0, 1, 2, 3, 4]
    assert not record.missed
    assert all(m.name == "0.0.0" and torch.equal(m.weights, record[0].weights) for m in record)


def test_the_mode_is_suspended_in_modules_that_look_their_function_up():
    looked_up, bound = Noting("sdpa"), Noting("bound")
    run(nested(looked_up, bound))
    assert [mode is None for mode in looked_up.modes] == [False, False, True, True]
    assert None not in bound.modes


def test_attention_that_starts_late_is_recorded():
    assert call_indices(run(nested(Mixer("none", "none", "sdpa"), Mixer("sdpa")), calls=3)) == [0, 1, 2, 2]


@pytest.mark.parametrize("mixer", [Mixer, MixerAttention])
@pytest.mark.parametrize("form", ["bound", "softmax"])
def test_another_form_of_attention_is_named_once_and_recorded_from_then_on(mixer, form):
    with pytest.warns(SightlineWarning, match=r"not recorded: 0\.0\.0 "):
        record = run(nested(mixer("sdpa", "sdpa", form, form, "sdpa", form)), calls=6)
    assert call_indices(record) == [0, 1, 3, 4, 5]


def test_two_calls_of_a_module_decide_and_not_of_its_model():
    """As in a decoding loop that calls the parts of a model in turn."""
    model = nn.ModuleDict({"decoder": nn.Sequential(Mixer("sdpa", "softmax")), "head": nn.Sequential(nn.Identity())})
    with torch.no_grad(), record_attention(model) as record:
        for _ in range(4):
            model["head"](model["decoder"](X))
    assert call_indices(record) == [0, 2, 4, 6]


def test_a_shared_module_is_tracked_although_a_module_around_it_has_no_attention():
    class Head(nn.Module):
        def __init__(self, mixer):
            super().__init__()
            self.mixer = mixer

        def forward(self, x):
            return self.mixer.none(x)

    mixer = Mixer("softmax")
    assert [m.name for m in run(nested(mixer, Head(mixer)))] == ["0.0.0"] * 4


@pytest.mark.parametrize("form", ["sdpa", "softmax"])
def test_recordings_and_ablations_inside_others_leave_them_active(form):
    model = nested(MixerAttention(form))
    with torch.no_grad(), ablate_heads(model, {0: [0]}):
        expected = model(X)
        inner = run(model)
        assert torch.equal(model(X), expected)
    assert len(inner) == 4
    with torch.no_grad(), record_attention(model) as outer:
        run(model)
        with ablate_heads(model, {0: [0]}):
            for _ in range(4):
                model(X)
        model(X)
    assert len(outer) == 9
    assert _get_current_function_mode() is None
    assert F.scaled_dot_product_attention is SDPA


def test_a_mode_between_two_hooks_is_left_as_it_was():
    class Counter(TorchFunctionMode):
        calls = 0

        def __torch_function__(self, func, types, args=(), kwargs=None):
            self.calls += 1
            return func(*args, **(kwargs or {}))

    model, mode = nested(Mixer("softmax")), Counter()
    with torch.no_grad(), record_attention(model) as record:
        model[0][0].register_forward_pre_hook(lambda *_: mode.__enter__() and None)
        model[0][0].register_forward_hook(lambda *_: mode.__exit__(None, None, None))
        for _ in range(5):
            model(X)
    assert (len(record), mode.calls > 0) == (5, True)
    assert _get_current_function_mode() is None


@pytest.mark.parametrize("own", [True, False])
def test_ablations_of_a_model_of_sightline_are_not_intercepted(monkeypatch, own):
    """Unless code of a module inside is replaced."""
    encoder, x = Encoder(8, 2, 16, 2).eval(), torch.randn(B, Q, 8)
    functions, intercept = [], TorchAttentionMode.__torch_function__
    monkeypatch.setattr(
        TorchAttentionMode,
        "__torch_function__",
        lambda mode, function, *args: functions.append(function) or intercept(mode, function, *args),
    )
    if not own:
        mlp = encoder.layers[0].mlp
        monkeypatch.setattr(mlp, "forward", mlp.forward)
    with torch.no_grad():
        expected = encoder(x)
        with ablate_heads(encoder, {0: [1]}):
            ablated = [encoder(x) for _ in range(4)]
        assert (set(functions) <= {SDPA}) is own
        with ablate_heads(nn.Sequential(encoder, Mixer("none")), {0: [1]}):
            assert torch.equal(encoder(x), ablated[0])
        assert all(torch.equal(out, ablated[0]) for out in ablated)
        assert not torch.allclose(expected, ablated[0])
        torch.testing.assert_close(encoder(x), expected)
    assert not any(module._forward_hooks for module in encoder.modules())


def test_the_grid_of_patches_is_recorded_in_a_model_of_sightline():
    model = ImageClassifier(ImageClassifierConfig(image_size=16, channels=1, num_classes=2, patch_size=4)).eval()
    with record_attention(model) as record:
        model(torch.zeros(1, 1, 16, 16))
    assert record.patch_grid == (4, 4)


class NormalizerAttention(nn.Module):
    """Calls a normalizer of Sightline outside of `attend`."""

    def __init__(self):
        super().__init__()
        self.normalizer = Softmax()

    def forward(self, x):
        return self.normalizer(x @ x.mT) @ x


def test_a_normalizer_of_sightline_in_another_module_is_recorded():
    model = nn.Sequential(NormalizerAttention(), NormalizerAttention())
    with record_attention(model) as record:
        for _ in range(3):
            model(X)
    assert len(record) == 6


def test_a_copy_of_the_model_runs_during_and_after_a_recording():
    model = nested(Mixer("sdpa"))
    with torch.no_grad(), record_attention(model) as record:
        model(X)
        copied = copy.deepcopy(model)
        copied(X)
        model(X)
    copied(X)
    assert call_indices(record) == [0, 1]


def test_torch_functional_is_restored_after_an_error():
    with pytest.raises(KeyError, match="unknown"):
        run(nested(Mixer("sdpa", "sdpa", "sdpa", "unknown")))
    assert _get_current_function_mode() is None
    assert F.scaled_dot_product_attention is SDPA


def test_another_replacement_during_recordings_is_left_in_place(monkeypatch):
    monkeypatch.setattr(F, "scaled_dot_product_attention", SDPA)  # restored after the test
    model, calls = nested(Mixer("sdpa")), []
    with torch.no_grad(), record_attention(model) as record:
        previous = F.scaled_dot_product_attention

        def replacement(*args, **kwargs):
            calls.append(args)
            return previous(*args, **kwargs)

        F.scaled_dot_product_attention = replacement
        model(X)
        assert len(run(model)) == 4
    assert F.scaled_dot_product_attention is replacement
    assert len(run(model)) == 4
    assert torch.equal(model(X), SDPA(X, X, X))
    assert (len(record), len(calls)) == (5, 10)

"""Attention weights from elsewhere: tuples of Hugging Face, arrays, files."""

from collections import UserDict

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, MarianConfig, MarianMTModel

import sightline
from samples import record_of, weights
from sightline.attention import as_record, record_attention, show_attention
from sightline.errors import SightlineError
from sightline.view.maps import merge_calls
from sizes import B, H, K, Q


def gpt2():
    config = GPT2Config(n_embd=12, n_layer=2, n_head=H, vocab_size=17, attn_implementation="eager")
    return GPT2LMHeadModel(config).eval()


GENERATE = {"output_attentions": True, "return_dict_in_generate": True, "pad_token_id": 0, "max_new_tokens": 4}


def test_outputs_and_tuples_of_a_model():
    model, ids = gpt2(), torch.tensor([[1, 2, 3, 4, 5]])
    with torch.no_grad(), record_attention(model) as record:
        output = model(ids, output_attentions=True)
    for given in (output, output.attentions, list(output.attentions), {"attentions": output.attentions}):
        found = as_record(given)
        assert [(m.kind, m.name) for m in found] == [("decoder", "layer.0"), ("decoder", "layer.1")]
        for ours, theirs in zip(record, found, strict=True):
            torch.testing.assert_close(ours.weights, theirs.weights)
    assert show_attention(output.attentions, list("abcde")).html == record_of_named(record).view(list("abcde")).html


def record_of_named(record):
    found = record_of(*(m.weights for m in record), kind="decoder")
    found.model = "Attention"
    return sightline.Record(
        "Attention", [type(m)(name=f"layer.{i}", kind=m.kind, weights=m.weights) for i, m in enumerate(found)]
    )


def test_steps_of_generate_are_merged():
    model, ids = gpt2(), torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        output = model.generate(ids, do_sample=False, **GENERATE)
        full = model(output.sequences[:, :-1], output_attentions=True).attentions
    for given in (output, output.attentions):
        maps = merge_calls(as_record(given)._view_maps())
        assert [m.name for m in maps] == ["layer.0", "layer.1"]
        for m, exact in zip(maps, full, strict=True):
            np.testing.assert_allclose(m.weights, exact, atol=1e-5)
    with torch.no_grad():
        beams = model.generate(ids, num_beams=2, **GENERATE)
    maps = merge_calls(as_record(beams)._view_maps())
    assert len(maps) == 2 * 4  # rows of the cache were reordered


def test_encoder_decoder_outputs_have_all_kinds():
    config = MarianConfig(
        d_model=12, encoder_layers=1, decoder_layers=2, encoder_attention_heads=H, decoder_attention_heads=H,
        encoder_ffn_dim=8, decoder_ffn_dim=8, vocab_size=17, decoder_vocab_size=17, attn_implementation="eager",
        pad_token_id=0, eos_token_id=1, decoder_start_token_id=2, max_position_embeddings=32, forced_eos_token_id=None,
    )  # fmt: skip
    model, ids = MarianMTModel(config).eval(), torch.tensor([[5, 6, 7, 8, 9]])
    with torch.no_grad():
        one = as_record(model(ids, decoder_input_ids=ids[:, :3], output_attentions=True))
        generated = as_record(model.generate(ids, do_sample=False, num_beams=1, min_new_tokens=4, **GENERATE))
    names = ["encoder.0", "decoder.0", "decoder.1", "cross.0", "cross.1"]
    assert [(m.name, m.kind) for m in one] == [(name, name.split(".")[0]) for name in names]
    maps = merge_calls(generated._view_maps())
    assert [(m.name, m.shape[2:]) for m in maps] == list(
        zip(names, [(5, 5), (4, 4), (4, 4), (4, 5), (4, 5)], strict=True)
    )


@pytest.mark.parametrize(
    ("shape", "count", "kind"),
    [
        ((Q, K), 1, "cross"),
        ((Q, Q), 1, "encoder"),
        ((H, Q, K), 1, "cross"),
        ((B, H, Q, Q), 1, "encoder"),
        ((4, B, H, Q, Q), 4, "encoder"),
    ],
)
def test_arrays_of_any_shape(shape, count, kind):
    array = np.random.default_rng(0).random(shape)
    for given in (array, torch.from_numpy(array), array.tolist()):
        record = as_record(given)
        assert len(record) == count
        assert {m.kind for m in record} == {kind}
        torch.testing.assert_close(
            record[-1].weights.flatten()[-Q:], torch.from_numpy(array).flatten()[-Q:].to(record[-1].weights)
        )
    assert {m.kind for m in as_record(array, kind="decoder")} == {"decoder"}
    assert as_record({"block.3": array[..., -Q:, :] if array.ndim < 5 else array[0]})[0].name == "block.3"


def test_records_and_files_of_records(tmp_path):
    record = record_of(weights(H, Q, Q))
    record.save(tmp_path / "record.safetensors")
    html = record.view(list("abcde")).html
    for given in (record, tmp_path / "record.safetensors", str(tmp_path / "record.safetensors")):
        assert sightline.show_attention(given, list("abcde")).html == html
    assert show_attention(record[0]).html


class Output(UserDict):
    """The output of a model."""

    def to_tuple(self):
        return tuple(self.values())


class SwinOutput(Output):
    """Weights of windows."""


class LongformerOutput(Output):
    """Weights of sliding windows."""


class LEDOutput(Output):
    """Weights of sliding windows in the encoder alone."""


WINDOWS = {"attentions": (torch.ones(8, 1, 4, 4) / 4,), "reshaped_hidden_states": (torch.zeros(2, 3, 4, 4),)}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((None, None), "attentions must contain weights, got None; call the model with output_attentions=True"),
        ((), "attentions must contain weights, got none; call the model"),
        (Output(logits=1, attentions=()), "attentions must contain weights, got Output with logits, attentions; call"),
        (Output(WINDOWS), "attentions must be between tokens, got the windows of Output; use record_attention"),
        (Output(attentions=(torch.ones(1, 1, 3, 9),), global_attentions=()), "attentions must be between tokens"),
        (
            SwinOutput(last_hidden_state=torch.zeros(2, 16, 8), attentions=WINDOWS["attentions"]),
            "windows of SwinOutput",
        ),
        (LongformerOutput(attentions=(torch.ones(1, 1, 9, 3),)), "must be between tokens, got the windows of Longform"),
        (LEDOutput(encoder_attentions=(torch.ones(1, 1, 9, 3),)), "must be between tokens, got the windows of LED"),
        ((torch.ones(8, 1, 4, 4), torch.ones(2, 1, 4, 4)), r"same batch size in all layers, got \[8, 2\]"),
        (np.ones(3), r"attentions must have shape \(Q, K\), \(H, Q, K\) or \(B, H, Q, K\), got \(3,\)"),
        (object(), "attentions must be weights, a record or its path, got object"),
        ("missing.safetensors", "missing.safetensors must be a complete Sightline record"),
        (([torch.ones(1, 1, 2, 2)], [torch.ones(1, 1, 1, 3)] * 2), r"equally many layers at each step, got \[1, 2\]"),
    ],
)
def test_what_holds_no_weights_is_refused(given, message):
    with pytest.raises(SightlineError, match=message):
        show_attention(given)


def test_more_rows_and_fewer_keys_than_tokens_are_shown():
    """As several choices of an example, and keys that a convolution reduces."""
    output = Output(logits=torch.zeros(2, 3), attentions=(torch.ones(6, 1, 4, 2) / 2,))
    assert as_record(output)[0].weights.shape == (6, 1, 4, 2)


def test_cross_attention_of_models_with_local_encoders_is_shown():
    output = LEDOutput(cross_attentions=(torch.full((1, 2, 5, 3), 1 / 3),))
    assert show_attention(output).html

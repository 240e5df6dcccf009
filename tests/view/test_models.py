"""Recorded models in the viewer: Sightline, torch and Hugging Face."""

import numpy as np
import pytest
import torch
from torch import nn

from browser import printed_weight
from samples import AttentionMap
from sightline.attention import MultiHeadAttention, Record, record_attention
from sightline.view.maps import merge_calls


def assert_first_row(viewer, exact):
    """The first row of the matrix view has the recorded weights."""
    viewer.press("ArrowRight")
    for k in range(min(4, exact.shape[-1])):
        assert abs(printed_weight(viewer.weight) - float(exact[0, k])) <= float(exact[0].max()) / 255
        viewer.step("ArrowRight")


def test_multi_head_attention(viewer, tmp_path):
    model = MultiHeadAttention(12, num_heads=3).eval()
    with record_attention(model) as record:
        model(torch.randn(2, 5, 12))
    path = record.save_html(tmp_path / "page.html", list("abcde"), batch=1)
    viewer.open(path, "view=matrix&heads=2")
    assert_first_row(viewer, record[0].weights[1, 2])


def test_torch_transformer(viewer, tmp_path):
    model = nn.Transformer(
        16, nhead=2, num_encoder_layers=2, num_decoder_layers=2, dim_feedforward=16, batch_first=True
    ).eval()
    mask = nn.Transformer.generate_square_subsequent_mask(3)
    with record_attention(model) as record:
        model(torch.randn(1, 5, 16), torch.randn(1, 3, 16), tgt_mask=mask, tgt_is_causal=True)
    path = record.save_html(tmp_path / "page.html", source=list("abcde"), target=list("xyz"))
    viewer.open(path, "view=matrix&layer=0")
    for kind in ("Decoder", "Cross", "Encoder"):
        viewer.choose("Attention", kind)
        exact = record[int(viewer.state["layer"])].weights[0].mean(0)
        viewer.press("Escape")
        assert_first_row(viewer, exact)


def test_hugging_face_bert(viewer, tmp_path):
    from transformers import BertConfig, BertModel

    config = BertConfig(vocab_size=50, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=24)
    model = BertModel(config).eval()
    with record_attention(model) as record, torch.no_grad():
        model(torch.randint(0, 50, (1, 6)))
    path = record.save_html(tmp_path / "page.html", ["[CLS]", "a", "##b", "c", "d", "[SEP]"])
    viewer.open(path, "view=matrix&layer=1&heads=1")
    assert viewer.frame.locator("h1").inner_text() == "BertModel"
    assert_first_row(viewer, record[1].weights[0, 1])


def test_hugging_face_vit(viewer, tmp_path, photo):
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(
        hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=24, image_size=32, patch_size=8
    )
    model = ViTModel(config).eval()
    with record_attention(model) as record, torch.no_grad():
        model(torch.randn(1, 3, 32, 32))
    path = record.save_html(tmp_path / "page.html", images=photo)
    viewer.open(path, "layer=0")
    assert viewer.view == "image"
    viewer.tab("Matrix")
    assert_first_row(viewer, record[0].weights[0].mean(0))


def test_cached_decoding_is_one_map(viewer, tmp_path):
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=40, n_embd=24, n_layer=2, n_head=3, n_positions=20)).eval()
    with record_attention(model) as record, torch.no_grad():
        ids = model.generate(
            torch.tensor([[1, 2, 3]]), max_new_tokens=4, min_new_tokens=4, do_sample=False, pad_token_id=0
        )
    words = [f"w{i}" for i in range(ids.shape[1] - 1)]  # the last token is never a query
    path = record.save_html(tmp_path / "page.html", words)
    viewer.open(path, "view=matrix&heads=0")
    viewer.press("ArrowRight", *["ArrowDown"] * 5)
    last = record[record.names()[0]].weights[0, 0, -1]
    assert viewer.status.startswith("w5 → w0: ")
    assert abs(float(viewer.weight) - float(last[0])) < 0.004


def test_steps_of_a_cached_beam_search_are_not_merged():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(1)
    config = GPT2Config(vocab_size=40, n_embd=24, n_layer=2, n_head=3, n_positions=20, initializer_range=0.5)
    model = GPT2LMHeadModel(config).eval()
    options = {"max_new_tokens": 6, "min_new_tokens": 6, "num_beams": 4, "do_sample": False, "pad_token_id": 0}
    with record_attention(model) as record, torch.no_grad():
        model.generate(torch.tensor([[1, 2, 3]]), **options)
    assert len({m.cache_reorders for m in record._view_maps()}) > 1
    assert "call 1 of 6" in merge_calls(record._view_maps())[0].name


def test_reordering_a_cache_prevents_merging():
    from sightline.layers import Transformer

    model, source = Transformer(12, num_heads=3, ffn_dim=12, depth=1).eval(), torch.randn(2, 5, 12)
    for order, maps_per_layer in (([0, 1], 1), ([1, 0], 3)):
        cache = model.decoder.new_cache()
        with record_attention(model.decoder) as record, torch.no_grad():
            for _ in range(3):
                model.decoder(torch.randn(2, 1, 12), source, cache=cache)
                for layer_cache in cache:
                    layer_cache.reorder(torch.tensor(order))
        assert len(merge_calls(record._view_maps())) == 2 * maps_per_layer


def test_hugging_face_albert(viewer, tmp_path):
    from transformers import AlbertConfig, AlbertModel

    config = AlbertConfig(
        vocab_size=50,
        embedding_size=8,
        hidden_size=24,
        num_hidden_layers=4,
        num_attention_heads=3,
        intermediate_size=24,
    )
    model = AlbertModel(config).eval()
    with record_attention(model) as record, torch.no_grad():
        model(torch.randint(0, 50, (1, 5)))
    assert {m.call_index for m in record._view_maps()} == {0}
    path = record.save_html(tmp_path / "page.html", list("abcde"))
    half = [0.5 * m.weights[0].mean(0).numpy() + 0.5 * np.eye(5) for m in record]
    exact = half[3] @ half[2] @ half[1] @ half[0]
    viewer.open(path, "view=grid")
    edge = next(x for text, x, _ in viewer.texts() if text == "Layer")
    assert [text for text, x, _ in viewer.texts() if x == edge] == ["0", "1", "2", "3", "Layer"]
    viewer.open(path, "view=matrix&combine=rollout&layer=3")
    viewer.press("ArrowRight")
    assert viewer.status.endswith("layer 3, rollout")
    assert abs(float(viewer.weight) - exact[0, 0]) < 0.004


class CachedAttention(nn.Module):
    """Scaled dot-product attention over given past tokens."""

    def forward(self, token, past):
        heads = [x.unflatten(-1, (2, -1)).transpose(1, 2) for x in (token, past, past)]
        return nn.functional.scaled_dot_product_attention(*heads)


def test_decoding_token_by_token_is_one_causal_map():
    model, tokens = CachedAttention(), torch.randn(1, 4, 8)
    with record_attention(model) as record:
        for i in range(4):
            model(tokens[:, i : i + 1], tokens[:, : i + 1])
    assert {m.kind for m in record} == {"decoder"}
    (merged,) = merge_calls(record._view_maps())
    assert merged.shape == (1, 2, 4, 4)
    assert not np.triu(merged.weights, 1).any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_half_and_double_precision(viewer, encoder, tmp_path, dtype):
    record = Record("Model", [AttentionMap(name=m.name, kind=m.kind, weights=m.weights.to(dtype)) for m in encoder])
    precision = torch.finfo(dtype)
    rtol, atol = max(1e-7, precision.eps / 2), precision.smallest_normal * precision.eps / 2  # rounding to this type
    for m, exact in zip(record._view_maps(), encoder, strict=True):
        np.testing.assert_allclose(m.weights, exact.weights.numpy(), rtol=rtol, atol=atol)
    path = record.save_html(tmp_path / "page.html")
    viewer.open(path, "view=matrix&layer=1&heads=2")
    assert_first_row(viewer, record[1].weights[0, 2].double())

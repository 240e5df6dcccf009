"""Any model, in three lines: ours, torch's and Hugging Face's."""

import numpy as np
import pytest
import torch
from torch import nn

from sightline.attention import MultiHeadAttention, record_attention
from sightline.view.maps import joined
from visitor import visiting


def reads(visitor, exact):
    """Whether the first row of the matrix view is the recorded one."""
    visitor.press("ArrowRight")
    wrong = []
    for k in range(min(4, exact.shape[-1])):
        shown = visitor.status.split(": ")[1].split()[0]
        wrong.append(abs((0.0 if shown[0] == "<" else float(shown)) - float(exact[0, k])))
        visitor.step("ArrowRight")
    return max(wrong) <= float(exact[0].max()) / 255


def test_ours(browser, tmp_path):
    model = MultiHeadAttention(12, num_heads=3).eval()
    with record_attention(model) as record:
        model(torch.randn(2, 5, 12))
    path = record.save_html(tmp_path / "page.html", list("abcde"), batch=1)
    with visiting(browser) as visitor:
        visitor.open(path, "view=matrix&heads=2")
        assert reads(visitor, record[0].weights[1, 2])


def test_torch(browser, tmp_path):
    model = nn.Transformer(
        16, nhead=2, num_encoder_layers=2, num_decoder_layers=2, dim_feedforward=16, batch_first=True
    ).eval()
    mask = nn.Transformer.generate_square_subsequent_mask(3)
    with record_attention(model) as record:
        model(torch.randn(1, 5, 16), torch.randn(1, 3, 16), tgt_mask=mask, tgt_is_causal=True)
    path = record.save_html(tmp_path / "page.html", source=list("abcde"), target=list("xyz"))
    with visiting(browser) as visitor:
        visitor.open(path, "view=matrix")
        for kind in ("Decoder", "Cross", "Encoder"):
            visitor.choose("Attention", kind)
            exact = record.of(kind.lower())[0].weights[0].mean(0)
            visitor.press("Escape")
            assert reads(visitor, exact)


def test_hugging_face_bert(browser, tmp_path):
    from transformers import BertConfig, BertModel

    config = BertConfig(vocab_size=50, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=24)
    model = BertModel(config).eval()
    with record_attention(model) as record, torch.no_grad():
        model(torch.randint(0, 50, (1, 6)))
    path = record.save_html(tmp_path / "page.html", ["[CLS]", "a", "##b", "c", "d", "[SEP]"])
    with visiting(browser) as visitor:
        visitor.open(path, "view=matrix&layer=1&heads=1")
        assert visitor.frame.locator("h1").inner_text() == "BertModel"
        assert reads(visitor, record[1].weights[0, 1])


def test_hugging_face_vit(browser, tmp_path, photo):
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(
        hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=24, image_size=32, patch_size=8
    )
    model = ViTModel(config).eval()
    with record_attention(model) as record, torch.no_grad():
        model(torch.randn(1, 3, 32, 32))
    path = record.save_html(tmp_path / "page.html", images=photo)
    with visiting(browser) as visitor:
        visitor.open(path)
        assert visitor.frame.locator("html").get_attribute("data-view") == "image"
        visitor.tab("Matrix")
        assert reads(visitor, record[0].weights[0].mean(0))


def test_decoding_with_a_cache_reads_as_one_map(browser, tmp_path):
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=40, n_embd=24, n_layer=2, n_head=3, n_positions=20)).eval()
    with record_attention(model) as record, torch.no_grad():
        ids = model.generate(
            torch.tensor([[1, 2, 3]]), max_new_tokens=4, min_new_tokens=4, do_sample=False, pad_token_id=0
        )
    words = [f"w{i}" for i in range(ids.shape[1] - 1)]  # the last word looks at nothing yet
    path = record.save_html(tmp_path / "page.html", words)
    with visiting(browser) as visitor:
        visitor.open(path, "view=matrix&heads=0")
        visitor.press("ArrowRight", *["ArrowDown"] * 5)
        last = [seen for seen in record if seen.name == record.names()[0]][-1].weights[0, 0, -1]
        assert visitor.status.startswith("w5 → w0: ")
        assert abs(float(visitor.status.split(": ")[1].split()[0]) - float(last[0])) < 0.004


def test_a_cached_beam_search_is_not_put_together():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(1)
    config = GPT2Config(vocab_size=40, n_embd=24, n_layer=2, n_head=3, n_positions=20, initializer_range=0.5)
    model = GPT2LMHeadModel(config).eval()
    asked = {"max_new_tokens": 6, "min_new_tokens": 6, "num_beams": 4, "do_sample": False, "pad_token_id": 0}
    with record_attention(model) as record, torch.no_grad():
        model.generate(torch.tensor([[1, 2, 3]]), **asked)
    assert len({seen.cache_reorders for seen in record}) > 1
    assert "call 1 of 6" in joined(record._maps())[0].name


def test_our_own_cache_tells_when_beams_change_places():
    from sightline.layers import Transformer

    model, source = Transformer(12, num_heads=3, ffn_dim=12, depth=1).eval(), torch.randn(2, 5, 12)
    for rows, parts in (([0, 1], 1), ([1, 0], 3)):
        cache = model.decoder.new_cache()
        with record_attention(model.decoder) as record, torch.no_grad():
            for _ in range(3):
                model.decoder(torch.randn(2, 1, 12), source, cache=cache)
                for one in cache:
                    one.reorder(torch.tensor(rows))
        assert len(joined(record._maps())) == 2 * parts


def test_hugging_face_albert(browser, tmp_path):
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
    assert {seen.call_index for seen in record} == {0}
    path = record.save_html(tmp_path / "page.html", list("abcde"))
    half = [0.5 * one.weights[0].mean(0).numpy() + 0.5 * np.eye(5) for one in record]
    exact = half[3] @ half[2] @ half[1] @ half[0]
    with visiting(browser) as visitor:
        visitor.open(path, "view=grid")
        assert [text for text, _, _ in visitor.texts() if text.startswith("layer ")] == [f"layer {i}" for i in range(4)]
        visitor.open(path, "view=matrix&combine=rollout&layer=3")
        visitor.press("ArrowRight")
        assert visitor.status.endswith("layer 3, rollout")
        assert abs(float(visitor.status.split(": ")[1].split()[0]) - exact[0, 0]) < 0.004


class Stepper(nn.Module):
    """Plain scaled dot-product attention that is given its past."""

    def forward(self, token, past):
        look = [x.unflatten(-1, (2, -1)).transpose(1, 2) for x in (token, past, past)]
        return nn.functional.scaled_dot_product_attention(*look)


def test_decoding_from_the_first_token_reads_as_one_causal_map():
    model, tokens = Stepper(), torch.randn(1, 4, 8)
    with record_attention(model) as record:
        for i in range(4):
            model(tokens[:, i : i + 1], tokens[:, : i + 1])
    assert {seen.kind for seen in record} == {"decoder"}
    (one,) = joined(record._maps())
    assert one.shape == (1, 2, 4, 4)
    assert not np.triu(one.weights, 1).any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_any_precision(browser, encoder, tmp_path, dtype):
    from sightline.attention import Record, AttentionMap

    seen = [AttentionMap(name=s.name, kind=s.kind, weights=s.weights.to(dtype)) for s in encoder]
    record = Record("m", seen)
    for one, exact in zip(record._maps(), encoder, strict=True):
        np.testing.assert_allclose(one.weights, exact.weights.numpy(), rtol=0.01)
    path = record.save_html(tmp_path / "page.html")
    with visiting(browser) as visitor:
        visitor.open(path, "view=matrix&layer=1&heads=2")
        assert reads(visitor, seen[1].weights[0, 2].double())

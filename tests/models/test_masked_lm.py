import pytest
import torch
from torch.testing import assert_close

from sightline.errors import SightlineError
from sightline.models.masked_lm import MaskedLM, MaskedLMConfig
from sightline.models.text_classifier import TextClassifier, TextClassifierConfig

B, T, N, V = 3, 11, 2, 29
DIMENSIONS = {"embed_dim": 12, "num_heads": 3, "ffn_dim": 20, "depth": 2, "vocab_size": V, "max_positions": 13}
BERT = {"norm": "post", "num_segments": 2, "embedding_norm": True, "scale_embeddings": False, "norm_eps": 1e-12}


def make_inputs():
    tokens = torch.randint(V, (B, T))
    attention_mask = torch.arange(T) < torch.tensor([[T], [5], [1]])
    return tokens, attention_mask


def make_model(**options):
    return MaskedLM(MaskedLMConfig(**DIMENSIONS | options))


def copy_bert(bert, model):
    """The weights of a `BertForMaskedLM` in a `MaskedLM`."""
    theirs, ours = bert.state_dict(), model.state_dict()
    names = {
        "encoder.embedding.weight": "bert.embeddings.word_embeddings.weight",
        "encoder.positions.table": "bert.embeddings.position_embeddings.weight",
        "encoder.segments": "bert.embeddings.token_type_embeddings.weight",
        "encoder.norm": "bert.embeddings.LayerNorm",
        "head.dense": "cls.predictions.transform.dense",
        "head.norm": "cls.predictions.transform.LayerNorm",
        "head.bias": "cls.predictions.bias",
    }
    for i in range(model.config.dimensions["depth"]):
        layer = f"bert.encoder.layer.{i}"
        for kind in ("weight", "bias"):
            qkv = [theirs[f"{layer}.attention.self.{name}.{kind}"] for name in ("query", "key", "value")]
            ours[f"encoder.stack.layers.{i}.attention.qkv.{kind}"].copy_(torch.cat(qkv))
        names |= {
            f"encoder.stack.layers.{i}.attention.out_proj": f"{layer}.attention.output.dense",
            f"encoder.stack.layers.{i}.norm1": f"{layer}.attention.output.LayerNorm",
            f"encoder.stack.layers.{i}.mlp.fc1": f"{layer}.intermediate.dense",
            f"encoder.stack.layers.{i}.mlp.fc2": f"{layer}.output.dense",
            f"encoder.stack.layers.{i}.norm2": f"{layer}.output.LayerNorm",
        }
    for our_name, their_name in names.items():
        for suffix in ("", ".weight", ".bias"):
            if our_name + suffix in ours:
                ours[our_name + suffix].copy_(theirs[their_name + suffix])


def test_model_with_the_weights_of_bert_gives_its_logits():
    from transformers import BertConfig, BertForMaskedLM

    sizes = {"hidden_size": 12, "num_attention_heads": 3, "intermediate_size": 20, "num_hidden_layers": 2}
    bert = BertForMaskedLM(BertConfig(**sizes, vocab_size=V, max_position_embeddings=13, initializer_range=0.5)).eval()
    model = make_model(**BERT).eval()
    with torch.no_grad():
        for parameter in bert.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))  # biases are 0, norms are 1
        copy_bert(bert, model)
        (tokens, attention_mask), segment_ids = make_inputs(), torch.randint(2, (B, T))
        expected = bert(tokens, attention_mask.long(), segment_ids).logits
        logits = model(tokens, attention_mask, segment_ids=segment_ids)
    assert_close(logits[attention_mask], expected[attention_mask], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "options",
    [{}, BERT, {"positions": "sinusoidal", "score": "cosine"}, {"tie_embeddings": False, "head_transform": False}],
    ids=["default", "bert", "cosine", "plain head"],
)
def test_loss_at_positions_equals_the_loss_of_all_logits(options):
    model, (tokens, attention_mask) = make_model(dropout=0.0, **options), make_inputs()
    positions, labels = torch.tensor([[4, 10], [1, 3], [0, 0]]), torch.randint(V, (B, N))
    labels[2, 1] = -100
    logits = model(tokens, attention_mask).gather(1, positions.unsqueeze(-1).expand(-1, -1, V))
    assert_close(model(tokens, attention_mask, positions=positions), logits)
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
    loss = model(tokens, attention_mask, positions=positions, labels=labels)  # packed, as in training
    assert_close(loss, expected)
    gradients = [torch.autograd.grad(value, model.encoder.embedding.weight)[0] for value in (loss, expected)]
    assert_close(*gradients, atol=1e-5, rtol=1e-4)


def test_padding_does_not_change_the_output():
    model, (tokens, attention_mask) = make_model(num_segments=2).eval(), make_inputs()
    changed = torch.where(attention_mask, tokens, (tokens + 1) % V)
    assert_close(model(tokens, attention_mask)[attention_mask], model(changed, attention_mask)[attention_mask])


def test_every_token_attends_in_both_directions():
    model, (tokens, _) = make_model().eval(), make_inputs()
    attention_mask, changed = torch.ones(B, T, dtype=torch.bool), tokens.clone()
    changed[:, 6] = (changed[:, 6] + 1) % V
    difference = (model(tokens, attention_mask) - model(changed, attention_mask)).abs().amax(-1)
    assert (difference > 1e-6).all()


def test_segments_change_the_output_and_need_a_table():
    model, (tokens, attention_mask) = make_model(num_segments=2).eval(), make_inputs()
    with torch.no_grad():
        model.encoder.segments.normal_()
    segment_ids = torch.zeros_like(tokens)
    assert_close(model(tokens, attention_mask), model(tokens, attention_mask, segment_ids=segment_ids))
    segment_ids[:, 3:] = 1
    assert not torch.allclose(model(tokens, attention_mask), model(tokens, attention_mask, segment_ids=segment_ids))
    with pytest.raises(SightlineError, match="segment_ids must be None for an encoder without segments"):
        make_model()(tokens, attention_mask, segment_ids=segment_ids)


def test_config_refuses_what_does_not_fit():
    with pytest.raises(SightlineError, match="num_heads must divide embed_dim=12, got 5"):
        MaskedLMConfig(embed_dim=12, num_heads=5)
    with pytest.raises(SightlineError, match="embed_dim must be even for sinusoidal positions, got 9"):
        MaskedLMConfig(embed_dim=9, num_heads=3, positions="sinusoidal")
    with pytest.raises(SightlineError, match="vocab_size must be set, got null"):
        MaskedLM(MaskedLMConfig())


@pytest.mark.parametrize("pool", ["mean", "first"])
def test_classifier_gives_one_row_of_logits_per_text(pool):
    config = TextClassifierConfig(**DIMENSIONS, num_classes=5, pool=pool, pooler=pool == "first", dropout=0.0)
    model, (tokens, attention_mask) = TextClassifier(config), make_inputs()
    logits = model(tokens, attention_mask)  # packed, as in training
    assert logits.shape == (B, 5)
    assert_close(model.eval()(tokens, attention_mask), logits)
    changed = torch.where(attention_mask, tokens, (tokens + 1) % V)
    assert_close(model(changed, attention_mask), logits)
    model.calibration_scale.fill_(2.0)
    assert_close(model(tokens, attention_mask), 2 * logits)
    with pytest.raises(SightlineError, match="num_classes must be set, got null"):
        TextClassifier(TextClassifierConfig(**DIMENSIONS))


def test_encoder_weights_have_the_same_names_in_both_models():
    shapes = [
        {name: tensor.shape for name, tensor in model.state_dict().items() if name.startswith("encoder.")}
        for model in (make_model(), TextClassifier(TextClassifierConfig(**DIMENSIONS, num_classes=5)))
    ]
    assert shapes[0] == shapes[1]

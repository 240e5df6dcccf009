import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.testing import assert_close
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    CamembertConfig,
    CamembertForMaskedLM,
    RobertaConfig,
    RobertaForMaskedLM,
    RobertaForSequenceClassification,
    RobertaModel,
    ViTConfig,
    ViTForImageClassification,
    XLMRobertaConfig,
    XLMRobertaForMaskedLM,
    XLMRobertaForSequenceClassification,
)

from sightline import from_hugging_face, record_attention, register_cosine_attention
from sightline.errors import SightlineError
from torch_reference import perturb

SIZES = {"hidden_size": 12, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 19}
TEXT = {**SIZES, "vocab_size": 31, "max_position_embeddings": 23}
VIT = {**SIZES, "image_size": 14, "patch_size": 7, "num_channels": 3, "num_labels": 5}
T = 7


def saved(model, folder):
    perturb(model.eval())
    model.save_pretrained(folder)
    return folder


def text_inputs():
    lengths = torch.tensor([T, 4, 1])
    attention_mask = torch.arange(T) < lengths[:, None]
    ids = torch.randint(3, 31, (3, T)).masked_fill(~attention_mask, 1)  # RoBERTa derives its positions from padding
    return ids, attention_mask


@pytest.mark.parametrize("model_class", [BertModel, RobertaModel])
def test_text_encoder_gives_the_same_states_and_attention(model_class, tmp_path):
    config = {BertModel: BertConfig, RobertaModel: RobertaConfig}[model_class]
    theirs = model_class(config(**TEXT))
    ours = from_hugging_face(saved(theirs, tmp_path))
    ids, mask = text_inputs()
    with torch.no_grad():
        with record_attention(theirs) as expected_record:
            expected = theirs(ids, attention_mask=mask.long()).last_hidden_state
        with record_attention(ours) as record:
            states = ours(ids, mask).states
    assert not ours.training
    assert_close(states[mask], expected[mask], atol=1e-4, rtol=1e-4)
    assert len(record) == len(expected_record) == 3
    for got, wanted in zip(record, expected_record, strict=True):
        assert_close(got.weights[0], wanted.weights[0], atol=1e-4, rtol=1e-4)


def test_bert_takes_segment_ids(tmp_path):
    theirs = BertModel(BertConfig(**TEXT))
    ours = from_hugging_face(saved(theirs, tmp_path))
    ids, mask = text_inputs()
    segments = torch.randint(2, ids.shape)
    with torch.no_grad():
        expected = theirs(ids, attention_mask=mask.long(), token_type_ids=segments).last_hidden_state
        assert_close(ours(ids, mask, segment_ids=segments).states[mask], expected[mask], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("model_class", "config"),
    [
        (BertForMaskedLM, BertConfig(**TEXT)),
        (RobertaForMaskedLM, RobertaConfig(**TEXT)),
        (BertForSequenceClassification, BertConfig(**TEXT, num_labels=5)),
        (RobertaForSequenceClassification, RobertaConfig(**TEXT, num_labels=5)),
        (XLMRobertaForMaskedLM, XLMRobertaConfig(**TEXT)),
        (XLMRobertaForSequenceClassification, XLMRobertaConfig(**TEXT, num_labels=5)),
        (CamembertForMaskedLM, CamembertConfig(**TEXT)),
    ],
)
def test_text_heads_give_the_same_logits(model_class, config, tmp_path):
    theirs = model_class(config)
    ours = from_hugging_face(saved(theirs, tmp_path))
    ids, mask = text_inputs()
    with torch.no_grad():
        expected, got = theirs(ids, attention_mask=mask.long()).logits, ours(ids, mask.long())
    if expected.dim() == 3:
        expected, got = expected[mask], got[mask]
    assert_close(got, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("head", [BertModel, BertForMaskedLM])
def test_cosine_attention_is_read_with_its_temperatures(head, tmp_path):
    theirs = head._from_config(BertConfig(**TEXT), attn_implementation=register_cosine_attention())
    ours = from_hugging_face(saved(theirs, tmp_path))  # the temperatures are perturbed as all weights are
    ids, mask = text_inputs()
    with torch.no_grad():
        expected, got = theirs(ids, attention_mask=mask.long())[0], ours(ids, mask)
    assert_close((got.states if head is BertModel else got)[mask], expected[mask], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("options", [{"qkv_bias": True}, {"qkv_bias": False}, {"qkv_bias": True, "cosine": True}])
def test_vit_gives_the_same_logits_from_pixels(options, tmp_path):
    name = register_cosine_attention() if options.pop("cosine", False) else "sdpa"
    theirs = ViTForImageClassification._from_config(ViTConfig(**VIT, **options), attn_implementation=name)
    mean, std = [0.4, 0.5, 0.6], [0.2, 0.3, 0.25]
    processor = {"image_mean": mean, "image_std": std, "size": {"height": 14, "width": 14}}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(processor))
    ours = from_hugging_face(saved(theirs, tmp_path))
    images = torch.rand(2, 3, 14, 14)
    normalized = (images - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    with torch.no_grad():
        assert_close(ours(images), theirs(pixel_values=normalized).logits, atol=1e-4, rtol=1e-4)


def test_what_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(SightlineError, match=r"must be a folder with config\.json"):
        from_hugging_face(tmp_path / "nowhere")
    saved(BertModel(BertConfig(**TEXT)), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())

    def with_config(**changes):
        (tmp_path / "config.json").write_text(json.dumps(config | changes))
        return from_hugging_face(tmp_path)

    for changes, message in (
        ({"architectures": ["GPT2LMHeadModel"]}, "the architecture of .* must be .*, got 'GPT2LMHeadModel'$"),
        ({"architectures": 5}, "architectures in config.json must be a list of names, got 5"),
        ({"architectures": [{}]}, "architectures in config.json must be a list of names, got"),
        ({"architectures": {"0": "BertModel"}}, "architectures in config.json must be a list of names, got"),
        ({"model_type": "roberta", "pad_token_id": -3}, "pad_token_id must be an integer of at least 0, got -3"),
        ({"num_hidden_layers": 2}, r"must hold only weights of its architecture, got encoder\.layer\.2\.attention"),
        ({"hidden_act": "silu"}, "hidden_act of a text encoder must be"),
        ({"is_decoder": True}, "is_decoder of a text encoder must be false"),
        ({"hidden_size": 10**9}, "embed_dim must be"),
        ({"hidden_size": 14}, "must fit its config"),
        ({"num_hidden_layers": 10**6}, "depth must be"),
        ({"num_hidden_layers": 4}, r"must hold encoder\.layer\.3"),
        ({"vocab_size": None}, "vocab_size must be"),
    ):
        with pytest.raises(SightlineError, match=message):
            with_config(**changes)
    weights = load_file(tmp_path / "model.safetensors")
    save_file(weights | {"pooler.dense.bias": torch.zeros(3, dtype=torch.int64)}, tmp_path / "model.safetensors")
    assert with_config() is not None  # what is not used is not read
    heads = ("embeddings.position_ids", "cls.seq_relationship.weight", "cls.predictions.transform.dense.weight")
    save_file(weights | {name: torch.zeros(3) for name in heads}, tmp_path / "model.safetensors")
    assert with_config() is not None
    temperature = "encoder.layer.1.attention.self.cosine_score.log_temperature_offset"
    save_file(weights | {temperature: torch.zeros(2, 1, 1)}, tmp_path / "model.safetensors")
    with pytest.raises(SightlineError, match=r"must hold encoder\.layer\.0\.attention\.self\.cosine_score"):
        with_config()
    (tmp_path / "model.safetensors").write_bytes(b"{}")
    with pytest.raises(SightlineError, match="must be a safetensors file"):
        with_config()
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(SightlineError, match=r"must have its weights in model\.safetensors"):
        with_config()


def test_untied_output_embeddings_and_early_names_of_layer_norms(tmp_path):
    theirs = BertForMaskedLM(BertConfig(**TEXT, tie_word_embeddings=False))
    folder = saved(theirs, tmp_path)
    names = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    state = load_file(folder / "model.safetensors")
    for old, new in names.items():
        state = {name.replace(old, new): tensor for name, tensor in state.items()}
    assert any(name.endswith("gamma") for name in state)
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    ids, mask = text_inputs()
    with torch.no_grad():
        expected = theirs(ids, attention_mask=mask.long()).logits
        assert_close(from_hugging_face(folder)(ids, mask)[mask], expected[mask], atol=1e-4, rtol=1e-4)

import pytest
import torch
from torch.testing import assert_close
from transformers import BertConfig, BertForSequenceClassification, BertModel, GPT2Config, GPT2LMHeadModel

from sightline import record_attention, register_cosine_attention, use_cosine_attention
from sightline.attention import attention_weights
from sightline.errors import SightlineError
from sightline.models.hugging_face_attention import cosine_attention

HEADS, LAYERS, T = 2, 3, 7
SIZES = {"hidden_size": 10, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": 11}
LENGTHS = torch.tensor([7, 4, 5])
ATTENTION_MASK = (torch.arange(T) < LENGTHS[:, None]).long()
NAME = register_cosine_attention()


def bert(model_class=BertModel, **options):
    return model_class._from_config(BertConfig(vocab_size=29, **SIZES, **options), attn_implementation=NAME)


def temperatures(model):
    return {name: weight for name, weight in model.named_parameters() if "cosine_score" in name}


def test_every_layer_has_a_temperature_per_head():
    found = temperatures(bert())
    assert list(found) == [
        f"encoder.layer.{i}.attention.self.cosine_score.log_temperature_offset" for i in range(LAYERS)
    ]
    assert {weight.shape for weight in found.values()} == {(HEADS, 1, 1)}
    assert not temperatures(BertModel(BertConfig(vocab_size=29, **SIZES)))


def test_bert_computes_cosine_attention_and_ignores_padding():
    model, ids = bert().eval(), torch.randint(29, (len(LENGTHS), T))
    first = model.encoder.layer[0].attention.self
    with torch.no_grad(), record_attention(model) as record:
        out = model(ids, attention_mask=ATTENTION_MASK).last_hidden_state
        alone = model(ids[1:2, :4]).last_hidden_state
        x = model.embeddings(ids)
        q, k = (linear(x).unflatten(2, (HEADS, -1)).transpose(1, 2) for linear in (first.query, first.key))
    assert_close(out[1, :4], alone[0], atol=1e-5, rtol=1e-4)
    expected = attention_weights(q[:1], k[:1], score=first.cosine_score)[0]
    assert_close(record[0].weights[0], expected, atol=1e-5, rtol=1e-4)
    assert (record[0].weights[1, :, :, 4:] == 0).all()


def test_bert_trains_with_padding_and_saves_its_temperatures(tmp_path):
    torch.manual_seed(0)
    model = bert(BertForSequenceClassification, num_labels=2)
    optimizer = torch.optim.AdamW(model.parameters(), 0.02)
    ids = torch.randint(3, 29, (3 * 16, T))
    labels = (ids[:, 1] > 15).long()
    losses = []
    for _ in range(30):
        loss = model(ids, attention_mask=ATTENTION_MASK.repeat(16, 1), labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    assert all(weight.abs().max() > 1e-3 for weight in temperatures(model).values())
    model.eval().save_pretrained(tmp_path)
    options = {"attn_implementation": NAME, "local_files_only": True}
    loaded = BertForSequenceClassification.from_pretrained(tmp_path, **options)
    with torch.no_grad():
        expected = model(ids[:3], attention_mask=ATTENTION_MASK).logits
        assert_close(loaded(ids[:3], attention_mask=ATTENTION_MASK).logits, expected)


def test_checkpoint_without_temperatures_starts_at_the_initial_one(tmp_path):
    original = BertModel(BertConfig(vocab_size=29, **SIZES)).eval()
    original.save_pretrained(tmp_path)
    for _ in range(2):
        loaded = BertModel.from_pretrained(tmp_path, attn_implementation=NAME, local_files_only=True)
        assert len(temperatures(loaded)) == LAYERS
        assert all((weight == 0).all() for weight in temperatures(loaded).values())
    converted, ids = use_cosine_attention(original), torch.randint(29, (len(LENGTHS), T))
    assert len(temperatures(converted)) == LAYERS
    with torch.no_grad():
        outputs = [x(ids, attention_mask=ATTENTION_MASK).last_hidden_state for x in (converted, loaded)]
    assert_close(*outputs)


@pytest.mark.parametrize("beams", [1, 3])
def test_gpt2_generates_with_its_cache(beams):
    config = GPT2Config(vocab_size=31, n_positions=29, n_embd=12, n_layer=LAYERS, n_head=HEADS, eos_token_id=0)
    config.pad_token_id = 0
    model = GPT2LMHeadModel._from_config(config, attn_implementation=NAME).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(4)
    ids, padded = torch.tensor([[5, 9, 11]]), torch.tensor([[0, 0, 5, 9, 11], [3, 8, 2, 7, 1]])
    options = {"max_new_tokens": 8, "do_sample": False, "num_beams": beams, "eos_token_id": None, "pad_token_id": 0}
    cached = model.generate(ids, **options, attention_mask=torch.ones_like(ids))
    assert cached.shape[1] == 11
    assert cached.equal(model.generate(ids, **options, attention_mask=torch.ones_like(ids), use_cache=False))
    mask = torch.tensor([[0, 0, 1, 1, 1], [1] * 5])
    assert model.generate(padded, **options, attention_mask=mask)[0, 2:].equal(cached[0])
    if beams == 1:
        with torch.no_grad():
            assert model(cached[:, :-1]).logits[0, 2:].argmax(-1).equal(cached[0, 3:])


@pytest.mark.parametrize("option", ["softcap", "s_aux"])
def test_options_that_change_the_scores_are_refused(option):
    module, x = bert().encoder.layer[0].attention.self, torch.randn(1, HEADS, T, 5)
    with pytest.raises(SightlineError, match=f"{option} must be left out for cosine attention, got one"):
        cosine_attention(module, x, x, x, None, **{option: torch.ones(HEADS)})


def test_model_without_temperatures_is_refused():
    model = BertModel(BertConfig(vocab_size=29, **SIZES))
    model.set_attn_implementation(NAME)
    with pytest.raises(SightlineError, match="must have a cosine_score, got none; build the model with"):
        model(torch.tensor([[1, 2]]))
    with pytest.raises(SightlineError, match="must be a model of Hugging Face, got Linear"):
        use_cosine_attention(torch.nn.Linear(2, 3))

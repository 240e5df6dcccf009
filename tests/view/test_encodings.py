"""Tokens from ids, from encodings of Hugging Face and from those of the library `tokenizers`."""

import pytest
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BatchEncoding, PreTrainedTokenizerFast

from samples import record_of, weights
from sightline.errors import SightlineError
from sightline.view.encodings import read_encodings

VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "un", "##able"]


@pytest.fixture
def tokenizer():
    """A WordPiece tokenizer of nine tokens."""
    backend = Tokenizer(models.WordPiece({word: i for i, word in enumerate(VOCAB)}, unk_token="[UNK]"))
    backend.normalizer, backend.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    single, pair = "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1"
    backend.post_processor = processors.TemplateProcessing(single, pair, [("[CLS]", 2), ("[SEP]", 3)])
    names = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **{f"{k}_token": v for k, v in names.items()})


def read(value, indices=(0,), is_list=False, tokenizer=None):
    options, special = read_encodings({"tokens": value}, indices, is_list=is_list, tokenizer=tokenizer)
    return options["tokens"], options.get("token_type_ids"), special


def test_an_encoding_names_tokens_sentences_padding_and_special_tokens(tokenizer):
    encoding = tokenizer([("The cat", "unable"), ("cat", "dog")], padding=True, return_tensors="pt")
    first = ["[CLS]", "the", "cat", "[SEP]", "un", "##able", "[SEP]"]
    second = ["[CLS]", "cat", "[SEP]", "[UNK]", "[SEP]", None, None]
    assert read(encoding)[:2] == (first, [0, 0, 0, 0, 1, 1, 1])
    assert read(encoding, [1])[0] == second
    tokens, types, special = read(encoding, [1, 0], is_list=True)
    assert (tokens, len(types)) == ([second, first], 2)
    assert special == {"[CLS]", "[SEP]", "[PAD]"}  # [UNK] stands for a word
    assert read(encoding.encodings[0])[0] == first


def test_ids_become_tokens_with_a_tokenizer(tokenizer):
    encoding = tokenizer(["The cat"], return_tensors="pt")
    ids, names = encoding["input_ids"], ["[CLS]", "the", "cat", "[SEP]"]
    slow = BatchEncoding({"input_ids": ids, "attention_mask": torch.tensor([[1, 1, 1, 0]])})
    for value in (ids, ids[0], ids.tolist(), ids[0].numpy(), ids[0].tolist(), tokenizer("The cat"), dict(encoding)):
        assert read(value, tokenizer=tokenizer)[0] == names
    assert read(slow, tokenizer=tokenizer)[0] == [*names[:3], None]
    assert read(ids[0], tokenizer=tokenizer.backend_tokenizer)[0] == names
    assert read([2, 99], tokenizer=tokenizer.backend_tokenizer)[0] == ["[CLS]", "<99>"]
    assert read([ids[0], ["a", "b"]], [0, 1], is_list=True, tokenizer=tokenizer)[0] == [names, ["a", "b"]]
    assert read(["the", "cat"], tokenizer=tokenizer)[0] == ["the", "cat"]


def test_tokenizers_without_token_types_have_sentences_too(tokenizer):
    backend = tokenizer.backend_tokenizer
    backend.post_processor = processors.TemplateProcessing("$A [SEP]", "$A [SEP] $B [SEP]", [("[SEP]", 3)])
    encoding = PreTrainedTokenizerFast(tokenizer_object=backend)("the cat", "the")
    assert read(encoding)[:2] == (["the", "cat", "[SEP]", "the", "[SEP]"], [0, 0, 0, 1, 1])


@pytest.mark.parametrize(
    ("value", "options", "message"),
    [
        (
            {"input_ids": [2, 5, 3]},
            {},
            "tokens must be tokens or an encoding of a fast tokenizer, got ids; pass tokenizer=",
        ),
        ([2, 5, 3], {"tokenizer": object()}, "tokenizer must be one of Hugging Face.*, got object"),
        (torch.tensor([[2, 5, 3]]), {"tokenizer": 1, "batch": 1}, "tokens must have batch index 1, got 1 examples"),
        (list("abc"), {"token_type_ids": [0, 1]}, "token_type_ids must be 0 or 1 for each of the 3 positions, got 2"),
        (list("abc"), {"token_type_ids": [0, 1, 2]}, "token_type_ids must be 0 or 1 .*, got 3 values from 0 to 2"),
        (list("abc"), {"scores": {}}, "scores must contain at least one class, got none"),
        (list("abc"), {"scores": [1, 2]}, r"scores must be a dict or pairs of names and numbers, got \[1, 2\]"),
        (list("abc"), {"scores": {"cat": float("nan")}}, "scores must be finite"),
    ],
)
def test_what_cannot_be_read_is_refused(value, options, message):
    with pytest.raises(SightlineError, match=message):
        record_of(weights(2, 3, 3, batch=2)).view(value, **options)


def test_a_figure_has_joined_words(tokenizer):
    record = record_of(weights(2, 5, 5))
    encoding = tokenizer("the unable")
    figure = record.plot(0, 1, tokens=encoding, join_subwords=True)
    labels = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert labels == ["[CLS]", "the", "unable", "[SEP]"]
    exact = record[0].weights[0, 1, :, 2:4].sum(-1)
    image = figure.axes[0].images[0].get_array()
    assert image[2, 2] == pytest.approx(float(exact[2:4].mean()), abs=1e-5)
    assert image[0, 2] == pytest.approx(float(exact[0]), abs=1e-5)
    assert len(record.plot(0, tokens=encoding["input_ids"], tokenizer=tokenizer).axes[0].get_xticklabels()) == 5

"""Readable subword tokens and the words that they are pieces of."""

import numpy as np
import pytest

from sightline.view.subwords import join_weights, read_subwords


@pytest.mark.parametrize(
    ("tokens", "texts", "words"),
    [
        (
            ["<s>", "The", "Ġquick", "Ġfox", "es", "Ġdidn", "'t", "Ġrun", ".", "Ċ"],
            ["<s>", "The", "quick", "fox", "es", "didn", "'t", "run", ".", "\n"],
            {0: "<s>", 1: "The", 2: "quick", 3: "foxes", 5: "didn't", 7: "run", 8: ".", 9: "\n"},
        ),
        (["<s>", "Ġcaf", "Ã", "©"], ["<s>", "caf", "\ufffd", "\ufffd"], {0: "<s>", 1: "café"}),
        (
            ["<s>", "▁un", "break", "able", "!"],
            ["<s>", "un", "break", "able", "!"],
            {0: "<s>", 1: "unbreakable", 4: "!"},
        ),
        (["<s>", "▁", "<0xC3>", "<0xA9>"], ["<s>", " ", "\ufffd", "\ufffd"], {0: "<s>", 1: "é"}),
        (["<s>", "un", "##able", "."], ["<s>", "un", "##able", "."], {0: "<s>", 1: "unable", 3: "."}),
        (["<s>", "un", "able</w>", "to</w>"], ["<s>", "un", "able", "to"], {0: "<s>", 1: "unable", 3: "to"}),
        (["<s>", "un@@", "able", "to"], ["<s>", "un", "able", "to"], {0: "<s>", 1: "unable", 3: "to"}),
    ],
)
def test_marks_of_tokenizers_are_recognized(tokens, texts, words):
    read, joined = read_subwords(tokens, special=[0])
    assert read == texts
    assert dict(zip(joined.starts, joined.texts, strict=True)) == words


@pytest.mark.parametrize("tokens", [["the", "cat"], ["a", "Ġ\u4e00"], ["#", "##"], ["", " "]])
def test_tokens_without_marks_stay_as_they_are(tokens):
    assert read_subwords(tokens) == (tokens, None)


def test_words_without_pieces_need_no_joining():
    assert read_subwords(["▁the", "▁cat"]) == (["the", "cat"], None)


def test_patches_and_special_tokens_are_never_joined():
    tokens = ["▁see", "1,1", "1,2", "s", "▁it", "s", "</s>", "x"]
    texts, words = read_subwords(tokens, special=[6], separate=[1, 2])
    assert texts == ["see", "1,1", "1,2", "s", "it", "s", "</s>", "x"]
    assert words.texts == ["see", "1,1", "1,2", "s", "its", "</s>", "x"]


def test_joined_weights_are_the_sum_over_keys_and_the_mean_over_queries():
    weights = np.random.default_rng(0).dirichlet(np.ones(7), (3, 5))
    joined = join_weights(weights, [0, 2, 3], [0, 1, 5])
    assert joined.shape == (3, 3, 3)
    np.testing.assert_allclose(joined.sum(-1), 1)
    np.testing.assert_allclose(joined[:, 0, 1], weights[:, :2, 1:5].sum(-1).mean(-1))
    np.testing.assert_array_equal(join_weights(weights, None, None), weights)

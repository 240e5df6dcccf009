from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from samples import weights
from sightline.errors import SightlineError, SightlineWarning
from sightline.view.maps import Map
from sightline.view.page import attention_page
from sightline.view.tokens import drop_padding, query_and_key, token_sequences
from sizes import H

GRAY = np.full((28, 28), 128, np.uint8)


def maps(**shapes):
    return [Map(name=kind, kind=kind, weights=weights(H, q, k).numpy()) for kind, (q, k) in shapes.items()]


def test_positions_without_tokens_are_numbered():
    assert token_sequences(maps(encoder=(3, 3)))["source"].tokens == ["0", "1", "2"]


def test_tokens_name_the_only_sequence():
    assert token_sequences(maps(encoder=(3, 3)), tokens=["abc"] * 3)["source"].tokens == ["abc"] * 3
    assert token_sequences(maps(decoder=(3, 3)), tokens=list("abc"))["target"].tokens == list("abc")


def test_source_and_target_name_their_sequences():
    shapes = maps(encoder=(2, 2), decoder=(3, 3), cross=(3, 2))
    sequences = token_sequences(shapes, source=list("ab"), target=list("xyz"))
    assert (sequences["source"].tokens, sequences["target"].tokens) == (["a", "b"], ["x", "y", "z"])


def test_generated_tokens_name_only_the_rows_of_cross_attention():
    all_kinds = maps(encoder=(2, 2), decoder=(3, 3), cross=(3, 2))
    sequences = token_sequences(all_kinds, source=list("ab"), target=["<s>", "x", "y"], generated=["x", "y", "</s>"])
    assert [query_and_key(m, sequences) for m in all_kinds] == [
        ("source", "source"), ("target", "target"), ("generated", "source"),
    ]  # fmt: skip
    assert sequences["generated"].tokens == ["x", "y", "</s>"]
    assert (sequences["target"].special, sequences["generated"].special) == ([0], [2])
    assert query_and_key(all_kinds[2], token_sequences(all_kinds)) == ("target", "source")


def test_maps_that_are_not_over_tokens_have_numbered_positions():
    (tokens,), (channels,) = maps(encoder=(3, 3)), maps(encoder=(7, 7))
    channels = replace(channels, name="mixer", over="channels")
    sequences = token_sequences([tokens, channels], tokens=list("abc"))
    assert sequences["source"].tokens == list("abc")
    assert sequences[query_and_key(channels)[0]].names(7) == list("0123456")
    assert '"name":"mixer, over channels"' in attention_page([tokens, channels], list("abc")).html
    with pytest.raises(SightlineError, match="images must be used with attention over tokens, got channels"):
        token_sequences([channels], images=GRAY)


def test_an_image_inside_a_text_has_its_own_positions():
    patches = [f"{row},{column}" for row in (1, 2) for column in (1, 2)]
    words = ["<s>", *["<image>"] * 4, "what", "?"]
    for shapes, source in (({"decoder": (7, 7)}, []), ({"encoder": (5, 5), "decoder": (7, 7)}, ["[CLS]", *patches])):
        sequences = token_sequences(maps(**shapes), images=GRAY, target=words, image_tokens=slice(1, 5))
        assert sequences["target"].tokens == ["<s>", *patches, "what", "?"]
        assert sequences["source"].tokens == source
        assert sequences["target"].to_dict()["patches"]["prefix"] == 1
    named = token_sequences(maps(decoder=(7, 7)), images=GRAY, image_tokens=slice(1, 5))["target"]
    assert named.tokens == ["0", *patches, "5", "6"]
    with pytest.raises(SightlineError, match="image_tokens must be some of the 7 positions, got slice"):
        token_sequences(maps(decoder=(7, 7)), images=GRAY, image_tokens=slice(8, 9))


@pytest.mark.parametrize(
    ("size", "patch_grid", "message"),
    [
        (50, (14, 14), "images must match the 50 positions of the attention, got 1 image with a grid of 14 x 14"),
        (22, (4, 4), r"; pass grid=.* image_tokens=slice\(start, stop\) in a text"),
    ],
)
def test_positions_that_are_not_the_patches_of_the_model_are_refused(size, patch_grid, message):
    with pytest.raises(SightlineError, match=message):
        token_sequences(maps(encoder=(size, size)), images=GRAY, patch_grid=patch_grid)
    assert token_sequences(maps(encoder=(50, 50)), images=GRAY, patch_grid=(14, 14), grid=(7, 7))


def test_the_patches_of_the_model_need_no_grid():
    wide = np.zeros((300, 600), np.uint8)  # 50 positions could be 5 x 10 patches
    patches = token_sequences(maps(encoder=(50, 50)), images=wide, patch_grid=(7, 7))["source"].images
    assert (patches.prefix_tokens, patches.grid) == (1, (7, 7))
    merged = token_sequences(maps(decoder=(6, 6)), images=GRAY, patch_grid=(4, 4), image_tokens=slice(1, 5))["target"]
    assert merged.images.grid == (2, 2)


def test_trailing_none_tokens_are_padding():
    padded = maps(encoder=(5, 5), decoder=(3, 3), cross=(3, 5))
    options = {
        "tokens": None,
        "source": ["a", None, "b", None, None],
        "target": ["<s>", "x", None],
        "generated": ["x", "</s>", None],
    }
    cut, kept = drop_padding(padded, options)
    assert [m.shape[2:] for m in cut] == [(3, 3), (2, 2), (2, 3)]
    assert kept == {"tokens": None, "source": ["a", None, "b"], "target": ["<s>", "x"], "generated": ["x", "</s>"]}
    np.testing.assert_array_equal(cut[2].weights, padded[2].weights[:, :, :2, :3])
    assert attention_page(padded, batch=[0], **{name: words and [words] for name, words in options.items()})


def test_padding_does_not_hide_a_wrong_number_of_tokens():
    with pytest.raises(SightlineError, match="tokens must be 5 tokens, one for each position, got 3"):
        attention_page(maps(encoder=(5, 5)), tokens=["a", "b", None])


@pytest.mark.parametrize(
    ("shapes", "generated", "message"),
    [
        ({"cross": (3, 2)}, list("wxyz"), "generated must be 3 tokens.*; omit the first token, which is input"),
        ({"decoder": (3, 3)}, list("xyz"), "generated must be used with cross-attention, got none"),
    ],
)
def test_wrong_generated_tokens_are_refused(shapes, generated, message):
    with pytest.raises(SightlineError, match=message):
        token_sequences(maps(**shapes), generated=generated)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tokens": ["a", "b"]}, "tokens must be 3 tokens, one for each position, got 2"),
        ({"tokens": ["a", "b", "c", "d"]}, "; omit the last token of generate"),
        ({"tokens": [["a", "b", "c"]]}, r"; for several examples pass batch=\[0, …\]"),
        ({"tokens": "abc"}, "tokens must be a list of tokens, got the string 'abc'"),
    ],
)
def test_wrong_tokens_are_refused(given, message):
    with pytest.raises(SightlineError, match=message):
        token_sequences(maps(encoder=(3, 3)), **given)


@pytest.mark.parametrize(
    ("kind", "name", "given", "words"),
    [
        ("decoder", "target", {"source": list("abc"), "target": list("xyz")}, "xyz"),
        ("encoder", "source", {"source": list("abc"), "target": list("xyz")}, "abc"),
        ("decoder", "target", {"source": list("abc")}, "abc"),
        ("decoder", "target", {"tokens": list("tok"), "target": list("xyz")}, "tok"),
    ],
)
def test_the_only_sequence_prefers_its_own_argument(kind, name, given, words):
    assert token_sequences(maps(**{kind: (3, 3)}), **given)[name].tokens == list(words)


@pytest.mark.parametrize(
    ("shapes", "given", "message"),
    [
        ({"decoder": (3, 3)}, {"source": list("ab")}, "source must be 3 tokens, one for each position, got 2"),
        ({"decoder": (4, 4)}, {"source": list("abcd"), "target": list("ab")}, "target must be 4 tokens.*, got 2"),
        ({"cross": (3, 2)}, {"source": ["a"]}, "source must be 2 tokens, one for each position, got 1"),
        ({"cross": (3, 2)}, {"tokens": list("abc")}, "tokens must be 2 tokens.*; pass source= and target="),
    ],
)
def test_errors_name_the_argument_that_was_used(shapes, given, message):
    with pytest.raises(SightlineError, match=message):
        token_sequences(maps(**shapes), **given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"query_image": GRAY}, "query_image must be used with cross-attention, got none; use images"),
        ({"labels": ["a"]}, "labels must be used with images, got none"),
        ({"grid": (2, 2)}, "grid must be used with images, got none"),
        ({"images": GRAY, "grid": 4}, "grid must be two integers, rows and columns, got 4"),
        ({"images": np.full((4, 4), np.nan)}, "images must be finite, got NaN or infinity"),
        ({"tokens": np.zeros((1, 4))}, r"tokens must be a list of tokens, got an array of shape \(1, 4\)"),
        ({"images": GRAY, "batch": [0]}, "images must have one entry for each of the 1 examples, got 28"),
        ({"images": Image.new("L", (4, 4)), "batch": [0]}, "one entry for each of the 1 examples, got one Image"),
        ({"batch": "0"}, "batch must be an integer or a list of integers, got '0'"),
        ({"batch": [0], "names": "a b"}, "names must have one entry for each of the 1 examples, got 'a b'"),
    ],
)
def test_arguments_that_do_not_apply_are_refused(given, message):
    with pytest.raises(SightlineError, match=message):
        attention_page(maps(encoder=(4, 4)), **given)


def test_numpy_and_torch_integers_are_accepted():
    for ids in (torch.tensor([5, 6, 7]), np.array([5, 6, 7])):
        assert token_sequences(maps(encoder=(3, 3)), tokens=ids)["source"].tokens == ["5", "6", "7"]
    batch_of_four = [Map(name="a", kind="encoder", weights=weights(H, 3, 3, batch=4).numpy())]
    for indices in (np.array([0, 3]), torch.tensor([0, 3])):
        assert attention_page(batch_of_four, batch=indices).html.count('id="weights-') == 2


def test_special_tokens_have_a_default_and_can_be_given():
    words = ["[CLS]", "<unk>", "mine"]
    assert token_sequences(maps(encoder=(3, 3)), tokens=words)["source"].special == [0]
    assert token_sequences(maps(encoder=(3, 3)), tokens=words, special_tokens={"mine"})["source"].special == [2]


def test_a_list_of_batch_indices_makes_several_examples():
    batch_of_four = [Map(name="a", kind="encoder", weights=weights(H, 3, 3, batch=4).numpy())]
    html = attention_page(batch_of_four, batch=[0, 3], tokens=[list("abc"), list("xyz")]).html
    assert '"tokens":["x","y","z"]' in html
    assert html.count('id="weights-') == 2
    with pytest.raises(SightlineError, match="batch must be 0 to 3, the batch indices of a, got 4"):
        attention_page(batch_of_four, batch=4)
    with pytest.raises(SightlineError, match="tokens must have one entry for each of the 2 examples, got 1"):
        attention_page(batch_of_four, batch=[0, 1], tokens=[list("abc")])
    with pytest.raises(SightlineError, match="record must contain at least one attention map, got none"):
        attention_page([])


def test_unknown_options_raise():
    with pytest.raises(SightlineError, match=r"option of the viewer must be .*, got 'sources'"):
        attention_page(maps(encoder=(4, 4)), sources=["a"])


def test_tokens_that_do_not_fit_some_maps_are_warned_of():
    whole, step = maps(decoder=(3, 3)), [replace(m, name="step") for m in maps(decoder=(1, 2))]
    with pytest.warns(SightlineWarning, match="the tokens do not fit 1 of 2 maps, such as step, which show positions"):
        attention_page([*whole, *step], list("abc"))
    page = attention_page([*whole, *(replace(m, over="channels") for m in step)], list("abc"))  # without a warning
    assert '"name":"step, over channels"' in page.html

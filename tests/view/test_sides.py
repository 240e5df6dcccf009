import numpy as np
import pytest
from PIL import Image

from samples import weights
from sightline.view.images import pictures
from sightline.view.maps import Map
from sightline.view.page import page
from sightline.view.sides import sides, sides_of, without_filling
from sizes import H

GRAY = np.full((28, 28), 128, np.uint8)


def maps(**sizes):
    return [Map(name=kind, kind=kind, weights=weights(H, q, k).numpy()) for kind, (q, k) in sizes.items()]


def test_missing_tokens_are_counted():
    assert sides(maps(encoder=(3, 3)))["source"].tokens == ["0", "1", "2"]


def test_tokens_of_one_sequence_serve_encoder_or_decoder():
    assert sides(maps(encoder=(3, 3)), tokens=["abc"] * 3)["source"].tokens == ["abc"] * 3
    assert sides(maps(decoder=(3, 3)), tokens=list("abc"))["target"].tokens == list("abc")


def test_source_and_target_are_told_apart():
    both = sides(maps(encoder=(2, 2), decoder=(3, 3), cross=(3, 2)), source=list("ab"), target=list("xyz"))
    assert (both["source"].tokens, both["target"].tokens) == (["a", "b"], ["x", "y", "z"])


def test_what_is_written_names_the_rows_of_cross_attention_alone():
    some = maps(encoder=(2, 2), decoder=(3, 3), cross=(3, 2))
    both = sides(some, source=list("ab"), target=["<s>", "x", "y"], written=["x", "y", "</s>"])
    assert [sides_of(kind, both) for kind in ("encoder", "decoder", "cross")] == [
        ("source", "source"), ("target", "target"), ("written", "source"),
    ]  # fmt: skip
    assert both["written"].tokens == ["x", "y", "</s>"]
    assert (both["target"].special, both["written"].special) == ([0], [2])
    assert sides_of("cross", sides(some)) == ("target", "source")


def test_places_called_none_at_the_end_are_filling_and_left_out():
    some = maps(encoder=(5, 5), decoder=(3, 3), cross=(3, 5))
    told = {"tokens": None, "source": ["a", None, "b", None, None], "target": ["<s>", "x", None], "written": None}
    told["written"] = ["x", "</s>", None]
    shorter, kept = without_filling(some, told)
    assert [one.shape[2:] for one in shorter] == [(3, 3), (2, 2), (2, 3)]
    assert kept == {"tokens": None, "source": ["a", None, "b"], "target": ["<s>", "x"], "written": ["x", "</s>"]}
    np.testing.assert_array_equal(shorter[2].weights, some[2].weights[:, :, :2, :3])
    assert page(some, batch=[0], **{name: words and [words] for name, words in told.items()})


def test_filling_does_not_hide_a_wrong_number_of_tokens():
    with pytest.raises(ValueError, match="tokens must be 5 tokens, one for each place of the attention, got 3"):
        page(maps(encoder=(5, 5)), tokens=["a", "b", None])


@pytest.mark.parametrize(
    ("some", "written", "message"),
    [
        ({"cross": (3, 2)}, list("wxyz"), "written must be 3 tokens.*; the first token is read and never written"),
        ({"decoder": (3, 3)}, list("xyz"), "written must come with cross-attention, whose rows it names, got none"),
    ],
)
def test_wrong_words_that_are_written_are_refused(some, written, message):
    with pytest.raises(ValueError, match=message):
        sides(maps(**some), written=written)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tokens": ["a", "b"]}, "tokens must be 3 tokens, one for each place of the attention, got 2"),
        ({"tokens": "abc"}, "tokens must be a list of tokens, got the string 'abc'"),
    ],
)
def test_wrong_tokens_are_refused_with_both_numbers(given, message):
    with pytest.raises(ValueError, match=message):
        sides(maps(encoder=(3, 3)), **given)


@pytest.mark.parametrize(
    ("kind", "side", "given", "words"),
    [
        ("decoder", "target", {"source": list("abc"), "target": list("xyz")}, "xyz"),
        ("encoder", "source", {"source": list("abc"), "target": list("xyz")}, "abc"),
        ("decoder", "target", {"source": list("abc")}, "abc"),
        ("decoder", "target", {"tokens": list("tok"), "target": list("xyz")}, "tok"),
    ],
)
def test_a_single_side_is_named_by_its_own_words(kind, side, given, words):
    assert sides(maps(**{kind: (3, 3)}), **given)[side].tokens == list(words)


def test_a_single_side_blames_the_words_it_took():
    with pytest.raises(ValueError, match="source must be 3 tokens, one for each place of the attention, got 2"):
        sides(maps(decoder=(3, 3)), source=list("ab"))
    with pytest.raises(ValueError, match="target must be 4 tokens, one for each place of the attention, got 2"):
        sides(maps(decoder=(4, 4)), source=list("abcd"), target=list("ab"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"query_image": GRAY},
            "query_image must come with cross-attention, whose rows it shows, got none; use images",
        ),
        ({"labels": ["a"]}, "labels must come with images, got none"),
        ({"grid": (2, 2)}, "grid must come with images, got none"),
        ({"images": GRAY, "grid": 4}, "grid must be two integers, rows and columns, got 4"),
        ({"images": np.full((4, 4), np.nan)}, "images must be finite, got NaN or infinity"),
        ({"tokens": np.zeros((1, 4))}, r"tokens must be a list of tokens, got an array of shape \(1, 4\)"),
        ({"images": GRAY, "batch": [0]}, "images must have one entry for each of the 1 rows of batch, got 28"),
        ({"images": Image.new("L", (4, 4)), "batch": [0]}, "one entry for each of the 1 rows of batch, got one Image"),
        ({"batch": "0"}, "batch must be an integer or a list of them, got '0'"),
        ({"batch": [0], "names": "a b"}, "names must be a list with one for each of the 1 rows of batch, got 'a b'"),
    ],
)
def test_what_would_be_ignored_or_misread_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        page(maps(encoder=(4, 4)), **given)


def test_numbers_of_numpy_and_torch_are_tokens_and_rows():
    import torch

    for ids in (torch.tensor([5, 6, 7]), np.array([5, 6, 7])):
        assert sides(maps(encoder=(3, 3)), tokens=ids)["source"].tokens == ["5", "6", "7"]
    some = [Map(name="a", kind="encoder", weights=weights(H, 3, 3, batch=4).numpy())]
    for rows in (np.array([0, 3]), torch.tensor([0, 3])):
        assert page(some, batch=rows).html.count('id="weights-') == 2


def test_wrong_source_is_named():
    with pytest.raises(ValueError, match="source must be 2 tokens, one for each place of the attention, got 1"):
        sides(maps(cross=(3, 2)), source=["a"])


def test_special_tokens_are_known_and_can_be_chosen():
    words = ["[CLS]", "<unk>", "mine"]
    assert sides(maps(encoder=(3, 3)), tokens=words)["source"].special == [0]
    assert sides(maps(encoder=(3, 3)), tokens=words, special={"mine"})["source"].special == [2]


@pytest.mark.parametrize(
    ("size", "before", "grid"), [(196, 0, (14, 14)), (197, 1, (14, 14)), (201, 5, (14, 14)), (1, 0, (1, 1))]
)
def test_class_and_register_tokens_before_the_patches_are_noticed(size, before, grid):
    found = pictures(GRAY, size, name="images")
    assert (found.before, found.grid, len(found.tokens())) == (before, grid, size)


def test_patches_follow_the_shape_of_the_picture():
    for size, grid in ((8, (2, 4)), (32, (4, 8)), (72, (6, 12))):
        found = pictures(np.zeros((20, 40, 3), np.uint8), size, name="images")
        assert (found.before, found.grid) == (0, grid)
    assert pictures(GRAY, 18, name="images", grid=(3, 6)).grid == (3, 6)


@pytest.mark.parametrize(
    ("size", "height", "width", "message"),
    [
        (50, 300, 600, r"got 1 \+ 7 x 7 or 0 \+ 5 x 10"),  # CLIP, or patches without a class token
        (198, 600, 1000, r"got 2 \+ 14 x 14 or 0 \+ 11 x 18"),
        (577, 90, 160, r"got 1 \+ 24 x 24 or 1 \+ 18 x 32"),
    ],
)
def test_places_that_can_be_read_in_two_ways_are_not_guessed(size, height, width, message):
    picture = np.zeros((height, width), np.uint8)
    with pytest.raises(ValueError, match=f"grid must be given where the places can be read in two ways, {message}"):
        pictures(picture, size, name="images")
    rows = round((size - 1) ** 0.5)
    if rows * rows == size - 1:
        told = pictures(picture, size, name="images", grid=(np.int64(rows), np.int64(rows)))
        assert (told.before, told.grid) == (1, (rows, rows))


@pytest.mark.parametrize(("size", "grid"), [(197, (14, 14)), (50, (7, 7)), (257, (16, 16)), (577, (24, 24))])
@pytest.mark.parametrize(("height", "width"), [(480, 640), (640, 480), (200, 201)])
def test_common_photos_in_common_models_need_no_grid(size, grid, height, width):
    found = pictures(np.zeros((height, width), np.uint8), size, name="images")
    assert (found.before, found.grid) == (1, grid)


def test_support_pictures_share_the_row():
    found = pictures([GRAY] * 5, 5 * 9, name="images", labels=list("abcde"))
    assert found.grid == (3, 3)
    assert found.tokens()[9] == "b 1,1"
    assert pictures([GRAY] * 5, 5, name="images", labels=list("abcde")).tokens() == list("abcde")


@pytest.mark.parametrize(
    "picture",
    [
        GRAY,
        GRAY[None],
        np.stack([GRAY] * 3),
        np.stack([GRAY] * 3, -1),
        GRAY / 255.0,
        np.random.default_rng(0).normal(size=(3, 8, 8)),
        Image.new("L", (9, 9)),
        Image.new("RGBA", (9, 9)),
    ],
)
def test_pictures_come_in_many_forms(picture):
    assert pictures(picture, 4, name="images").images[0]["src"].startswith("data:image/png;base64,")


def test_a_file_is_called_by_its_name_and_large_ones_shrink(tmp_path):
    path = tmp_path / "<b>cat.png"
    Image.new("RGB", (2000, 1000)).save(path)
    (image,) = pictures(path, 2, name="images").images
    assert (image["label"], image["width"], image["height"]) == ("<b>cat.png", 640, 320)


@pytest.mark.parametrize(
    ("given", "size", "message"),
    [
        ({"images": []}, 4, "images must hold at least one picture, got none"),
        ({"images": [GRAY], "labels": ["a", "b"]}, 4, "labels must be 1, one for each picture, got 2"),
        (
            {"images": GRAY, "grid": (5, 5)},
            4,
            "images must fit the 4 places of the attention, got 1 picture in a grid of 5 x 5",
        ),
        ({"images": np.zeros(3)}, 4, r"images must have shape \(H, W\), \(H, W, 3\) or \(3, H, W\), got \(3,\)"),
        ({"images": "nowhere.png"}, 4, "images must be pictures that can be opened, got 'nowhere.png'"),
    ],
)
def test_wrong_pictures_are_refused(given, size, message):
    with pytest.raises(ValueError, match=message):
        page(maps(encoder=(size, size)), **given)


def test_several_rows_of_a_batch_make_several_examples():
    some = [Map(name="a", kind="encoder", weights=weights(H, 3, 3, batch=4).numpy())]
    made = page(some, batch=[0, 3], tokens=[list("abc"), list("xyz")]).html
    assert '"tokens":["x","y","z"]' in made
    assert made.count('id="weights-') == 2
    with pytest.raises(ValueError, match="batch must be at least 0 and below 4, the size of the batch in a, got 4"):
        page(some, batch=4)
    with pytest.raises(ValueError, match="tokens must have one entry for each of the 2 rows of batch, got 1"):
        page(some, batch=[0, 1], tokens=[list("abc")])
    with pytest.raises(ValueError, match="record must hold at least one attention map, got none"):
        page([])

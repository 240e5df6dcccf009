import base64
import io

import numpy as np
import pytest
from PIL import Image

from sightline.errors import SightlineError
from sightline.view.images import MAX_SIDE, patched_images

GRAY = np.full((28, 28), 128, np.uint8)
EPS = b"""%!PS-Adobe-3.0 EPSF-3.0
%%BoundingBox: 0 0 8 8
%%EndComments
0 0 8 8 rectfill
showpage
%%EOF
"""


def decode(image):
    """The PIL image of a data URL."""
    return Image.open(io.BytesIO(base64.b64decode(image["src"].partition(",")[2])))


@pytest.mark.parametrize(
    ("size", "prefix_tokens", "grid"), [(196, 0, (14, 14)), (197, 1, (14, 14)), (201, 5, (14, 14)), (1, 0, (1, 1))]
)
def test_class_and_register_tokens_are_inferred(size, prefix_tokens, grid):
    patches = patched_images(GRAY, size, name="images")
    assert (patches.prefix_tokens, patches.grid, len(patches.tokens())) == (prefix_tokens, grid, size)


def test_the_grid_follows_the_aspect_ratio():
    for size, grid in ((8, (2, 4)), (32, (4, 8)), (72, (6, 12))):
        patches = patched_images(np.zeros((20, 40, 3), np.uint8), size, name="images")
        assert (patches.prefix_tokens, patches.grid) == (0, grid)
    assert patched_images(GRAY, 18, name="images", grid=(3, 6)).grid == (3, 6)


@pytest.mark.parametrize(
    ("size", "height", "width", "message"),
    [
        (50, 300, 600, r"got 1 \+ 7 x 7 or 0 \+ 5 x 10"),  # CLIP, or patches without a class token
        (198, 600, 1000, r"got 2 \+ 14 x 14 or 0 \+ 11 x 18"),
        (577, 90, 160, r"got 1 \+ 24 x 24 or 1 \+ 18 x 32"),
    ],
)
def test_ambiguous_layouts_are_refused(size, height, width, message):
    image = np.zeros((height, width), np.uint8)
    with pytest.raises(
        SightlineError, match=f"grid must be given if the positions have two possible layouts, {message}"
    ):
        patched_images(image, size, name="images")
    side = round((size - 1) ** 0.5)
    if side * side == size - 1:
        patches = patched_images(image, size, name="images", grid=(np.int64(side), np.int64(side)))
        assert (patches.prefix_tokens, patches.grid) == (1, (side, side))


@pytest.mark.parametrize(("size", "grid"), [(197, (14, 14)), (50, (7, 7)), (257, (16, 16)), (577, (24, 24))])
@pytest.mark.parametrize(("height", "width"), [(480, 640), (640, 480), (200, 201)])
def test_common_photos_in_common_models_need_no_grid(size, grid, height, width):
    patches = patched_images(np.zeros((height, width), np.uint8), size, name="images")
    assert (patches.prefix_tokens, patches.grid) == (1, grid)


def test_support_images_share_the_positions():
    patches = patched_images([GRAY] * 5, 5 * 9, name="images", labels=list("abcde"))
    assert patches.grid == (3, 3)
    assert patches.tokens()[9] == "b 1,1"
    assert patched_images([GRAY] * 5, 5, name="images", labels=list("abcde")).tokens() == list("abcde")


@pytest.mark.parametrize(
    "image",
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
def test_arrays_and_pil_images_are_accepted(image):
    assert patched_images(image, 4, name="images").images[0]["src"].startswith("data:image/png;base64,")


def test_files_are_labeled_by_name_and_downscaled(tmp_path):
    path = tmp_path / "<b>cat.png"
    Image.new("RGB", (2000, 1000)).save(path)
    (image,) = patched_images(path, 2, name="images").images
    assert (image["label"], image["width"], image["height"]) == ("<b>cat.png", MAX_SIDE, MAX_SIDE // 2)


def test_exif_orientation_is_applied(tmp_path):
    photo = Image.new("RGB", (80, 40), "teal")
    exif = photo.getexif()
    exif[0x0112] = 6  # rotated by 90 degrees
    photo.save(tmp_path / "rotated.jpg", exif=exif)
    (image,) = patched_images(tmp_path / "rotated.jpg", 8, name="images", grid=(4, 2)).images
    assert decode(image).size == (40, 80)


def test_sixteen_bit_images_keep_their_gray_levels():
    deep = Image.fromarray(np.linspace(0, 4000, 64, dtype=np.uint16).reshape(8, 8))
    (image,) = patched_images(deep, 4, name="images").images
    assert len(np.unique(np.asarray(decode(image).convert("L")))) > 32


def test_an_eps_file_is_refused_without_starting_a_program(tmp_path, monkeypatch):
    def forbidden(*args, **kwargs):
        pytest.fail(f"started {args}")

    monkeypatch.setattr("subprocess.Popen.__init__", forbidden)
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", forbidden)
    monkeypatch.setattr("PIL.EpsImagePlugin.has_ghostscript", lambda: True)
    path = tmp_path / "image.png"
    path.write_bytes(EPS)
    with pytest.raises(SightlineError, match=r"images must be readable image files, got .*image\.png"):
        patched_images(path, 4, name="images")


@pytest.mark.parametrize("side", [9_000, 14_000])
def test_images_with_too_many_pixels_are_refused(tmp_path, side):
    path = tmp_path / "huge.png"
    Image.new("1", (side, side)).save(path)
    with pytest.raises(SightlineError, match=r"huge\.png"):
        patched_images(path, 4, name="images")


def test_large_files_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("sightline.limits.MAX_IMAGE_BYTES", 10)
    path = tmp_path / "large.png"
    Image.new("L", (8, 8)).save(path)
    with pytest.raises(SightlineError, match=r"large\.png must be at most 10 bytes, got \d+; make it smaller"):
        patched_images(path, 4, name="images")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"images": []}, "images must contain at least one image, got none"),
        ({"images": [GRAY], "labels": ["a", "b"]}, "labels must have one entry for each of the 1 images, got 2"),
        ({"images": GRAY, "grid": (5, 5)}, "images must match the 4 positions.*, got 1 image with a grid of 5 x 5"),
        ({"images": np.zeros(3)}, r"images must have shape \(H, W\), \(H, W, 3\) or \(3, H, W\), got \(3,\)"),
        ({"images": np.zeros((1, 3, 8, 8))}, r"got \(1, 3, 8, 8\); pass one image of the batch"),
        ({"images": "nowhere.png"}, "images must be readable image files, got 'nowhere.png'"),
    ],
)
def test_wrong_images_are_refused(given, message):
    with pytest.raises(SightlineError, match=message):
        patched_images(given.pop("images"), 4, name="images", **given)

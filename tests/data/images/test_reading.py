import io
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from sightline.data import read_image
from sightline.data.images import reading as decode

H, W = 7, 11


def colors(height=H, width=W):
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


def grays(height=H, width=W):
    return colors(height, width)[:, :, 0]


def encoded(picture, form="PNG", **options):
    buffer = io.BytesIO()
    picture.save(buffer, form, **options)
    return buffer.getvalue()


def test_a_path_bytes_an_image_an_array_and_a_tensor_give_the_same(tmp_path):
    array = colors()
    picture = Image.fromarray(array)
    picture.save(tmp_path / "a.png")
    expected = torch.from_numpy(array).permute(2, 0, 1)
    sources = (tmp_path / "a.png", str(tmp_path / "a.png"), encoded(picture), picture, array, expected)
    for source in sources:
        image = read_image(source)
        assert image.dtype == torch.uint8
        assert image.is_contiguous()
        assert torch.equal(image, expected)


def test_floats_from_0_to_1_and_bits_are_taken_as_such():
    assert read_image(np.array([[0.0, 0.5, 1.0]])).tolist() == [[[0, 128, 255]]]
    assert read_image(torch.tensor([[0.0, 0.5, 1.0]], dtype=torch.bfloat16)).tolist() == [[[0, 128, 255]]]
    assert read_image(np.array([[False, True]])).tolist() == [[[0, 255]]]
    assert read_image(np.array([[0, 32768, 65535]], dtype=np.uint16)).tolist() == [[[0, 128, 255]]]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (np.array([[0.0, 1.5]]), r"floats must lie within 0 and 1, got 0 to 1.5"),
        (np.array([[0.0, np.nan]]), r"must lie within 0 and 1, got nan to nan"),
        (np.zeros((2, 2), np.int64), r"must be uint8, or floats from 0 to 1, got int64"),
        (np.zeros((2, 2, 5), np.uint8), r"must have shape \(H, W\) or \(H, W, C\) .* got \(2, 2, 5\)"),
        (torch.zeros(5, 2, 2, dtype=torch.uint8), r"must have shape \(H, W\) or \(C, H, W\) .* got \(5, 2, 2\)"),
        (np.zeros((0, 2), np.uint8), r"must have 1 to 80,000,000 pixels, got shape \(0, 2\)"),
        (3, r"must be a path, bytes, a PIL image, an array or a tensor, got int"),
        (b"", r"the image must be a PNG, .* and whole, got none of these; replace the file or remove it"),
    ],
)
def test_what_is_no_image_is_refused(source, message):
    with pytest.raises(ValueError, match=message):
        read_image(source)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"size": 0}, "size must be an integer of at least 1, got 0"),
        ({"size": 5000}, "size must be at most 4096, got 5000"),
        ({"channels": 4}, r"channels must be 1 \(gray\) or 3 \(color\), got 4"),
    ],
)
def test_impossible_forms_are_refused(asked, message):
    with pytest.raises(ValueError, match=message):
        read_image(colors(), **asked)


@pytest.mark.parametrize(
    ("mode", "channels"),
    [
        ("1", 1),
        ("L", 1),
        ("LA", 1),
        ("P", 3),
        ("RGB", 3),
        ("RGBA", 3),
        ("PA", 3),
        ("CMYK", 3),
        ("YCbCr", 3),
        ("HSV", 3),
    ],
)
def test_every_mode_is_read_and_brought_to_1_or_3_channels(mode, channels):
    picture = Image.fromarray(colors()).convert("P" if mode == "PA" else mode)
    picture = picture.convert(mode)
    assert read_image(picture).shape == (channels, H, W)
    for wanted in (1, 3):
        assert read_image(picture, channels=wanted).shape == (wanted, H, W)


def test_transparent_parts_lie_over_white():
    array = np.zeros((1, 3, 4), np.uint8)
    array[0, :, 3] = 0, 51, 255
    assert read_image(array).tolist() == [[[255, 204, 0]]] * 3
    assert read_image(array[:, :, 2:]).tolist() == [[[255, 204, 0]]]


@pytest.mark.parametrize("mode", ["P", "L", "RGB"])
def test_a_transparent_color_lies_over_white(mode):
    picture = Image.new(mode, (2, 1), 0)
    picture.putpixel((1, 0), {"P": 1, "L": 9, "RGB": (9, 9, 9)}[mode])
    if mode == "P":
        picture.putpalette([0, 0, 0, 9, 9, 9])
    data = encoded(picture, transparency={"P": 0, "L": 0, "RGB": (0, 0, 0)}[mode])
    assert read_image(data)[0].tolist() == [[255, 9]]


def test_a_palette_with_several_transparent_colors_warns_nobody():
    picture = Image.new("P", (2, 1), 0)
    picture.putpixel((1, 0), 1)
    picture.putpalette([0, 0, 0, 10, 20, 30])
    data = encoded(picture, transparency=bytes([0, 255]))
    assert read_image(data).tolist() == [[[255, 10]], [[255, 20]], [[255, 30]]]


def test_sixteen_bits_are_scaled_to_eight():
    values = np.array([[0, 257, 32768, 65535]], np.uint16)
    picture = Image.fromarray(values)
    for data in (encoded(picture), encoded(picture, "TIFF"), encoded(picture.convert("I"), "TIFF")):
        assert read_image(data).tolist() == [[[0, 1, 128, 255]]]


def test_float_greys_from_0_to_1_and_0_to_255_are_read():
    assert read_image(encoded(Image.fromarray(np.array([[0, 0.5, 1]], np.float32)), "TIFF")).tolist() == [
        [[0, 128, 255]]
    ]
    assert read_image(encoded(Image.fromarray(np.array([[0, 9, 255]], np.float32)), "TIFF")).tolist() == [[[0, 9, 255]]]


@pytest.mark.parametrize("values", [np.array([[0, -2.5]], np.float32), np.array([[0, np.nan]], np.float32)])
def test_other_floats_are_refused(values, tmp_path):
    path = tmp_path / "depth.tif"
    Image.fromarray(values).save(path)
    with pytest.raises(ValueError, match=r"depth.tif must hold gray values from 0 to 1 or 0 to 255, got .*; save it"):
        read_image(path)


def test_large_whole_numbers_are_refused(tmp_path):
    path = tmp_path / "large.tif"
    Image.fromarray(np.array([[0, 70000]], np.int32)).save(path)
    with pytest.raises(ValueError, match=r"large.tif must hold gray values of 0 to 65535, got 0 to 70000; save it"):
        read_image(path)


@pytest.mark.parametrize("form", ["png", "tif", "webp", "jpg"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_camera_s_orientation_is_undone(orientation, form, tmp_path):
    y, x = np.mgrid[0:24, 0:40]
    upright = Image.fromarray((3 * x + 5 * y).astype(np.uint8))
    undo = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # what the camera did: the inverse of each transposition
    stored = upright if orientation == 1 else upright.transpose(Image.Transpose(undo[orientation]))
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / f"photo.{form}"
    stored.save(path, exif=exif, **{"webp": {"lossless": True}, "jpg": {"quality": 100}}.get(form, {}))
    for size in (None, 16):
        ours, theirs = read_image(path, size=size, channels=1), read_image(upright, size=size)
        assert ours.shape == theirs.shape
        assert (ours.int() - theirs.int()).abs().max() <= (3 if form == "jpg" else 1 if form == "webp" else 0)
    assert decode.header(path) == (40, 24, form == "webp")  # WebP is always in color


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_damaged_exif_does_not_hide_the_pixels(tmp_path):
    path = tmp_path / "photo.jpg"
    Image.fromarray(colors()).save(path, exif=b"Exif\x00\x00II*\x00\xff\xff\xff\x7f garbage")
    assert read_image(path).shape == (3, H, W)


def test_the_first_frame_of_an_animation_is_read():
    frames = [Image.new("L", (W, H), shade) for shade in (10, 200)]
    for form in ("GIF", "PNG", "WEBP"):
        data = encoded(
            frames[0], form, save_all=True, append_images=frames[1:], **({"lossless": True} if form == "WEBP" else {})
        )
        assert set(read_image(data, channels=1).unique().tolist()) == {10}


def test_the_size_cuts_the_middle_square():
    array = np.zeros((10, 30), np.uint8)
    array[:, 10:20] = 200
    assert read_image(array, size=10).eq(200).all()
    assert read_image(array.T.copy(), size=10).eq(200).all()
    assert read_image(array, size=4).shape == (1, 4, 4)


def test_shrinking_averages_and_does_not_skip():
    board = (np.indices((64, 64)).sum(0) % 2 * 255).astype(np.uint8)
    small = read_image(board, size=8)
    assert (small.float() - 127.5).abs().max() < 4


def test_a_picture_of_the_right_size_is_left_alone():
    array = colors(5, 5)
    assert torch.equal(read_image(array, size=5), torch.from_numpy(array).permute(2, 0, 1))


def test_a_very_long_picture_costs_no_more_than_its_square():
    assert read_image(np.full((1, 1_000_000), 7, np.uint8), size=64).eq(7).all()


def test_a_large_photo_decoded_small_looks_like_the_whole():
    y, x = np.mgrid[0:640, 0:800]
    array = np.stack((y % 256, x % 256, (x + y) // 6 % 256), -1).astype(np.uint8)
    smooth = Image.fromarray(array).resize((80, 64)).resize((800, 640), Image.Resampling.BICUBIC)
    data = encoded(smooth, "JPEG", quality=95)
    quick = read_image(data, size=32).float()
    whole = read_image(read_image(data), size=32).float()
    assert (quick - whole).abs().mean() < 2


def test_an_image_given_by_the_user_is_not_changed():
    picture = Image.open(io.BytesIO(encoded(Image.fromarray(colors(640, 640)), "JPEG")))
    read_image(picture, size=16)
    assert picture.size == (640, 640)


@pytest.mark.parametrize("form", ["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM"])
def test_a_truncated_file_is_named_wherever_it_ends(form, tmp_path):
    whole = encoded(Image.fromarray(colors(40, 40)), form)
    path = tmp_path / "torn.img"
    for share in (0.01, 0.1, 0.5, 0.9):
        path.write_bytes(whole[: int(len(whole) * share)])
        with pytest.raises(
            ValueError, match=r"torn\.img must be a PNG, JPEG, .* and whole, got .*; replace the file or"
        ):
            read_image(path)


def test_damage_anywhere_is_read_or_named_but_never_a_stack_trace():
    random = np.random.default_rng(0)
    for form in ("PNG", "JPEG", "GIF", "TIFF", "WEBP"):
        whole = np.frombuffer(encoded(Image.fromarray(colors(20, 20)), form), np.uint8)
        for _ in range(60):
            broken = whole.copy()
            broken[random.integers(0, len(whole), 4)] = random.integers(0, 256, 4)
            try:
                image = read_image(broken.tobytes(), size=8, channels=3)
            except ValueError as error:
                assert "the image must" in str(error)  # noqa: PT017
            else:
                assert image.shape == (3, 8, 8)


def test_files_that_are_no_images_are_named(tmp_path):
    (tmp_path / "notes.png").write_text("not an image")
    with pytest.raises(ValueError, match=r"notes.png must be a PNG, .*got none of these; replace"):
        read_image(tmp_path / "notes.png")
    with pytest.raises(ValueError, match=r"must be a file, got .*gone.png', which is not there"):
        read_image(tmp_path / "gone.png")
    with pytest.raises(ValueError, match=r"must be a file, got .*, which is no file"):
        read_image(tmp_path)


def test_formats_that_start_other_programs_are_not_opened(tmp_path):
    Image.fromarray(colors()).save(tmp_path / "page.eps")
    with pytest.raises(ValueError, match=r"page.eps must be a PNG"):
        read_image(tmp_path / "page.eps")


@pytest.mark.parametrize(("side", "got"), [(9_500, "9500 x 9500"), (20_000, "over 178,956,970")])
def test_what_pillow_would_warn_of_is_refused_by_our_rule(tmp_path, recwarn, side, got):
    path = tmp_path / "vast.pbm"
    path.write_bytes(f"P4 {side} {side}\n".encode())  # a header is all that is looked at
    for call in (read_image, decode.header):
        with pytest.raises(ValueError, match=f"vast.pbm must have 1 to 80,000,000 pixels, got {got}; make it smaller"):
            call(path)
    assert not recwarn


def test_a_file_or_picture_over_the_limits_is_refused_before_it_is_decoded(tmp_path, monkeypatch):
    path = tmp_path / "a.png"
    Image.fromarray(colors()).save(path)
    monkeypatch.setattr(decode, "MOST_PIXELS", 76)
    for call in (read_image, decode.header):
        with pytest.raises(ValueError, match=r"a.png must have 1 to 76 pixels, got 11 x 7; make it smaller"):
            call(path)
    monkeypatch.setattr(decode, "MOST_BYTES", 20)
    with pytest.raises(ValueError, match=r"a.png must be at most 20 bytes, got \d+; make it smaller"):
        read_image(path)
    with pytest.raises(ValueError, match=r"the image must be at most 20 bytes, got \d+"):
        read_image(path.read_bytes())


def test_a_small_file_that_claims_a_huge_picture_is_refused():
    whole = bytearray(encoded(Image.new("L", (8, 8))))
    whole[16:24] = (60_000).to_bytes(4, "big") * 2  # width and height in the header of a PNG
    whole[29:33] = zlib.crc32(whole[12:29]).to_bytes(4, "big")
    with pytest.raises(ValueError, match=r"the image must"):
        read_image(bytes(whole))


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "LA", "I;16"])
def test_the_header_knows_the_size_and_whether_there_is_color(mode, tmp_path):
    picture = Image.new(mode, (W, H))
    picture.save(tmp_path / "a.png")
    assert decode.header(tmp_path / "a.png") == (W, H, mode in ("P", "RGB", "RGBA"))

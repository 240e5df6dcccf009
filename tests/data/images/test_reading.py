import io
import threading
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from PIL.PngImagePlugin import PngImageFile

from sightline import limits
from sightline.data import ImageFiles, read_image
from sightline.data.images.paths import expand_image_paths, list_images
from sightline.data.images.reading import read_header
from sightline.errors import SightlineError

H, W = 7, 11


def color_array(height=H, width=W):
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


def encode(image, form="PNG", **options):
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def test_all_source_types_give_the_same_image(tmp_path):
    array = color_array()
    image = Image.fromarray(array)
    image.save(tmp_path / "a.png")
    expected = torch.from_numpy(array).permute(2, 0, 1)
    sources = (tmp_path / "a.png", str(tmp_path / "a.png"), encode(image), image, array, expected)
    for source in sources:
        image = read_image(source)
        assert image.dtype == torch.uint8
        assert image.is_contiguous()
        assert torch.equal(image, expected)


def test_float_bool_and_uint16_arrays_are_converted():
    assert read_image(np.array([[0.0, 0.5, 1.0]])).tolist() == [[[0, 128, 255]]]
    assert read_image(torch.tensor([[0.0, 0.5, 1.0]], dtype=torch.bfloat16)).tolist() == [[[0, 128, 255]]]
    assert read_image(np.array([[False, True]])).tolist() == [[[0, 255]]]
    assert read_image(np.array([[0, 32768, 65535]], dtype=np.uint16)).tolist() == [[[0, 128, 255]]]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (np.array([[0.0, 1.5]]), r"floats must have values from 0 to 1, got 0 to 1.5"),
        (np.array([[0.0, np.nan]]), r"must have values from 0 to 1, got nan to nan"),
        (np.zeros((2, 2), np.int64), r"must be uint8, or floats from 0 to 1, got int64"),
        (np.zeros((2, 2, 5), np.uint8), r"must have shape \(H, W\) or \(H, W, C\) .* got \(2, 2, 5\)"),
        (torch.zeros(5, 2, 2, dtype=torch.uint8), r"must have shape \(H, W\) or \(C, H, W\) .* got \(5, 2, 2\)"),
        (np.zeros((0, 2), np.uint8), r"must have 1 to 80,000,000 pixels, got shape \(0, 2\)"),
        (3, r"must be a path, bytes, a PIL image, an array or a tensor, got int"),
        (b"", r"the image must be a complete PNG, .* got an empty file \(0 bytes\); copy or download it again"),
    ],
)
def test_invalid_sources_are_rejected(source, message):
    with pytest.raises(SightlineError, match=message):
        read_image(source)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "size must be an integer of at least 1, got 0"),
        ({"size": 5000}, "size must be at most 4,096, got 5000"),
        ({"channels": 4}, r"channels must be 1 \(gray\) or 3 \(color\), got 4"),
    ],
)
def test_invalid_options_are_rejected(options, message):
    with pytest.raises(SightlineError, match=message):
        read_image(color_array(), **options)


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
def test_all_modes_are_converted_to_1_or_3_channels(mode, channels):
    image = Image.fromarray(color_array()).convert("P" if mode == "PA" else mode)
    image = image.convert(mode)
    assert read_image(image).shape == (channels, H, W)
    for channels in (1, 3):
        assert read_image(image, channels=channels).shape == (channels, H, W)


def test_transparent_pixels_are_blended_over_white():
    array = np.zeros((1, 3, 4), np.uint8)
    array[0, :, 3] = 0, 51, 255
    assert read_image(array).tolist() == [[[255, 204, 0]]] * 3
    assert read_image(array[:, :, 2:]).tolist() == [[[255, 204, 0]]]


@pytest.mark.parametrize("mode", ["P", "L", "RGB"])
def test_a_transparent_color_is_blended_over_white(mode):
    image = Image.new(mode, (2, 1), 0)
    image.putpixel((1, 0), {"P": 1, "L": 9, "RGB": (9, 9, 9)}[mode])
    if mode == "P":
        image.putpalette([0, 0, 0, 9, 9, 9])
    data = encode(image, transparency={"P": 0, "L": 0, "RGB": (0, 0, 0)}[mode])
    assert read_image(data)[0].tolist() == [[255, 9]]


def test_a_palette_with_several_transparent_colors_does_not_warn():
    image = Image.new("P", (2, 1), 0)
    image.putpixel((1, 0), 1)
    image.putpalette([0, 0, 0, 10, 20, 30])
    data = encode(image, transparency=bytes([0, 255]))
    assert read_image(data).tolist() == [[[255, 10]], [[255, 20]], [[255, 30]]]


def test_16_bit_images_are_scaled_to_8_bit():
    values = np.array([[0, 257, 32768, 65535]], np.uint16)
    image = Image.fromarray(values)
    for data in (encode(image), encode(image, "TIFF"), encode(image.convert("I"), "TIFF")):
        assert read_image(data).tolist() == [[[0, 1, 128, 255]]]


def test_float_images_from_0_to_1_and_0_to_255_are_read():
    assert read_image(encode(Image.fromarray(np.array([[0, 0.5, 1]], np.float32)), "TIFF")).tolist() == [
        [[0, 128, 255]]
    ]
    assert read_image(encode(Image.fromarray(np.array([[0, 9, 255]], np.float32)), "TIFF")).tolist() == [[[0, 9, 255]]]


@pytest.mark.parametrize("values", [np.array([[0, -2.5]], np.float32), np.array([[0, np.nan]], np.float32)])
def test_other_floats_are_rejected(values, tmp_path):
    path = tmp_path / "depth.tif"
    Image.fromarray(values).save(path)
    with pytest.raises(
        SightlineError, match=r"depth.tif must have gray values from 0 to 1 or 0 to 255, got .*; save it"
    ):
        read_image(path)


def test_large_integers_are_rejected(tmp_path):
    path = tmp_path / "large.tif"
    Image.fromarray(np.array([[0, 70000]], np.int32)).save(path)
    with pytest.raises(
        SightlineError, match=r"large.tif must have gray values from 0 to 65535, got 0 to 70000; save it"
    ):
        read_image(path)


@pytest.mark.parametrize("form", ["png", "tif", "webp", "jpg"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_exif_orientation_is_applied(orientation, form, tmp_path):
    y, x = np.mgrid[0:24, 0:40]
    upright = Image.fromarray((3 * x + 5 * y).astype(np.uint8))
    undo = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # inverse of each transposition
    stored = upright if orientation == 1 else upright.transpose(Image.Transpose(undo[orientation]))
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / f"photo.{form}"
    stored.save(path, exif=exif, **{"webp": {"lossless": True}, "jpg": {"quality": 100}}.get(form, {}))
    for size in (None, 16):
        actual, expected = read_image(path, size=size, channels=1), read_image(upright, size=size)
        assert actual.shape == expected.shape
        assert (actual.int() - expected.int()).abs().max() <= (3 if form == "jpg" else 1 if form == "webp" else 0)
    assert read_header(path) == (40, 24, form == "webp")  # WebP is always in color


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_damaged_exif_is_ignored(tmp_path):
    path = tmp_path / "photo.jpg"
    Image.fromarray(color_array()).save(path, exif=b"Exif\x00\x00II*\x00\xff\xff\xff\x7f garbage")
    assert read_image(path).shape == (3, H, W)


def test_the_first_frame_of_an_animation_is_read():
    frames = [Image.new("L", (W, H), shade) for shade in (10, 200)]
    for form in ("GIF", "PNG", "WEBP"):
        data = encode(
            frames[0], form, save_all=True, append_images=frames[1:], **({"lossless": True} if form == "WEBP" else {})
        )
        assert set(read_image(data, channels=1).unique().tolist()) == {10}


def test_size_crops_the_center_square():
    array = np.zeros((10, 30), np.uint8)
    array[:, 10:20] = 200
    assert read_image(array, size=10).eq(200).all()
    assert read_image(array.T.copy(), size=10).eq(200).all()
    assert read_image(array, size=4).shape == (1, 4, 4)


def test_downscaling_is_antialiased():
    board = (np.indices((64, 64)).sum(0) % 2 * 255).astype(np.uint8)
    small = read_image(board, size=8)
    assert (small.float() - 127.5).abs().max() < 4


def test_an_image_of_the_right_size_is_not_resampled():
    array = color_array(5, 5)
    assert torch.equal(read_image(array, size=5), torch.from_numpy(array).permute(2, 0, 1))


def test_an_extreme_aspect_ratio_is_cropped_before_resizing():
    assert read_image(np.full((1, 1_000_000), 7, np.uint8), size=64).eq(7).all()


def test_reduced_jpeg_decoding_is_close_to_full_decoding():
    y, x = np.mgrid[0:640, 0:800]
    array = np.stack((y % 256, x % 256, (x + y) // 6 % 256), -1).astype(np.uint8)
    smooth = Image.fromarray(array).resize((80, 64)).resize((800, 640), Image.Resampling.BICUBIC)
    data = encode(smooth, "JPEG", quality=95)
    reduced = read_image(data, size=32).float()
    full = read_image(read_image(data), size=32).float()
    assert (reduced - full).abs().mean() < 2


def test_a_pil_image_is_not_modified():
    image = Image.open(io.BytesIO(encode(Image.fromarray(color_array(640, 640)), "JPEG")))
    read_image(image, size=16)
    assert image.size == (640, 640)


@pytest.mark.parametrize("form", ["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM"])
def test_truncated_files_are_reported(form, tmp_path):
    whole = encode(Image.fromarray(color_array(40, 40)), form)
    path = tmp_path / "truncated.img"
    for share in (0.01, 0.1, 0.5, 0.9):
        path.write_bytes(whole[: int(len(whole) * share)])
        with pytest.raises(SightlineError, match=r"truncated\.img must be a complete PNG, .*, got .*; \w+ or"):
            read_image(path)
        if share >= 0.5:
            with pytest.raises(
                SightlineError, match=r"got a file that is cut off; copy or download it again, or remov"
            ):
                read_image(path)


@pytest.mark.parametrize("form", ["PNG", "GIF", "AVIF"])
def test_a_file_with_the_start_of_an_image_is_not_called_another_format(form):
    whole = encode(Image.fromarray(color_array(40, 40)), form)
    with pytest.raises(SightlineError, match=r"got a file that is cut off or damaged; replace or remove the file"):
        read_image(whole[:12])


def test_empty_files_are_reported(tmp_path):
    path = tmp_path / "empty.png"
    path.touch()
    for read in (read_image, read_header):
        with pytest.raises(SightlineError, match=r"empty\.png must be .*, got an empty file \(0 bytes\); copy or"):
            read(path)
    with pytest.raises(SightlineError, match=r"a\.png must be .*, got an empty file \(0 bytes\); copy or download it"):
        read_header(b"", "a.png")


def test_damaged_files_are_read_or_reported():
    random = np.random.default_rng(0)
    for form in ("PNG", "JPEG", "GIF", "TIFF", "WEBP"):
        whole = np.frombuffer(encode(Image.fromarray(color_array(20, 20)), form), np.uint8)
        for _ in range(60):
            broken = whole.copy()
            broken[random.integers(0, len(whole), 4)] = random.integers(0, 256, 4)
            try:
                image = read_image(broken.tobytes(), size=8, channels=3)
            except SightlineError as error:
                assert "the image must" in str(error)  # noqa: PT017
            else:
                assert image.shape == (3, 8, 8)


def test_files_that_are_not_images_are_reported(tmp_path):
    (tmp_path / "notes.png").write_text("not an image")
    with pytest.raises(SightlineError, match=r"notes.png must be a complete PNG, .*got another format; replace"):
        read_image(tmp_path / "notes.png")
    with pytest.raises(SightlineError, match=r"must be a file, got .*gone.png', which does not exist"):
        read_image(tmp_path / "gone.png")
    with pytest.raises(SightlineError, match=r"must be a file, got .*, which is a folder; pass a list"):
        read_image(tmp_path)


def test_formats_that_start_programs_are_not_opened(tmp_path):
    Image.fromarray(color_array()).save(tmp_path / "page.eps")
    with pytest.raises(SightlineError, match=r"page.eps must be a complete PNG"):
        read_image(tmp_path / "page.eps")


@pytest.mark.parametrize(("side", "got"), [(9_500, "9500 x 9500"), (20_000, "over 178,956,970")])
def test_the_pixel_limit_replaces_that_of_pillow(tmp_path, recwarn, side, got):
    path = tmp_path / "vast.pbm"
    path.write_bytes(f"P4 {side} {side}\n".encode())  # only the header is read
    for call in (read_image, read_header):
        with pytest.raises(SightlineError, match=f"vast.pbm must have 1 to 80,000,000 pixels, got {got}"):
            call(path)
    assert not recwarn


def test_limits_are_checked_before_decoding(tmp_path, monkeypatch):
    path = tmp_path / "a.png"
    Image.fromarray(color_array()).save(path)
    monkeypatch.setattr(limits, "MAX_IMAGE_PIXELS", 76)
    for call in (read_image, read_header):
        with pytest.raises(SightlineError, match=r"a.png must have 1 to 76 pixels, got 11 x 7; resize it"):
            call(path)
    monkeypatch.setattr(limits, "MAX_IMAGE_BYTES", 20)
    with pytest.raises(SightlineError, match=r"a.png must be at most 20 bytes, got \d+"):
        read_image(path)
    with pytest.raises(SightlineError, match=r"the image must be at most 20 bytes, got \d+"):
        read_image(path.read_bytes())


def test_a_small_file_with_a_huge_declared_size_is_rejected():
    whole = bytearray(encode(Image.new("L", (8, 8))))
    whole[16:24] = (60_000).to_bytes(4, "big") * 2  # width and height in the header of a PNG
    whole[29:33] = zlib.crc32(whole[12:29]).to_bytes(4, "big")
    with pytest.raises(SightlineError, match=r"the image must"):
        read_image(bytes(whole))


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "LA", "I;16"])
def test_the_header_has_size_and_color(mode, tmp_path):
    image = Image.new(mode, (W, H))
    image.save(tmp_path / "a.png")
    assert read_header(tmp_path / "a.png") == (W, H, mode in ("P", "RGB", "RGBA"))


def test_pixels_in_flight_are_limited_over_all_threads(tmp_path, monkeypatch):
    """Eight threads that decode 80 megapixels each would take more than 10 GB."""
    for i in range(12):
        Image.new("RGB", (10, 10), (i, 0, 0)).save(tmp_path / f"{i}.png")
    lock, active, peak = threading.Lock(), 0, 0
    original = PngImageFile.load

    def load(image):
        nonlocal active, peak
        with lock:
            active += 1
            peak = max(peak, active)
        time.sleep(0.05)
        try:
            return original(image)
        finally:
            with lock:
                active -= 1

    monkeypatch.setattr(PngImageFile, "load", load)
    monkeypatch.setattr(limits, "MAX_DECODING_PIXELS", 250)
    images = ImageFiles(tuple(list_images(tmp_path)), torch.zeros(12, dtype=torch.int64), ("a",), 10, 3)
    assert len(images.load()) == 12
    assert peak == 2
    monkeypatch.setattr(limits, "MAX_DECODING_PIXELS", 50)  # a single image is always decoded
    assert len(images.load()) == 12


def test_folders_are_expanded_to_their_images(tmp_path):
    for name in ("b.png", "a.jpg", "notes.txt", ".hidden.png"):
        (tmp_path / name).write_bytes(b"")
    assert expand_image_paths([str(tmp_path), "x.png"]) == [tmp_path / "a.jpg", tmp_path / "b.png", Path("x.png")]
    (tmp_path / "empty" / "inside").mkdir(parents=True)
    [empty] = expand_image_paths([str(tmp_path / "empty")])
    with pytest.raises(SightlineError, match=r"got none in '.*empty'"):
        read_image(empty)

import re
from pathlib import Path

from PIL import Image

from sightline.data.images.class_splits import load_classes
from sightline.data.images.loading import load
from sightline.demo import characters


def test_class_folders_and_queries_are_written(tmp_path):
    folder, queries = characters.write_images(tmp_path)
    named = re.findall(
        r"@demo/(\S+\.png)", (Path(__file__).parents[2] / "docs" / "serve.md").read_text(encoding="utf-8")
    )
    assert named
    assert all((tmp_path / name).is_file() for name in named)
    assert folder == tmp_path / "characters"
    classes = sorted(path.name for path in folder.iterdir())
    assert len(classes) == characters.WAY
    assert all(
        sorted(p.name for p in (folder / name).iterdir()) == [f"{i + 1}.png" for i in range(5)] for name in classes
    )
    assert not set(classes) & set(load("glyphs").train.classes)  # the same names would be other characters
    known = [query for query in queries if query.label]
    assert sorted({query.label for query in known}) == classes
    assert len(known) == characters.WAY * characters.QUERIES
    assert all(query.path.name.startswith(f"{query.label}-") for query in known)
    assert len(queries) - len(known) == 40 - characters.WAY  # one image of each other character
    files = {path: path.read_bytes() for path in sorted(tmp_path.rglob("*.png"))}
    assert len(set(files.values())) == len(files) == len(queries) + characters.WAY * characters.SHOT
    assert {query.path for query in queries} < set(files)


def test_images_are_of_the_test_split():
    splits, images = load_classes("glyphs"), characters.load_test_images(28)
    assert len(images.classes) == 40
    assert not set(images.classes) & {*splits.train.classes, *splits.validation.classes}
    assert characters.load_test_images(11).pixels.shape == (400, 1, 11, 11)


def test_braille_dots_are_at_dark_pixels(tmp_path):
    image = Image.new("L", (16, 16), 255)
    image.paste(0, (0, 0, 2, 16))  # the first column of dots
    image.paste(0, (14, 14, 16, 16))  # the last dot
    image.save(tmp_path / "ink.png")
    assert characters.to_braille(tmp_path / "ink.png", lines=2) == "⡇⠀⠀⠀\n⡇⠀⠀⢀"

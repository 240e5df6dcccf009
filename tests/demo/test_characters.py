from PIL import Image

from sightline.data.images.class_splits import load_classes
from sightline.demo import characters


def test_characters_are_written_as_a_user_has_them(tmp_path):
    folder, questions = characters.write(tmp_path)
    assert folder == tmp_path / "characters"
    homes = sorted(path.name for path in folder.iterdir())
    assert len(homes) == characters.CHARACTERS
    assert all(sorted(p.name for p in (folder / name).iterdir()) == ["1.png", "2.png", "3.png"] for name in homes)
    known = [question for question in questions if question.truth]
    assert sorted({question.truth for question in known}) == homes
    assert len(known) == characters.CHARACTERS * characters.ASKED
    assert all(question.path.name.startswith(f"{question.truth}-") for question in known)
    assert len(questions) - len(known) == 40 - characters.CHARACTERS  # one of every other character
    pictures = {path: path.read_bytes() for path in sorted(tmp_path.rglob("*.png"))}
    assert len(set(pictures.values())) == len(pictures) == len(questions) + characters.CHARACTERS * characters.SHOT
    assert {question.path for question in questions} < set(pictures)


def test_they_are_of_alphabets_that_nothing_is_trained_or_chosen_by():
    splits, unseen = load_classes("glyphs"), characters.unseen(28)
    assert len(unseen.classes) == 40
    assert not set(unseen.classes) & {*splits.train.classes, *splits.validation.classes}
    assert characters.unseen(11, 3).pixels.shape == (800, 3, 11, 11)


def test_dots_are_where_the_ink_is(tmp_path):
    image = Image.new("L", (16, 16), 255)
    image.paste(0, (0, 0, 2, 16))  # the first column of dots
    image.paste(0, (14, 14, 16, 16))  # the last dot
    image.save(tmp_path / "ink.png")
    assert characters.dots(tmp_path / "ink.png", lines=2) == "⡇⠀⠀⠀\n⡇⠀⠀⢀"

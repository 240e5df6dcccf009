import pytest

from sightline.config import build
from sightline.data.text.corpora import MonolingualText, load_monolingual, split
from sightline.data.text.generated_sentences import TOPICS, sentences
from sightline.data.text.groups import split_groups
from sightline.data.text.labeled import LabeledText, labeled_files, load_labeled
from sightline.errors import SightlineError, SightlineWarning
from sightline.tasks.text_classification.config import LabeledData


def test_labeled_text_is_read_from_a_file_and_a_folder(tmp_path):
    table = tmp_path / "train.tsv"
    table.write_text("one text\ta\n\t\nanother\tb\n", encoding="utf-8")
    (tmp_path / "test.tsv").write_text("third\tb\n", encoding="utf-8")
    text = load_labeled(table).train
    assert (text.texts, text.labels, text.classes, text.num_dropped) == (
        ("one text", "another"),
        ("a", "b"),
        ("a", "b"),
        1,
    )
    splits = load_labeled(tmp_path)
    assert splits.train == text
    assert splits.test.texts == ("third",)
    assert labeled_files(tmp_path) == {"train": {table.resolve()}, "test": {(tmp_path / "test.tsv").resolve()}}
    assert load_labeled(table, columns=(2, 1)).train.labels == ("one text", "another")
    with pytest.raises(SightlineError, match="labeled text must be a tab-separated file, or a folder with"):
        load_labeled(tmp_path / "missing.tsv")
    (tmp_path / "train.tsv").write_text("no label\n", encoding="utf-8")
    with pytest.raises(SightlineError, match=r"line 1 of .* must have at least 2 columns"):
        load_labeled(tmp_path)


def test_equal_texts_are_never_in_two_sets():
    text = LabeledText(tuple(f"t{i % 10}" for i in range(40)), ("a", "b") * 20)
    rest, held_out = split(text, 0.3, seed=1)
    assert not {*rest.texts} & {*held_out.texts}
    assert len(rest) + len(held_out) == 40


def test_generated_sentences_are_distinct_and_deterministic():
    texts, topics = sentences(300)
    assert len({*texts}) == 300
    assert {*topics} == {*TOPICS}
    assert sentences(300) == (texts, topics)
    assert load_labeled("sentences").train.texts == load_monolingual("sentences").train.sentences
    assert all(text[0].isupper() and text.endswith(".") for text in texts)


def test_groups_of_lines_are_held_out_together():
    stride, repeats = 29, 5
    lines = [f"caption {i % stride} {i // stride}" for i in range(stride * repeats)]
    splits = split_groups(MonolingualText(tuple(lines)), stride, 0.2, 0.1, seed=4)
    sets = [splits.train, splits.validation, splits.test]
    groups = [{lines.index(text) % stride for text in part.sentences} for part in sets]
    assert [len(group) for group in groups] == [20, 3, 6]
    assert not groups[0] & groups[1] | groups[0] & groups[2] | groups[1] & groups[2]
    with pytest.raises(SightlineError, match="a corpus must have no empty lines if group_stride is set"):
        split_groups(MonolingualText(("a", "b"), num_dropped=1), 2, 0.5, 0.0, seed=0)
    with pytest.raises(SightlineError, match=r"group_stride must divide the number of lines, 145, .*got 28; it is the"):
        split_groups(MonolingualText(tuple(lines)), stride - 1, 0.2, 0.1, seed=4)


def test_a_training_sentence_equal_to_a_held_out_one_is_left_out():
    lines = tuple(f"{'same' if i in (0, 1, 2) else i}" for i in range(30))
    for seed in range(5):
        splits = split_groups(MonolingualText(lines), 10, 0.3, 0.2, seed=seed)
        texts = [part.sentences for part in (splits.train, splits.validation, splits.test)]
        assert sum("same" in part for part in texts) == 1
        assert len(splits.train) + splits.train.num_dropped == 15


def test_labels_that_hardly_repeat_are_refused(tmp_path):
    path = tmp_path / "texts.tsv"
    path.write_text("".join(f"{'yes' if i % 2 else 'no'}\tThe answer is {i}.\n" for i in range(30)))
    with pytest.raises(SightlineError, match=r"column 1 of .* must be the text .* got 30 labels .*columns.*\[2,1\]"):
        LabeledData(source=str(path)).load(seed=0)
    assert LabeledData(source=str(path), columns=(2, 1)).load(seed=0).train.classes == ("no", "yes")
    path.write_text("".join(f"Question {i}?\tThe answer is {i}.\n" for i in range(30)))
    with pytest.raises(SightlineError, match=r"labels must repeat, got 30 labels of 30 texts in .*texts\.tsv"):
        LabeledData(source=str(path)).load(seed=0)
    path.write_text("".join(f"Question {i}?\tclass {i // 2}\n" for i in range(25)))
    assert len(LabeledData(source=str(path), validation_fraction=0).load(seed=0).train.classes) == 13


def test_header_is_skipped(tmp_path):
    path = tmp_path / "texts.tsv"
    path.write_text("Sentence\tLabel\n" + "".join(f"The answer is {i}.\t{'yn'[i % 2]}\n" for i in range(30)))
    with pytest.warns(SightlineWarning, match="first line of .* looks like a header, 'Sentence' and 'Label'; it is sk"):
        assert LabeledData(source=str(path)).load(seed=0).train.classes == ("n", "y")
    assert LabeledData(source=str(path), header=True).load(seed=0).train.classes == ("n", "y")


def test_columns_are_numbers():
    with pytest.raises(
        SightlineError, match=r"columns\[0\] must be the number of a column, counted from 1, got 'text'"
    ):
        build(LabeledData, {"columns": ["text", "label"]})

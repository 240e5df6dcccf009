import gzip

import pytest

from sightline import limits
from sightline.data.text import number_words
from sightline.data.text.corpora import (
    MonolingualText,
    ParallelText,
    extend_training,
    load_monolingual,
    load_parallel,
    source_files,
    split,
)
from sightline.errors import SightlineError

GERMAN, ENGLISH = ["Geh.", "Guten Abend!", "Na\u2028so\x85was?"], ["Go.", "Good evening!", "Well, well."]


def write(path, lines, end="\n"):
    data = "".join(line + end for line in lines).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def write_aligned(folder, name, german=GERMAN, english=ENGLISH, suffix=""):
    folder.mkdir(exist_ok=True)
    write(folder / f"{name}.de{suffix}", german)
    write(folder / f"{name}.en{suffix}", english)
    return folder / name


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_aligned_files_are_read(tmp_path, suffix):
    pairs = load_parallel(write_aligned(tmp_path, "train", suffix=suffix)).train
    assert pairs.source == tuple(GERMAN)
    assert pairs.target == tuple(ENGLISH)
    assert load_parallel(tmp_path / "train", languages=("en", "de")).train.source == tuple(ENGLISH)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_columns_of_a_table_are_selected_by_number(tmp_path, suffix):
    lines = [f"{e}\tnote\t{d}" for d, e in zip(GERMAN, ENGLISH, strict=True)]
    path = write(tmp_path / f"pairs.tsv{suffix}", ["english\tnotes\tdeutsch", *lines], end="\r\n")
    pairs = load_parallel(path, columns=(3, 1), header=True).train
    assert (pairs.source, pairs.target) == (tuple(GERMAN), tuple(ENGLISH))
    assert len(load_parallel(path, columns=(3, 1)).train) == 4


def test_splits_of_a_folder_are_found_by_name(tmp_path):
    write_aligned(tmp_path, "train")
    write_aligned(tmp_path, "val", GERMAN[:2], ENGLISH[:2])
    write(tmp_path / "test_2016_flickr.tsv", ["Geh.\tGo."])
    write(tmp_path / "notes.md", ["not a corpus"])
    splits = load_parallel(tmp_path)
    assert [len(part) for part in (splits.train, splits.validation, splits.test)] == [3, 2, 1]
    write(tmp_path / "test_2017.tsv", ["Geh.\tGo."])
    with pytest.raises(SightlineError, match=r"one test set, got test_2016_flickr.tsv, test_2017.tsv; .* RUN --data"):
        load_parallel(tmp_path)
    write(tmp_path / "test.tsv", ["Geh.\tGo.", "Geh!\tGo!"])
    assert len(load_parallel(tmp_path).test) == 2


def test_pairs_with_an_empty_side_are_dropped_and_counted(tmp_path):
    pairs = load_parallel(
        write_aligned(tmp_path, "train", [*GERMAN, "", " ", "Ja."], [*ENGLISH, "x", "", "Yes."])
    ).train
    assert (len(pairs), pairs.num_dropped, pairs.source[-1]) == (4, 2, "Ja.")
    pairs = load_parallel(write(tmp_path / "pairs.tsv", ["Geh.\tGo.", "", "Ja.\t "])).train
    assert (len(pairs), pairs.num_dropped) == (1, 2)
    with pytest.raises(SightlineError, match=r"empty.tsv must contain at least one pair of sentences, got none"):
        load_parallel(write(tmp_path / "empty.tsv", ["\t", "\t"]))


def test_aligned_files_of_different_lengths_are_rejected(tmp_path):
    with pytest.raises(SightlineError, match=r"train.de and train.en must have the same number of lines, got 3 and 2"):
        load_parallel(write_aligned(tmp_path, "train", english=ENGLISH[:2]))


def test_a_line_with_too_few_columns_is_reported(tmp_path):
    message = r"line 2 of .*pairs.tsv must have .* 2 columns separated by tabs, got 1: 'Guten Abend!'"
    with pytest.raises(SightlineError, match=message):
        load_parallel(write(tmp_path / "pairs.tsv", ["Geh.\tGo.", "Guten Abend!"]))
    with pytest.raises(SightlineError, match=r"line 2 of .* at least 3 columns separated by tabs, got 2"):
        load_parallel(write(tmp_path / "pairs.tsv", ["a\tb", "Geh.\tGo."]), columns=(1, 3), header=True)


def test_missing_parallel_text_is_reported(tmp_path):
    with pytest.raises(SightlineError, match=r"must contain train.de and train.en, or train.tsv, got neither"):
        load_parallel(tmp_path)
    with pytest.raises(SightlineError, match=r"two aligned files without their suffixes .de and .en, got .* none of"):
        load_parallel(tmp_path / "nothing")
    write(tmp_path / "train.de", GERMAN)
    for path in (tmp_path, tmp_path / "train"):
        with pytest.raises(SightlineError, match=r"train.de and train.en must both exist, got no .en in"):
            load_parallel(path)


def test_source_files_are_resolved(tmp_path):
    write_aligned(tmp_path / "data", "train")
    (tmp_path / "link").symlink_to(tmp_path / "data")
    files = frozenset({tmp_path / "data/train.de", tmp_path / "data/train.en"})
    for source in ("data", "data/train", "link", "link/train"):
        assert source_files(tmp_path / source) == {"train": files}
    assert source_files(tmp_path / "nothing") == {"train": frozenset()}


def test_extra_pairs_with_a_held_out_target_are_excluded():
    train = ParallelText(("Geh.",), ("Go.",), num_dropped=2)
    extra = [ParallelText(("Lauf!", "Na?"), ("Run!", "Well?"), num_dropped=1), ParallelText(("He!",), ("Hey!",))]
    held_out = [ParallelText(("Und?",), (" WELL? ",)), ParallelText(("x",), ("y",))]
    extended = extend_training(train, extra, held_out)
    assert (extended.source, extended.target) == (("Geh.", "Lauf!", "He!"), ("Go.", "Run!", "Hey!"))
    assert extended.num_dropped == 3


def test_no_target_sentence_is_in_both_parts_of_a_split():
    targets = [f"sentence {i // 3}" + ("  " if i % 2 else "") for i in range(60)]
    pairs = ParallelText(tuple(f"satz {i}" for i in range(60)), tuple(targets))
    train, held_out = split(pairs, 0.25, seed=3)
    assert (len(train), len(held_out)) == (45, 15)
    assert not {" ".join(t.split()) for t in train.target} & {" ".join(t.split()) for t in held_out.target}
    assert split(pairs, 0.25, seed=3)[1] == held_out
    assert split(pairs, 0.25, seed=4)[1] != held_out
    with pytest.raises(SightlineError, match="at least 2 different sentences to be split, got 1"):
        split(ParallelText(("a", "b"), ("c", "C ")), 0.5, seed=0)


def test_splits_are_those_of_earlier_versions():
    train = load_parallel("numbers").train
    digests = {part.digest()[:16] for part in split(train, 0.02, seed=5)}
    assert digests == {"df0b9ab266efd97f", "a1968977bfd75e48"}


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_monolingual_text_is_read_from_a_file(tmp_path, suffix):
    path = write(tmp_path / f"text.txt{suffix}", [" One. ", "", "Two."])
    splits = load_monolingual(path)
    assert splits.train == MonolingualText(("One.", "Two."), num_dropped=1)
    assert splits.validation is splits.test is None


def test_monolingual_splits_of_a_folder_are_found_by_name(tmp_path):
    write(tmp_path / "train-1.txt", ["b"])
    write(tmp_path / "train-0.txt.gz", ["a"])
    write(tmp_path / "dev.txt", ["c"])
    write(tmp_path / "test_2016.txt", ["d"])
    write(tmp_path / "notes.txt", ["not for training"])
    splits = load_monolingual(tmp_path)
    assert [part.sentences for part in (splits.train, splits.validation, splits.test)] == [("a", "b"), ("c",), ("d",)]


def test_all_text_files_of_a_folder_are_the_training_set_if_none_is_named_train(tmp_path):
    for name in ("b", "a", "test"):
        write(tmp_path / f"{name}.txt", [name])
    write(tmp_path / "c.md", ["c"])
    splits = load_monolingual(tmp_path)
    assert (splits.train.sentences, splits.test.sentences) == (("a", "b"), ("test",))


def test_monolingual_text_is_limited(tmp_path, monkeypatch):
    for name in ("a", "b", "c"):
        write(tmp_path / f"{name}.txt", ["sentence"])
    monkeypatch.setattr(limits, "MAX_CORPUS_CHARS", 20)
    with pytest.raises(SightlineError, match=r"must have at most 20 characters in a split, got more"):
        load_monolingual(tmp_path)
    monkeypatch.setattr(limits, "MAX_TEXT_FILES", 2)
    with pytest.raises(SightlineError, match=r"must contain at most 2 text files, got 3"):
        load_monolingual(tmp_path)


def test_missing_monolingual_text_is_reported(tmp_path):
    with pytest.raises(SightlineError, match=r"must contain .txt or .txt.gz files for training, got none"):
        load_monolingual(tmp_path)
    with pytest.raises(SightlineError, match=r"must be a text file or a folder of .txt files, got .* does not exist"):
        load_monolingual(tmp_path / "nothing.txt")
    with pytest.raises(SightlineError, match=r"empty.txt must contain at least one sentence, got none"):
        load_monolingual(write(tmp_path / "empty.txt", ["", " "]))


def test_monolingual_text_is_split_by_sentence():
    text = MonolingualText(tuple(f"Sentence {i % 10}" for i in range(30)))
    train, held_out = split(text, 0.2, seed=0)
    assert (len(train), len(held_out)) == (24, 6)
    assert not set(train.sentences) & set(held_out.sentences)
    assert len({train.digest(), held_out.digest(), text.digest()}) == 3


@pytest.mark.parametrize(
    ("number", "german", "english"),
    [
        (0, "null", "zero"),
        (1, "eins", "one"),
        (16, "sechzehn", "sixteen"),
        (21, "einundzwanzig", "twenty-one"),
        (70, "siebzig", "seventy"),
        (101, "einhunderteins", "one hundred one"),
        (1000, "eintausend", "one thousand"),
        (21_317, "einundzwanzigtausenddreihundertsiebzehn", "twenty-one thousand three hundred seventeen"),
    ],
)
def test_numbers_are_spelled_out(number, german, english):
    assert number_words.german(number) == german
    assert number_words.english(number) == english


def test_the_builtin_corpus_has_distinct_numbers():
    splits = load_parallel("numbers")
    parts = [splits.train, splits.validation, splits.test]
    assert [len(part) for part in parts] == [6000, 300, 500]
    assert len({source for part in parts for source in part.source}) == 6800
    assert splits.train.digest() == load_parallel("numbers").train.digest() != splits.test.digest()
    assert load_monolingual("numbers").test.sentences == splits.test.target
    with pytest.raises(SightlineError, match="number must be at most 999,999, got 1000000"):
        number_words.german(1_000_000)

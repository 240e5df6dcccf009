import gzip

import pytest

from sightline.data.text import corpora as text
from sightline.data.text import number_words
from sightline.data.text.corpora import Pairs, joined, load, split
from sightline.data.text.lines import MOST_CHARACTERS, read_lines

GERMAN, ENGLISH = ["Geh.", "Guten Abend!", "Na\u2028so\x85was?"], ["Go.", "Good evening!", "Well, well."]


def write(path, lines, end="\n"):
    data = "".join(line + end for line in lines).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def aligned(folder, name, german=GERMAN, english=ENGLISH, packed=""):
    folder.mkdir(exist_ok=True)
    write(folder / f"{name}.de{packed}", german)
    write(folder / f"{name}.en{packed}", english)
    return folder / name


@pytest.mark.parametrize("packed", ["", ".gz"])
def test_two_aligned_files_are_read_side_by_side(tmp_path, packed):
    pairs = load(aligned(tmp_path, "train", packed=packed)).train
    assert pairs.source == tuple(GERMAN)
    assert pairs.target == tuple(ENGLISH)
    assert load(tmp_path / "train", languages=("en", "de")).train.source == tuple(ENGLISH)


@pytest.mark.parametrize("packed", ["", ".gz"])
def test_the_columns_of_a_table_are_chosen_by_number(tmp_path, packed):
    lines = [f"{e}\tnote\t{d}" for d, e in zip(GERMAN, ENGLISH, strict=True)]
    path = write(tmp_path / f"pairs.tsv{packed}", ["english\tnotes\tdeutsch", *lines], end="\r\n")
    pairs = load(path, columns=(3, 1), header=True).train
    assert (pairs.source, pairs.target) == (tuple(GERMAN), tuple(ENGLISH))
    assert len(load(path, columns=(3, 1)).train) == 4


def test_a_folder_has_its_parts_by_name(tmp_path):
    aligned(tmp_path, "train")
    aligned(tmp_path, "val", GERMAN[:2], ENGLISH[:2])
    write(tmp_path / "test_2016_flickr.tsv", ["Geh.\tGo."])
    write(tmp_path / "notes.md", ["not a corpus"])
    splits = load(tmp_path)
    assert [len(part) for part in (splits.train, splits.validation, splits.test)] == [3, 2, 1]
    write(tmp_path / "test_2017.tsv", ["Geh.\tGo."])
    with pytest.raises(ValueError, match=r"one test set, got test_2016_flickr.tsv, test_2017.tsv; .* RUN --data"):
        load(tmp_path)
    write(tmp_path / "test.tsv", ["Geh.\tGo.", "Geh!\tGo!"])
    assert len(load(tmp_path).test) == 2


def test_pairs_with_an_empty_side_are_left_out_and_counted(tmp_path):
    pairs = load(aligned(tmp_path, "train", [*GERMAN, "", " ", "Ja."], [*ENGLISH, "x", "", "Yes."])).train
    assert (len(pairs), pairs.dropped, pairs.source[-1]) == (4, 2, "Ja.")
    pairs = load(write(tmp_path / "pairs.tsv", ["Geh.\tGo.", "", "Ja.\t "])).train
    assert (len(pairs), pairs.dropped) == (1, 2)
    with pytest.raises(ValueError, match=r"empty.tsv must hold at least one pair of sentences that are not empty"):
        load(write(tmp_path / "empty.tsv", ["\t", "\t"]))


def test_files_of_different_lengths_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"train.de and train.en must have as many lines, .* got 3 and 2"):
        load(aligned(tmp_path, "train", english=ENGLISH[:2]))


def test_a_line_without_tabs_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"line 2 of .*pairs.tsv must have .* 2 columns, .* got 1: 'Guten Abend!'"):
        load(write(tmp_path / "pairs.tsv", ["Geh.\tGo.", "Guten Abend!"]))
    with pytest.raises(ValueError, match=r"line 2 of .* at least 3 columns, separated by tabs, got 2"):
        load(write(tmp_path / "pairs.tsv", ["a\tb", "Geh.\tGo."]), columns=(1, 3), header=True)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_another_unicode_is_called_by_its_name(tmp_path, encoding):
    (tmp_path / "x.tsv").write_bytes("Geh.\tGo.\n".encode(encoding))
    with pytest.raises(ValueError, match=f"must be text in UTF-8, got {encoding.upper()}; convert it: iconv"):
        load(tmp_path / "x.tsv")


def test_what_is_not_utf_8_is_named_by_its_line(tmp_path):
    (tmp_path / "x.tsv").write_bytes("Geh.\tGo.\nGrüß Gott\tHi\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"UTF-8, got the byte 0xfc in line 2; if it is Latin-1"):
        load(tmp_path / "x.tsv")
    (tmp_path / "x.tsv").write_bytes(b"\xef\xbb\xbfGeh.\tGo.\n")
    assert load(tmp_path / "x.tsv").train.source == ("Geh.",)


def test_lines_and_files_have_an_end(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"line 2 of .* must be at most 100,000 characters, got 100,001"):
        load(write(tmp_path / "x.tsv", ["Geh.\tGo.", "x" * (MOST_CHARACTERS + 1)]))
    packed = write(tmp_path / "bomb.tsv.gz", ["a" * 99] * 100)
    monkeypatch.setattr("sightline.data.text.lines.MOST_BYTES", 5000)
    with pytest.raises(ValueError, match=r"bomb.tsv.gz must be at most 5,000 bytes of text, got more"):
        read_lines(packed)
    packed.write_bytes(packed.read_bytes()[:-9])
    monkeypatch.setattr("sightline.data.text.lines.MOST_BYTES", 1 << 20)
    with pytest.raises(ValueError, match="must be a whole gzip file"):
        read_lines(packed)


def test_what_is_no_corpus_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"must hold train.de and train.en, or train.tsv, got neither"):
        load(tmp_path)
    with pytest.raises(ValueError, match=r"or two aligned files less their endings .de and .en, got .* none of them"):
        load(tmp_path / "nothing")
    write(tmp_path / "train.de", GERMAN)
    for path in (tmp_path, tmp_path / "train"):
        with pytest.raises(ValueError, match=r"train.de and train.en must both be there, got no .en in"):
            load(path)


def test_pairs_of_one_s_own_join_the_others_unless_their_target_is_held_out():
    first = Pairs(("Geh.",), ("Go.",), dropped=2)
    more = [Pairs(("Lauf!", "Na?"), ("Run!", "Well?"), dropped=1), Pairs(("He!",), ("Hey!",))]
    both = joined(first, more, [Pairs(("Und?",), (" WELL? ",)), Pairs(("x",), ("y",))])
    assert (both.source, both.target) == (("Geh.", "Lauf!", "He!"), ("Go.", "Run!", "Hey!"))
    assert both.dropped == 3


def test_no_target_sentence_stands_on_both_sides_of_a_split():
    targets = [f"sentence {i // 3}" + ("  " if i % 2 else "") for i in range(60)]
    pairs = Pairs(tuple(f"satz {i}" for i in range(60)), tuple(targets))
    train, held = split(pairs, 0.25, seed=3)
    assert (len(train), len(held)) == (45, 15)
    assert not {" ".join(t.split()) for t in train.target} & {" ".join(t.split()) for t in held.target}
    assert split(pairs, 0.25, seed=3)[1] == held
    assert split(pairs, 0.25, seed=4)[1] != held
    with pytest.raises(ValueError, match="at least 2 different sentences to be divided, got 1"):
        split(Pairs(("a", "b"), ("c", "C ")), 0.5, seed=0)


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
def test_numbers_are_said_as_people_say_them(number, german, english):
    assert number_words.german(number) == german
    assert number_words.english(number) == english


def test_the_embedded_pair_holds_each_number_once():
    splits = text.load("numbers")
    parts = [splits.train, splits.validation, splits.test]
    assert [len(part) for part in parts] == [6000, 300, 500]
    assert len({source for part in parts for source in part.source}) == 6800
    assert splits.train.digest() == text.load("numbers").train.digest() != splits.test.digest()
    with pytest.raises(ValueError, match="number must be below 1,000,000, got 1,000,000"):
        number_words.german(1_000_000)

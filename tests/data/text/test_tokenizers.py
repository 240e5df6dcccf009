import json
import unicodedata

import pytest

from sightline.data.text.corpora import EOS, UNK, load
from sightline.data.text.tokenizers import BYTES, SPECIAL, Tokenizer, Tokens, learn

TEXTS = ["Der Hund läuft.", "Ein Hund, ein Mann und eine Frau!", "Die Frau läuft (im Park)."] * 5
STRANGE = ["좋은 저녁입니다. 👩‍👩‍👧", "<s> </s> <0x41> <pad>", '"E-Mail", 3,5 km/h', "a\u200db\x00c", "ﷺ \U0001d518"]


@pytest.fixture(scope="module")
def bpe():
    return learn(Tokens(size=400), TEXTS)


@pytest.mark.parametrize("text", [*TEXTS[:3], *STRANGE])
def test_with_bpe_every_text_comes_back_as_it_was(bpe, text):
    ids = bpe.encode([text])[0]
    assert min(ids) > UNK
    assert bpe.decode(ids) == text


@pytest.mark.parametrize("kind", ["bpe", "word", "character"])
def test_known_text_comes_back_with_its_spaces(kind):
    tokenizer = learn(Tokens(kind=kind, size=400), TEXTS)
    assert tokenizer.decode(tokenizer.encode(["  Der \t Hund,  ein\nPark! "])[0]) == "Der Hund, ein Park!"
    assert tokenizer.encode([" \n"]) == [[]]
    assert tokenizer.decode([0, 1, EOS]) == ""


def test_text_is_brought_to_one_form(bpe):
    apart = unicodedata.normalize("NFD", "läuft")
    assert bpe.encode([apart]) == bpe.encode(["läuft"])
    small = learn(Tokens(size=400, lowercase=True), TEXTS)
    assert small.decode(small.encode(["DER Hund LÄUFT"])[0]) == "der hund läuft"
    assert bpe.decode(bpe.encode(["a\ud800b"])[0]) == "a?b"


@pytest.mark.parametrize(("kind", "unknown"), [("word", 2), ("character", 6)])
def test_what_a_closed_vocabulary_lacks_is_said_to_be_unknown(kind, unknown):
    tokenizer = learn(Tokens(kind=kind, size=400), TEXTS)
    ids = tokenizer.encode(["Ein 좋은 Hund, 좋은좋은"])[0]
    assert tokenizer.unknown(ids) == unknown
    assert "<unk>" in tokenizer.decode(ids)
    assert kind != "word" or tokenizer.decode(ids) == "Ein <unk> Hund, <unk>"


def test_bytes_are_unknown_too(bpe):
    assert bpe.unknown(bpe.encode(["Hund 좋"])[0]) == 3
    assert bpe.names(bpe.encode(["Der Hund."])[0]) == ["Der", "Hund", "."]


@pytest.mark.parametrize("kind", ["bpe", "word", "character"])
def test_signs_that_nobody_has_learned_are_left_out(kind):
    tokenizer = learn(Tokens(kind=kind, size=400), [*TEXTS, "Ein Hund ☂"] * 2)
    family = "👩\u200d👩\u200d👧"
    assert tokenizer.without_signs(f"Der {family} Hund ❤\ufe0f läuft ☂.") == (
        "Der     Hund   läuft ☂.",
        f"{family}❤\ufe0f",
    )
    assert tokenizer.without_signs("\ufeffDer Hu\N{SOFT HYPHEN}nd") == ("Der Hund", "")
    assert tokenizer.without_signs("20°C, 2^8 ©") == ("20°C, 2^8 ©", "")
    assert tokenizer.without_signs("1\ufe0f\u20e3 Hund") == ("1 Hund", "")
    for text in ("Der Hund läuft.", "좋은 저녁", family, ""):
        assert tokenizer.without_signs(text) == (text, "")


@pytest.mark.parametrize("kind", ["bpe", "word", "character"])
def test_the_same_texts_give_the_same_vocabulary_and_a_file_gives_it_back(kind):
    how = Tokens(kind=kind, size=300)
    texts = load("numbers").train.target[:200]
    one, two = learn(how, texts), learn(how, texts)
    assert one.to_json() == two.to_json()
    again = Tokenizer.from_json(how, json.loads(one.to_json()))
    assert again.to_json() == one.to_json()
    assert again.encode(texts[:7]) == one.encode(texts[:7])
    assert len(one) <= 300


def test_the_most_frequent_words_are_kept():
    tokenizer = learn(Tokens(kind="word", size=6), ["b a", "b c", "c c c"])
    assert tokenizer.names(range(6)) == [*SPECIAL, "c", "b"]
    tokenizer = learn(Tokens(kind="word", size=9, min_frequency=2), ["b a", "b c", "c c c"])
    assert len(tokenizer) == 6


def test_a_file_of_the_library_is_kept(bpe):
    from tokenizers import Tokenizer as Theirs

    theirs = Theirs.from_str(bpe.to_json())
    assert theirs.encode("Ein Hund läuft.").ids == bpe.encode(["Ein Hund läuft."])[0]


def tamper(text, what):
    content = json.loads(text)
    model = content["model"]
    changes = {
        "no model": lambda: content.pop("model"),
        "another type": lambda: model.update(type="WordLevel"),
        "no vocabulary": lambda: model.pop("vocab"),
        "a list": lambda: model.update(vocab=["a"]),
        "ids that are no numbers": lambda: model["vocab"].update({"<pad>": "0"}),
        "an id twice": lambda: model["vocab"].update({"more": 5}),
        "a hole": lambda: model["vocab"].update({"more": 10**9}),
        "others first": lambda: model["vocab"].update({"<pad>": 1, "<s>": 0}),
        "bytes elsewhere": lambda: model["vocab"].update({BYTES[0]: 5, BYTES[1]: 4}),
        "unknown merges": lambda: model["merges"].append(["q", "zz"]),
        "merges that are none": lambda: model["merges"].append([1, 2]),
        "merges of three": lambda: model["merges"].append(["a", "b", "c"]),
    }
    if what is None:
        return list(changes)
    changes[what]()
    return content


@pytest.mark.parametrize("what", tamper('{"model": {}}', None))
def test_a_file_that_lies_is_refused(bpe, what):
    with pytest.raises(ValueError, match=r"tokenizer\.json must"):
        Tokenizer.from_json(bpe.how, tamper(bpe.to_json(), what), "tokenizer.json")


@pytest.mark.parametrize("content", [[], {}, {"model": 3}, None, {"model": {"vocab": {}, "merges": [3]}}])
def test_what_is_no_tokenizer_is_refused(bpe, content):
    with pytest.raises(ValueError, match="must be a tokenizer in JSON"):
        Tokenizer.from_json(bpe.how, content)


def test_rules_of_a_file_are_not_taken(bpe):
    content = json.loads(bpe.to_json())
    content["normalizer"] = {"type": "Replace", "pattern": {"Regex": "(a*)*b"}, "content": "x"}
    again = Tokenizer.from_json(bpe.how, content)
    assert again.to_json() == bpe.to_json()


def test_settings_are_checked():
    with pytest.raises(ValueError, match="size must be at least 262 for bpe, 256 of them for bytes, got 100"):
        Tokens(size=100)
    with pytest.raises(ValueError, match="size must be an integer of at least 5"):
        Tokens(kind="word", size=4)
    with pytest.raises(ValueError, match="min_frequency must be"):
        Tokens(min_frequency=0)

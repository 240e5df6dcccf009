import json
import unicodedata

import pytest

from sightline import config
from sightline.data.text.corpora import load_parallel
from sightline.data.text.tokenizers import BYTE_TOKENS, SpecialTokens, Tokenizer, TokenizerConfig, train_tokenizer
from sightline.errors import SightlineError

TEXTS = ["Der Hund läuft.", "Ein Hund, ein Mann und eine Frau!", "Die Frau läuft (im Park)."] * 5
UNUSUAL = ["좋은 저녁입니다. 👩‍👩‍👧", "<s> </s> <0x41> <pad>", '"E-Mail", 3,5 km/h', "a\u200db\x00c", "ﷺ \U0001d518"]
SPECIAL = SpecialTokens()
KINDS = ["bpe", "word", "character"]


@pytest.fixture(scope="module")
def bpe():
    return train_tokenizer(TokenizerConfig(vocab_size=400), TEXTS)


@pytest.mark.parametrize("text", [*TEXTS[:3], *UNUSUAL])
def test_bpe_restores_every_text(bpe, text):
    ids = bpe.encode([text])[0]
    assert min(ids) > SPECIAL.id("unk")
    assert bpe.decode(ids) == text


@pytest.mark.parametrize("kind", KINDS)
def test_decoding_restores_words_and_single_spaces(kind):
    tokenizer = train_tokenizer(TokenizerConfig(kind=kind, vocab_size=400), TEXTS)
    assert tokenizer.decode(tokenizer.encode(["  Der \t Hund,  ein\nPark! "])[0]) == "Der Hund, ein Park!"
    assert tokenizer.encode([" \n"]) == [[]]
    assert tokenizer.decode([SPECIAL.id("pad"), SPECIAL.id("bos"), SPECIAL.id("eos")]) == ""


def test_text_is_normalized(bpe):
    decomposed = unicodedata.normalize("NFD", "läuft")
    assert bpe.encode([decomposed]) == bpe.encode(["läuft"])
    lowercase = train_tokenizer(TokenizerConfig(vocab_size=400, lowercase=True), TEXTS)
    assert lowercase.decode(lowercase.encode(["DER Hund LÄUFT"])[0]) == "der hund läuft"
    assert bpe.decode(bpe.encode(["a\ud800b"])[0]) == "a?b"


@pytest.mark.parametrize(("kind", "num_unknown"), [("word", 2), ("character", 6)])
def test_tokens_outside_a_closed_vocabulary_are_unk(kind, num_unknown):
    tokenizer = train_tokenizer(TokenizerConfig(kind=kind, vocab_size=400), TEXTS)
    ids = tokenizer.encode(["Ein 좋은 Hund, 좋은좋은"])[0]
    assert tokenizer.count_unknown(ids) == num_unknown
    assert "<unk>" in tokenizer.decode(ids)
    assert kind != "word" or tokenizer.decode(ids) == "Ein <unk> Hund, <unk>"


def test_byte_tokens_count_as_unknown(bpe):
    assert bpe.count_unknown(bpe.encode(["Hund 좋"])[0]) == 3
    assert bpe.tokens(bpe.encode(["Der Hund."])[0]) == ["Der", "Hund", "."]


@pytest.mark.parametrize("kind", KINDS)
def test_unknown_symbols_are_removed(kind):
    tokenizer = train_tokenizer(TokenizerConfig(kind=kind, vocab_size=400), [*TEXTS, "Ein Hund ☂"] * 2)
    family = "👩\u200d👩\u200d👧"
    assert tokenizer.remove_unknown_symbols(f"Der {family} Hund ❤\ufe0f läuft ☂.") == (
        "Der     Hund   läuft ☂.",
        f"{family}❤\ufe0f",
    )
    assert tokenizer.remove_unknown_symbols("\ufeffDer Hu\N{SOFT HYPHEN}nd") == ("Der Hund", "")
    assert tokenizer.remove_unknown_symbols("20°C, 2^8 ©") == ("20°C, 2^8 ©", "")
    assert tokenizer.remove_unknown_symbols("1\ufe0f\u20e3 Hund") == ("1 Hund", "")
    for text in ("Der Hund läuft.", "좋은 저녁", family, ""):
        assert tokenizer.remove_unknown_symbols(text) == (text, "")


@pytest.mark.parametrize("kind", KINDS)
def test_training_is_deterministic_and_json_round_trips(kind):
    options = TokenizerConfig(kind=kind, vocab_size=300)
    texts = load_parallel("numbers").train.target[:200]
    first, second = train_tokenizer(options, texts), train_tokenizer(options, texts)
    assert first.to_json() == second.to_json()
    loaded = Tokenizer.from_json(options, json.loads(first.to_json()))
    assert loaded.to_json() == first.to_json()
    assert loaded.encode(texts[:7]) == first.encode(texts[:7])
    assert len(first) <= 300


def test_the_most_frequent_words_are_kept():
    texts = ["b a", "b c", "c c c"]
    tokenizer = train_tokenizer(TokenizerConfig(kind="word", vocab_size=6), texts)
    assert tokenizer.tokens(range(6)) == [*SPECIAL.tokens, "c", "b"]
    tokenizer = train_tokenizer(TokenizerConfig(kind="word", vocab_size=9, min_frequency=2), texts)
    assert len(tokenizer) == 6


def test_the_tokenizers_library_reads_the_json(bpe):
    from tokenizers import Tokenizer as LibraryTokenizer

    loaded = LibraryTokenizer.from_str(bpe.to_json())
    assert loaded.encode("Ein Hund läuft.").ids == bpe.encode(["Ein Hund läuft."])[0]


@pytest.mark.parametrize("kind", KINDS)
def test_declared_special_tokens_get_the_next_ids(kind):
    special = SpecialTokens(mask="<mask>", sep="[SEP]")
    assert special.tokens == (*SPECIAL.tokens, "<mask>", "[SEP]")
    assert special.ids == {"pad": 0, "bos": 1, "eos": 2, "unk": 3, "mask": 4, "sep": 5}
    assert special.suppressed_ids == (0, 1, 4, 5)
    assert [special.tokens[i] for i in special.control_ids] == ["<pad>", "<s>", "</s>", "[SEP]"]
    tokenizer = train_tokenizer(TokenizerConfig(kind=kind, vocab_size=400, special_tokens=special), TEXTS)
    assert tokenizer.tokens(range(6)) == [*special.tokens]
    ids = tokenizer.encode(["Der Hund"])[0]
    assert min(ids) > 5
    assert tokenizer.decode([*ids, special.id("mask"), special.id("eos"), 5]).replace(" ", "") == "DerHund<mask>"
    assert special.id("mask") not in tokenizer.encode(["<mask> [SEP]"])[0]
    loaded = Tokenizer.from_json(tokenizer.config, json.loads(tokenizer.to_json()))
    assert loaded.encode(TEXTS) == tokenizer.encode(TEXTS)
    with pytest.raises(SightlineError, match=r"must have <mask> with id 4, got"):
        Tokenizer.from_json(tokenizer.config, json.loads(train_tokenizer(TokenizerConfig(kind=kind), TEXTS).to_json()))


def test_special_tokens_are_declared_in_a_config():
    options = config.build(TokenizerConfig, {"special_tokens": {"mask": "<mask>"}})
    assert options.special_tokens.id("mask") == 4
    assert config.build(TokenizerConfig, config.plain(options)) == options


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ({"mask": "mask"}, r"mask must be a token in angle or square brackets, got 'mask'"),
        ({"cls": "<0x41>"}, r"cls must be a token in angle"),
        ({"sep": "<a b>"}, r"sep must be a token in angle"),
        ({"mask": "<s>"}, r"special tokens must be distinct, got <pad>, <s>, </s>, <unk>, <s>"),
    ],
)
def test_invalid_special_tokens_are_rejected(tokens, message):
    with pytest.raises(SightlineError, match=message):
        SpecialTokens(**tokens)


def test_an_undeclared_mask_token_has_no_id():
    with pytest.raises(SightlineError, match=r"special_tokens\.mask must be declared, got null; set it to <mask>"):
        SPECIAL.id("mask")


def edited(text, edit):
    content = json.loads(text)
    model = content["model"]
    edits = {
        "no model": lambda: content.pop("model"),
        "wrong type": lambda: model.update(type="WordLevel"),
        "no vocabulary": lambda: model.pop("vocab"),
        "vocabulary is a list": lambda: model.update(vocab=["a"]),
        "id is a string": lambda: model["vocab"].update({"<pad>": "0"}),
        "duplicate id": lambda: model["vocab"].update({"more": 5}),
        "gap in ids": lambda: model["vocab"].update({"more": 10**9}),
        "wrong special ids": lambda: model["vocab"].update({"<pad>": 1, "<s>": 0}),
        "wrong byte ids": lambda: model["vocab"].update({BYTE_TOKENS[0]: 5, BYTE_TOKENS[1]: 4}),
        "merge of unknown tokens": lambda: model["merges"].append(["q", "zz"]),
        "merge of integers": lambda: model["merges"].append([1, 2]),
        "merge of three": lambda: model["merges"].append(["a", "b", "c"]),
    }
    if edit is None:
        return list(edits)
    edits[edit]()
    return content


@pytest.mark.parametrize("edit", edited('{"model": {}}', None))
def test_inconsistent_json_is_rejected(bpe, edit):
    with pytest.raises(SightlineError, match=r"tokenizer\.json must"):
        Tokenizer.from_json(bpe.config, edited(bpe.to_json(), edit), "tokenizer.json")


@pytest.mark.parametrize("content", [[], {}, {"model": 3}, None, {"model": {"vocab": {}, "merges": [3]}}])
def test_json_of_another_form_is_rejected(bpe, content):
    with pytest.raises(SightlineError, match="must be a tokenizer in JSON"):
        Tokenizer.from_json(bpe.config, content)


def test_rules_in_json_are_ignored(bpe):
    content = json.loads(bpe.to_json())
    content["normalizer"] = {"type": "Replace", "pattern": {"Regex": "(a*)*b"}, "content": "x"}
    loaded = Tokenizer.from_json(bpe.config, content)
    assert loaded.to_json() == bpe.to_json()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vocab_size": 100}, "vocab_size must be at least 262 for bpe, which includes 256 byte tokens, got 100"),
        ({"kind": "word", "vocab_size": 4}, "vocab_size must be an integer of at least 5"),
        ({"vocab_size": 10**6}, "vocab_size must be at most 100,000"),
        ({"min_frequency": 0}, "min_frequency must be"),
    ],
)
def test_invalid_options_are_rejected(options, message):
    with pytest.raises(SightlineError, match=message):
        TokenizerConfig(**options)

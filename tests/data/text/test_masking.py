import pytest
import torch

from sightline.data.text.generated_sentences import sentences
from sightline.data.text.masking import TokenMasker
from sightline.data.text.tokenizers import SpecialTokens, TokenizerConfig, train_tokenizer

SPECIAL = SpecialTokens(pad="[PAD]", bos="[CLS]", eos="[SEP]", unk="[UNK]", mask="[MASK]")
TEXTS = sentences(400)[0]
ROWS, LENGTH = 211, 23


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TokenizerConfig(vocab_size=331, special_tokens=SPECIAL, lowercase=True), TEXTS)


def make_batch(tokenizer):
    ids = torch.randint(5, len(tokenizer), (ROWS, LENGTH))
    lengths = torch.randint(3, LENGTH + 1, (ROWS, 1))
    attention_mask = torch.arange(LENGTH) < lengths
    ids[:, 0] = 1
    ids.scatter_(1, lengths - 1, 2)
    return ids.where(attention_mask, 0), attention_mask


def make_masked(tokenizer, seed=3, **options):
    ids, attention_mask = make_batch(tokenizer)
    only_masks = options.pop("only_masks", False)
    masker = TokenMasker(tokenizer, **options)
    batch = masker.mask(ids, attention_mask, torch.Generator().manual_seed(seed), only_masks=only_masks)
    return ids, attention_mask, batch


def test_15_percent_of_the_tokens_are_chosen_and_replaced_80_10_10(tokenizer):
    counts = torch.zeros(4)
    for seed in range(20):
        ids, attention_mask, batch = make_masked(tokenizer, seed)
        is_chosen = batch.labels != -100
        assert (is_chosen.sum(1) >= 1).all()
        assert (batch.labels == ids.gather(1, batch.positions))[is_chosen].all()
        new = batch.tokens.gather(1, batch.positions)[is_chosen]
        is_mask, is_kept = new == 4, new == batch.labels[is_chosen]
        is_long = attention_mask.sum(1) > 12  # short rows have at least one
        counts += torch.tensor([is_mask.sum(), is_kept.sum(), len(new), 0])
        fraction = is_chosen[is_long].sum() / (attention_mask[is_long].sum() - 2 * is_long.sum())
        assert abs(fraction - 0.15) < 0.02
    assert abs(counts[0] / counts[2] - 0.8) < 0.02
    assert abs(counts[1] / counts[2] - 0.1) < 0.02


def test_special_tokens_and_padding_are_never_chosen_and_other_tokens_stay(tokenizer):
    ids, attention_mask, batch = make_masked(tokenizer)
    is_chosen = torch.zeros_like(attention_mask).scatter(1, batch.positions, batch.labels != -100)
    assert not is_chosen[~attention_mask | (ids < 5)].any()
    assert (batch.tokens == ids)[~is_chosen].all()
    assert (batch.tokens >= 4)[is_chosen].all()


def test_all_chosen_tokens_become_masks_on_request(tokenizer):
    _, _, batch = make_masked(tokenizer, only_masks=True)
    assert (batch.tokens.gather(1, batch.positions)[batch.labels != -100] == 4).all()


def test_masks_follow_from_the_seed_and_their_number_of_columns_from_the_length(tokenizer):
    masker, (ids, attention_mask) = TokenMasker(tokenizer), make_batch(tokenizer)
    first, same, other = (
        masker.mask(ids, attention_mask, torch.Generator().manual_seed(seed)).tokens for seed in (5, 5, 7)
    )
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    for rows in (1, 7):
        batch = masker.mask(ids[:rows], attention_mask[:rows], torch.Generator())
        assert batch.positions.shape == (rows, int(0.15 * LENGTH) + 1)
    assert batch.take(slice(2, 5)).labels.equal(batch.labels[2:5])


def test_whole_words_are_masked_with_all_of_their_tokens(tokenizer):
    ids = tokenizer.encode(["many puppies in yellow sweaters play happily behind the school."] * 97)
    tokens = torch.tensor([[1, *row, 2] for row in ids])
    mask = torch.ones_like(tokens, dtype=torch.bool)
    masker = TokenMasker(tokenizer, whole_words=True)
    batch = masker.mask(tokens, mask, torch.Generator().manual_seed(1), only_masks=True)
    starts = torch.tensor(tokenizer.word_starts())
    words = starts[tokens].cumsum(1)
    is_masked = batch.tokens == 4
    assert is_masked.sum() > 0
    assert (~starts[tokens][:, 1:-1]).any()  # some words have several tokens
    for row, word in zip(is_masked[:, 1:-1], words[:, 1:-1], strict=True):
        for number in word.unique():
            assert len(row[word == number].unique()) == 1


def test_the_first_word_of_a_character_tokenizer_is_a_word():
    config = TokenizerConfig(kind="character", special_tokens=SPECIAL, lowercase=True)
    tokenizer = train_tokenizer(config, TEXTS)
    [ids] = tokenizer.encode(["puppies in yellow sweaters play behind schools"])
    tokens = torch.tensor([[1, *ids, 2]] * 997)
    mask = torch.ones_like(tokens, dtype=torch.bool)
    batch = TokenMasker(tokenizer, whole_words=True).mask(tokens, mask, torch.Generator().manual_seed(1))
    is_chosen = torch.zeros_like(mask).scatter(1, batch.positions, batch.labels != -100)
    first = is_chosen[:, 1 : 1 + len("puppies")]
    assert (first.all(1) | ~first.any(1)).all()
    assert abs(float(first[:, 0].float().mean()) - 0.15) < 0.04


@pytest.mark.parametrize("kind", ["bpe", "word", "character"])
def test_masks_in_a_text_are_single_tokens(kind):
    config = TokenizerConfig(kind=kind, vocab_size=331, special_tokens=SPECIAL, lowercase=True)
    tokenizer = train_tokenizer(config, TEXTS)
    [ids] = tokenizer.encode_masked(["A man [MASK] in the [MASK]."])
    assert ids.count(4) == 2
    assert ids[-2] == 4  # the full stop is the token that it is after a word
    assert tokenizer.tokens(ids)[-1] == "."
    assert tokenizer.encode_masked(TEXTS[:9]) == tokenizer.encode(TEXTS[:9])
    start = tokenizer.encode(["a man"])[0]
    assert ids[: len(start)] == start

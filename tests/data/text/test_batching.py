import numpy as np
import pytest
import torch

from sightline.data.text.batching import IGNORE_INDEX, MULTIPLE, Buckets, Encoded
from sightline.data.text.corpora import BOS, EOS, PAD


@pytest.fixture
def encoded():
    random = np.random.default_rng(0)
    sizes = random.integers(1, 31, (211, 2))
    sides = [[list(range(4, 4 + n)) for n in sizes[:, side]] for side in range(2)]
    return Encoded(*sides)


def test_a_batch_has_beginnings_ends_and_filling():
    batch = Encoded([[5, 6, 7], [8]], [[9], [10, 11]]).batch(torch.tensor([1, 0]), (8, 8))
    assert batch.source[:, :5].tolist() == [[8, EOS, PAD, PAD, PAD], [5, 6, 7, EOS, PAD]]
    assert batch.real.sum(1).tolist() == [2, 4]
    assert batch.target[:, :4].tolist() == [[BOS, 10, 11, EOS], [BOS, 9, EOS, PAD]]
    assert batch.wanted[:, :4].tolist() == [[10, 11, EOS, IGNORE_INDEX], [9, EOS, IGNORE_INDEX, IGNORE_INDEX]]
    assert batch.source.shape == batch.target.shape == batch.wanted.shape == (2, 8)


def test_of_blank_rows_nothing_is_wanted():
    batch = Encoded([[5], [8]], [[9], [10]]).batch(torch.tensor([0, 1]), (8, 8), torch.tensor([False, True]))
    assert (batch.wanted != IGNORE_INDEX).sum(1).tolist() == [2, 0]


def test_every_pair_comes_once_an_epoch_within_the_budget(encoded):
    buckets = Buckets(encoded.shapes(), 256)
    order, cuts = buckets.epoch(np.random.default_rng(3))
    assert sorted(order) == list(range(211))
    assert sorted(cuts) == list(range(len(buckets)))
    seen = 0
    for rows, shape in buckets.cuts:
        own = order[rows]
        assert len(own) * max(shape) <= 256
        assert all(size % MULTIPLE == 0 for size in shape)
        assert encoded.source.lengths[own].max() <= shape[0] < encoded.source.lengths[own].max() + MULTIPLE
        assert encoded.target.lengths[own].max() - 1 <= shape[1]
        seen += len(own)
    assert seen == 211


def test_epochs_differ_in_company_and_order_but_not_in_shape(encoded):
    buckets = Buckets(encoded.shapes(), 256)
    one, two = (buckets.epoch(np.random.default_rng(seed)) for seed in (0, 1))
    assert not np.array_equal(one[0], two[0])
    assert not np.array_equal(one[1], two[1])
    assert np.array_equal(encoded.shapes()[one[0]], encoded.shapes()[two[0]])


def test_batches_waste_little_and_have_few_shapes(encoded):
    buckets = Buckets(encoded.shapes(), 512)
    filled = sum((rows.stop - rows.start) * shape[0] for rows, shape in buckets.cuts)
    assert encoded.source.lengths.sum() / filled > 0.6
    assert len({shape for _, shape in buckets.cuts}) <= 16


def test_a_budget_below_the_longest_sentence_is_refused(encoded):
    with pytest.raises(ValueError, match=r"batch_size counts tokens here, and must be at least .* 32, got 31"):
        Buckets(encoded.shapes(), 31)

import numpy as np
import pytest
import torch

from sightline.data.text.batching import IGNORE_INDEX, LENGTH_MULTIPLE, EncodedPairs, LengthBuckets
from sightline.data.text.tokenizers import SpecialTokens
from sightline.errors import SightlineError

PAD, BOS, EOS = (SpecialTokens().ids[name] for name in ("pad", "bos", "eos"))


@pytest.fixture
def encoded():
    generator = np.random.default_rng(0)
    lengths = generator.integers(1, 31, (211, 2))
    return EncodedPairs(*([list(range(4, 4 + n)) for n in lengths[:, side]] for side in range(2)), SpecialTokens())


def test_batches_have_bos_eos_and_padding():
    batch = EncodedPairs([[5, 6, 7], [8]], [[9], [10, 11]], SpecialTokens()).batch(torch.tensor([1, 0]), (8, 8))
    assert batch.source[:, :5].tolist() == [[8, EOS, PAD, PAD, PAD], [5, 6, 7, EOS, PAD]]
    assert batch.attention_mask.sum(1).tolist() == [2, 4]
    assert batch.target[:, :4].tolist() == [[BOS, 10, 11, EOS], [BOS, 9, EOS, PAD]]
    assert batch.labels[:, :4].tolist() == [[10, 11, EOS, IGNORE_INDEX], [9, EOS, IGNORE_INDEX, IGNORE_INDEX]]
    assert batch.source.shape == batch.target.shape == batch.labels.shape == (2, 8)


def test_a_batch_without_labels():
    encoded = EncodedPairs([[5], [8]], [[9], [10]], SpecialTokens())
    labeled, ignored = (encoded.batch(torch.tensor([0, 1]), (8, 8), labeled=labeled) for labeled in (True, False))
    assert [(batch.labels != IGNORE_INDEX).sum(1).tolist() for batch in (labeled, ignored)] == [[2, 2], [0, 0]]
    for name in ("source", "attention_mask", "target"):
        assert torch.equal(getattr(labeled, name), getattr(ignored, name))


def test_an_epoch_contains_every_pair_once_within_the_token_limit(encoded):
    buckets = LengthBuckets(encoded.shapes(), 256)
    sequence_order, batch_order = buckets.epoch(np.random.default_rng(3))
    assert sorted(sequence_order) == list(range(211))
    assert sorted(batch_order) == list(range(len(buckets)))
    count = 0
    for positions, shape in buckets.batches:
        indices = sequence_order[positions]
        longest = encoded.source.lengths[indices].max()
        assert len(indices) * max(shape) <= 256
        assert all(length % LENGTH_MULTIPLE == 0 for length in shape)
        assert longest <= shape[0] < longest + LENGTH_MULTIPLE
        assert encoded.target.lengths[indices].max() - 1 <= shape[1]
        count += len(indices)
    assert count == 211


def test_epochs_change_orders_but_not_shapes(encoded):
    buckets = LengthBuckets(encoded.shapes(), 256)
    first, second = (buckets.epoch(np.random.default_rng(seed)) for seed in (0, 1))
    assert not np.array_equal(first[0], second[0])
    assert not np.array_equal(first[1], second[1])
    assert np.array_equal(encoded.shapes()[first[0]], encoded.shapes()[second[0]])


def test_buckets_have_little_padding_and_few_shapes(encoded):
    buckets = LengthBuckets(encoded.shapes(), 512)
    padded = sum((positions.stop - positions.start) * shape[0] for positions, shape in buckets.batches)
    assert encoded.source.lengths.sum() / padded > 0.6
    assert len({shape for _, shape in buckets.batches}) <= 16


def test_buckets_take_sequences_with_one_side(encoded):
    buckets = LengthBuckets(encoded.shapes()[:, :1], 256)
    assert sum(positions.stop - positions.start for positions, _ in buckets.batches) == 211
    assert all(len(shape) == 1 for _, shape in buckets.batches)


def test_a_token_limit_below_the_longest_sentence_is_rejected(encoded):
    with pytest.raises(SightlineError, match=r"batch_size counts tokens and must be at least .* 32, got 31"):
        LengthBuckets(encoded.shapes(), 31)

"""Lines of a corpus that belong together, such as the captions of one image."""

import numpy as np

from ... import seeds
from ...errors import SightlineError, check, check_int
from .corpora import MonolingualText, TextSplits, normalized


def split_groups(
    corpus: MonolingualText, stride: int, test_fraction: float, validation_fraction: float, seed: int
) -> TextSplits[MonolingualText]:
    """Hold out random fractions of a corpus, by groups of lines.

    Lines i, i + stride, i + 2 * stride and so on are one group, which is never divided. A sentence that is equal, apart
    from case and spaces, to one of the test set is left out of the other sets, and one that is equal to one of the
    validation set is left out of the training set. `num_dropped` counts what is left out of the training set.
    """
    check_int(2, group_stride=stride)
    rule = "a corpus must have no empty lines if group_stride is set, which counts them"
    check(not corpus.num_dropped, f"{rule}, got {corpus.num_dropped:,}; fill or remove the group")
    rule = f"group_stride must divide the number of lines, {len(corpus):,}, so that every group has as many"
    fix = "it is the number of groups, such as images"
    check(len(corpus) % stride == 0, f"{rule}, got {stride:,}; {fix}")
    order = seeds.make_generator(seed, seeds.DATA).permutation(stride)
    group_of_line = np.arange(len(corpus)) % stride
    sets: list[MonolingualText | None] = []
    excluded: set[str] = set()
    for fraction in (test_fraction, validation_fraction, None):
        size = len(order) if fraction is None else min(max(round(fraction * stride), 1), stride - 1) if fraction else 0
        groups, order = order[:size], order[size:]
        lines = np.flatnonzero(np.isin(group_of_line, groups)).tolist()
        kept = [i for i in lines if normalized(corpus.sentences[i]) not in excluded]
        excluded |= {normalized(corpus.sentences[i]) for i in kept}
        texts = tuple(corpus.sentences[i] for i in kept)
        sets.append(MonolingualText(texts, num_dropped=len(lines) - len(kept)) if size else None)
    test, validation, train = sets
    if train is None:
        raise SightlineError(f"a corpus must have groups that are not held out, got {stride} groups")
    return TextSplits(train, validation, test)

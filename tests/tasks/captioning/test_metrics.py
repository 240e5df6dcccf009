import math

import pytest
from sacrebleu import sentence_bleu

from sightline.tasks.captioning.metrics import CiderD, SentenceBleu, bleu, chrf, equals_one, words

REFERENCES = [
    ["a dog runs across the wet sand", "a brown dog is running on the beach", "the dog runs along the sea"],
    ["two children play football in a park", "kids kick a ball on the grass", "two boys are playing with a ball"],
    ["a man rides a bicycle down a steep hill", "a cyclist goes down a hill", "a man on a bike"],
    ["a woman in a red coat waits for the bus", "a woman stands at a bus stop"],
]
CAPTIONS = [
    "a dog is running on the sand",
    "two boys play with a ball on the grass",
    "a man rides a bike down the street",
    "a cat sleeps on a sofa",
]


def test_cider_equals_a_published_implementation():
    # pycocoevalcap 1.2: Cider().compute_score on these sentences
    published = [2.5800367636036965, 2.759121981476305, 2.093049232732561, 0.0]
    cider = CiderD(REFERENCES)
    scores = [cider.score(*pair) for pair in zip(CAPTIONS, REFERENCES, strict=True)]
    assert scores == pytest.approx(published, abs=1e-12)
    assert cider.corpus_score(CAPTIONS, REFERENCES) == pytest.approx(1.8580519944531406, abs=1e-12)
    vectors = [cider.vector(text) for text in REFERENCES[0]]
    assert cider.score(CAPTIONS[0], vectors) == scores[0]


def test_bleu_ignores_case_and_punctuation_and_takes_any_number_of_references():
    scores = bleu(CAPTIONS, REFERENCES)
    assert list(scores) == sorted(scores, reverse=True)
    assert bleu([f"{text.upper()} ." for text in CAPTIONS], REFERENCES) == pytest.approx(scores)
    assert bleu([texts[-1] for texts in REFERENCES], REFERENCES) == pytest.approx((100, 100, 100, 100))


def test_words_and_chrf():
    assert words("A T-shirt, isn't it?") == ["a", "t", "shirt", "isn't", "it"]
    assert chrf([texts[0] for texts in REFERENCES], REFERENCES) == pytest.approx(100)


def test_captions_are_compared_by_their_words():
    assert equals_one("a dog , running .", ["Two cats", "A dog, running"])
    assert not equals_one("a dog", ["A dog, running"])


def test_bleu_of_a_sentence_is_smoothed():
    for caption, references in zip(CAPTIONS, REFERENCES, strict=True):
        smoothed = sentence_bleu(
            caption, references, smooth_method="add-k", smooth_value=1, tokenize="none", use_effective_order=False
        )
        assert SentenceBleu(references).score(caption) == pytest.approx(smoothed.score / 100)
    assert SentenceBleu(REFERENCES[0]).score(REFERENCES[0][1]) == 1
    assert SentenceBleu(REFERENCES[0]).score("") == 0
    assert SentenceBleu(REFERENCES[0]).score("nothing alike") == 0
    assert SentenceBleu(["a b c d e f"]).score("a b c d") == pytest.approx(math.exp(1 - 6 / 4))  # too short

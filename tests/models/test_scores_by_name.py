"""A score in `SCORES` is accepted by every config that names a score."""

import pytest
import torch

from sightline.attention import SCORES
from sightline.attention.scores import Score
from sightline.models.few_shot import FewShot
from sightline.models.few_shot_config import FewShotConfig
from sightline.models.image_classifier import ImageClassifier, ImageClassifierConfig
from sightline.models.seq2seq import RecurrentSeq2SeqConfig, Seq2Seq, TransformerSeq2SeqConfig

VOCABULARIES = {"source_vocab_size": 11, "target_vocab_size": 13}
SMALL = {"embed_dim": 8, "num_heads": 2}


class EuclideanScore(Score):
    def forward(self, q, k):
        return -torch.cdist(q, k)


@pytest.fixture(params=["euclidean", *SCORES])
def name(request, monkeypatch):
    monkeypatch.setitem(SCORES, "euclidean", EuclideanScore)
    return request.param


def scores(model):
    return {type(module) for module in model.modules() if isinstance(module, Score)}


def test_image_classifier(name):
    sizes = {"image_size": 8, "channels": 1, "num_classes": 3, "patch_size": 4, "depth": 1}
    model = ImageClassifier(ImageClassifierConfig(**sizes, **SMALL, score=name))
    assert scores(model) == {SCORES[name]}
    assert model(torch.rand(2, 1, 8, 8)).isfinite().all()


def test_few_shot(name):
    config = FewShotConfig(image_size=16, channels=1, backbone_channels=(3, 5, 7, 8), num_heads=2, score=name)
    assert SCORES[name] in scores(FewShot(config))


@pytest.mark.parametrize("kind", ["transformer", "recurrent"])
def test_seq2seq(kind, name):
    if kind == "transformer":
        config = TransformerSeq2SeqConfig(
            **VOCABULARIES, **SMALL, ffn_dim=16, encoder_layers=1, decoder_layers=1, score=name
        )
    else:
        config = RecurrentSeq2SeqConfig(**VOCABULARIES, hidden_size=8, embed_dim=6, attention=name)
    model = Seq2Seq(config).eval()
    assert scores(model) == {SCORES[name]}
    source = torch.tensor([[4, 5, 6], [7, 0, 0]])
    assert model(source, source != 0, torch.ones(2, 2, dtype=torch.int64)).isfinite().all()


@pytest.mark.parametrize(
    "make",
    [
        lambda name: ImageClassifierConfig(score=name),
        lambda name: FewShotConfig(score=name),
        lambda name: TransformerSeq2SeqConfig(score=name),
        lambda name: RecurrentSeq2SeqConfig(attention=name),
    ],
)
def test_unknown_names_raise(make):
    with pytest.raises(ValueError, match="got 'cosin'; did you mean 'cosine'"):
        make("cosin")

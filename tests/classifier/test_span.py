"""Methods in the subspace that the embeddings span."""

import pytest
import torch

from sightline.classifier.methods import Blend, make_method
from sightline.classifier.span import in_span
from sightline.models.few_shot import FewShot
from sightline.models.few_shot_config import FewShotConfig

M, WAY, SHOT, QUERY, TOKENS = 29, 3, 4, 5, 2


def make_head(**options) -> FewShot:
    torch.manual_seed(0)
    config = FewShotConfig(**({"backbone": "none", "embed_dim": M, "depth": 0, "num_heads": 1} | options))
    return FewShot(config).eval().requires_grad_(False).head


MAP = {"power": 0.5, "whitening_dim": 7, "feature_map_size": 2, "feature_map_channels": 3, "readout": "ridge"}


@pytest.mark.parametrize("dim", [M, 9])  # more and fewer dimensions than images
@pytest.mark.parametrize("name", ["prototypes", "ridge", "logistic", "spatial", "blend"])
def test_logits_are_those_of_the_embeddings(name, dim):
    options = MAP if name == "spatial" else {}
    if name == "spatial" and dim < M:
        options = {**MAP, "whitening_dim": 2, "feature_map_size": 1}
    head = make_head(embed_dim=dim, **options)
    method = make_method(head, name, (1.3, 0.7))
    embeddings = torch.randn(WAY * SHOT + QUERY, 1 if name == "spatial" else TOKENS, dim)
    embeddings[1] = embeddings[0]  # linearly dependent
    labels = torch.arange(WAY).repeat_interleave(SHOT)[None]

    def logits(method, x):
        state = method.encode_support(x[None, : WAY * SHOT], labels, way=WAY)
        return method.classify(state, x[None, WAY * SHOT :])

    smaller, x = in_span(method, embeddings)
    assert x.shape[:2] == (len(embeddings), 1)
    assert x.shape[-1] <= len(embeddings) * (2 if isinstance(method, Blend) else 1)
    torch.testing.assert_close(logits(smaller, x), logits(method, embeddings), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("options", [{"depth": 1}, {"patch_matching": True}])
def test_methods_that_compare_tokens_are_left_as_they_are(options):
    head, embeddings = make_head(**options), torch.randn(4, TOKENS, M)
    same, x = in_span(head, embeddings)
    assert same is head
    assert x is embeddings

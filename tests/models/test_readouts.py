import pytest
import torch
import torch.nn.functional as F

from sightline.models import readouts
from sightline.models.few_shot_config import FewShotConfig
from sightline.models.few_shot_head import FewShotHead
from sightline.models.support_state import class_membership

E, WAY, SHOT, Q, M = 2, 3, 5, 7, 11
S = WAY * SHOT
LABELS = torch.arange(WAY).repeat_interleave(SHOT).expand(E, S)
UNEQUAL = torch.tensor([[0] * 9 + [1] * 5 + [2], [0, 1] + [2] * 13])


def clusters(count: int, embed_dim: int = M) -> torch.Tensor:
    """Vectors of WAY classes, ordered by class: (E, WAY * count, embed_dim)"""
    random = torch.Generator().manual_seed(count)
    means = torch.randn(E, WAY, 1, embed_dim, generator=torch.Generator().manual_seed(0))
    return (means + 0.3 * torch.randn(E, WAY, count, embed_dim, generator=random)).flatten(1, 2).double()


@pytest.mark.parametrize(("readout", "labels"), [("ridge", LABELS), ("ridge", UNEQUAL), ("logistic", LABELS)])
def test_readouts_separate_clusters(readout, labels):
    options = {"penalty": 0.3} if readout == "ridge" else {}
    means = torch.randn(E, WAY, M, generator=torch.Generator().manual_seed(0)).double()
    noise = torch.randn(E, S, M, generator=torch.Generator().manual_seed(1)).double()
    support = means.gather(1, labels[..., None].expand(-1, -1, M)) + 0.2 * noise
    fitted = getattr(readouts, readout)(support, class_membership(labels, WAY).double(), **options)
    assert torch.equal(fitted(means).argmax(-1), torch.arange(WAY).expand(E, -1))


@pytest.mark.parametrize("embed_dim", [7, 23])
def test_ridge_solves_the_normal_equations(embed_dim):
    """Fewer dimensions than images, and more: both systems give the solution of ridge regression."""
    x, membership, penalty = clusters(SHOT, embed_dim), class_membership(LABELS, WAY).double(), 0.7
    fitted = readouts.ridge(x, membership, penalty)
    direction = F.normalize(x - fitted.center, dim=-1)
    residual = direction @ fitted.weights - (membership.mT - 1 / WAY)
    torch.testing.assert_close(direction.mT @ residual, -penalty * fitted.weights)


@pytest.mark.parametrize("readout", ["ridge", "logistic"])
def test_images_of_no_class_are_ignored(readout):
    options = {"penalty": 0.3} if readout == "ridge" else {}
    x, labels, query = clusters(SHOT), LABELS.clone(), clusters(2)
    labels[:, 1::SHOT] = -1
    kept = labels[0] >= 0
    fit = getattr(readouts, readout)
    padded = fit(x, class_membership(labels, WAY).double(), **options)(query)
    expected = fit(x[:, kept], class_membership(labels[:, kept], WAY).double(), **options)(query)
    torch.testing.assert_close(padded, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("readout", ["ridge", "logistic"])
@pytest.mark.parametrize("depth", [0, 1])
def test_head_with_a_readout_classifies_like_forward_and_selects_examples(readout, depth):
    torch.manual_seed(0)
    head = FewShotHead(M, FewShotConfig(num_heads=1, depth=depth, readout=readout)).double().eval()
    support, query = clusters(SHOT)[:, :, None], clusters(2)[:, :, None]
    with torch.no_grad():
        state = head.encode_support(support, LABELS, way=WAY)
        expected = head(support, LABELS, query, way=WAY)
        torch.testing.assert_close(head.classify(state, query), expected, rtol=1e-4, atol=1e-4)
        mask = torch.arange(S) % SHOT > 1
        selected = head.encode_support(support[:1], LABELS[:1], way=WAY).select(mask.nonzero().mT, LABELS[0])
        fresh = head.encode_support(support[:1, mask], LABELS[:1, mask], way=WAY)
        if depth == 0:  # blocks let the examples that remain keep what they attended to
            pair = (head.classify(other, query[:1]) for other in (selected, fresh))
            torch.testing.assert_close(*pair, rtol=1e-3, atol=1e-3)


def test_ridge_penalty_and_blocks_get_gradients():
    torch.manual_seed(0)
    head = FewShotHead(M, FewShotConfig(num_heads=1, readout="ridge")).double()
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    logits = head(clusters(SHOT)[:, :, None], LABELS, clusters(2)[:, :, None], way=WAY)
    F.cross_entropy(logits.flatten(0, 1), torch.zeros(E * WAY * 2, dtype=torch.long)).backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in head.parameters())


def test_largest_logit_of_a_regression_is_low_far_from_all_classes():
    head = FewShotHead(M, FewShotConfig(depth=0, readout="ridge")).double().eval()
    support = clusters(SHOT)[:, :, None]
    means = support.view(E, WAY, SHOT, M).mean(2)[:, :, None]
    with torch.no_grad():
        state = head.encode_support(support, LABELS, way=WAY)
        known, unknown = (head.classify(state, x).amax(-1) for x in (means, -means.sum(1, keepdim=True)))
    assert known.min() > unknown.max()


def test_logistic_regression_leaves_classes_without_images_out():
    """Without their own logit, the intercept of such a class would fall for all steps."""
    x, query = clusters(SHOT)[:, : S - SHOT], clusters(2)
    labels = LABELS[:, : S - SHOT]
    logits = readouts.logistic(x, class_membership(labels, WAY).double())(query)
    expected = readouts.logistic(x, class_membership(labels, WAY - 1).double())(query)
    torch.testing.assert_close(logits[..., : WAY - 1], expected)
    torch.testing.assert_close(logits[..., -1], torch.zeros_like(logits[..., -1]))

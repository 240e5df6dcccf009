import pytest
import torch
import torch.nn.functional as F

from sightline.models.baselines import BASELINES
from sightline.models.few_shot_config import FewShotConfig
from sightline.models.few_shot_head import FewShotHead

E, WAY, SHOT, Q, T, M = 3, 5, 3, 7, 2, 11
LABELS = torch.arange(WAY).repeat_interleave(SHOT).expand(E, WAY * SHOT)
each_baseline = pytest.mark.parametrize("name", BASELINES)


def make_episodes(*, noise=1.0, tokens=1, way=WAY, shot=SHOT, seed=0):
    """Support, labels, query and query labels; images are normally distributed around the mean of their class."""
    random = torch.Generator().manual_seed(seed)
    means = torch.randn(E, way, 1, 1, M, generator=random, dtype=torch.float64)

    def sample(count):
        offsets = torch.randn(E, way, count, tokens, M, generator=random, dtype=torch.float64)
        return (means + noise * offsets).flatten(1, 2)

    labels, query_labels = (torch.arange(way).repeat_interleave(count).expand(E, -1) for count in (shot, Q))
    return sample(shot), labels, sample(Q), query_labels


@each_baseline
def test_separated_classes_are_classified_correctly(name):
    support, labels, query, query_labels = make_episodes(noise=0.1)
    logits = BASELINES[name](support, labels, query, way=WAY)
    assert logits.shape == (E, WAY * Q, WAY)
    assert logits.argmax(-1).equal(query_labels)


@each_baseline
def test_signature_is_that_of_a_head(name):
    support, labels, query, _ = make_episodes(tokens=T)
    head = FewShotHead(M, FewShotConfig(num_heads=1, depth=0)).double()
    assert BASELINES[name](support, labels, query, way=WAY).shape == head(support, labels, query, way=WAY).shape


@each_baseline
def test_tokens_are_averaged(name):
    support, labels, query, _ = make_episodes(tokens=T)
    logits = BASELINES[name](support, labels, query, way=WAY)
    support, query = (x.mean(2, keepdim=True) for x in (support, query))
    torch.testing.assert_close(BASELINES[name](support, labels, query, way=WAY), logits)


@each_baseline
def test_episodes_and_queries_are_independent(name):
    support, labels, query, _ = make_episodes()
    together = BASELINES[name](support, labels, query, way=WAY)
    alone = BASELINES[name](support[1:2], labels[1:2], query[1:2, 4:5], way=WAY)
    torch.testing.assert_close(together[1:2, 4:5], alone, rtol=1e-3, atol=1e-3)


@each_baseline
def test_order_of_classes_and_images_does_not_matter(name):
    support, labels, query, _ = make_episodes()
    logits = BASELINES[name](support, labels, query, way=WAY)
    images = torch.randperm(WAY * SHOT, generator=torch.Generator().manual_seed(1))
    classes = torch.tensor([3, 0, 4, 1, 2])
    permuted = BASELINES[name](support[:, images], classes[labels[:, images]], query, way=WAY)
    torch.testing.assert_close(permuted[..., classes], logits, rtol=1e-3, atol=1e-3)


@each_baseline
def test_episodes_with_unequal_classes_share_a_batch(name):
    support, _, query, _ = make_episodes(noise=0.1)
    labels = LABELS.clone()
    labels[1] = torch.tensor([0] * 6 + [1] * 4 + [2, 3, 4, 4, 4])
    logits = BASELINES[name](support, labels, query, way=WAY)
    alone = BASELINES[name](support[1:2], labels[1:2], query[1:2], way=WAY)
    torch.testing.assert_close(logits[1:2], alone, rtol=1e-3, atol=1e-3)


@each_baseline
def test_equal_images_in_half_precision_give_finite_logits(name):
    equal = torch.ones(1, 4, 1, M, dtype=torch.bfloat16)
    logits = BASELINES[name](equal, torch.tensor([[0, 0, 1, 1]]), equal, way=2)
    assert logits.isfinite().all()
    assert logits.dtype == torch.float32


def test_protonet_is_the_squared_distance_to_the_mean():
    support, labels, query, _ = make_episodes()
    means = support.view(E, WAY, SHOT, M).mean(2)
    expected = -torch.cdist(query[:, :, 0], means).square()
    torch.testing.assert_close(BASELINES["protonet"](support, labels, query, way=WAY), expected)


def test_matching_sums_attention_by_class():
    support, labels, query, _ = make_episodes()
    cosines = F.cosine_similarity(query, support[:, None, :, 0], dim=-1)
    expected = cosines.softmax(-1).view(E, WAY * Q, WAY, SHOT).sum(-1)
    logits = BASELINES["matching"](support, labels, query, way=WAY)
    torch.testing.assert_close(logits.exp(), expected)
    torch.testing.assert_close(logits.exp().sum(-1), torch.ones(E, WAY * Q, dtype=torch.float64))


def test_nearest_is_the_largest_cosine():
    support, labels, query, _ = make_episodes()
    cosines = F.cosine_similarity(query, support[:, None, :, 0], dim=-1)
    expected = cosines.view(E, WAY * Q, WAY, SHOT).amax(-1)
    torch.testing.assert_close(BASELINES["nearest"](support, labels, query, way=WAY), expected)


def unit(x):
    return F.normalize(x[:, :, 0], dim=-1).numpy()


@pytest.mark.parametrize("shot", [1, 5])
def test_logistic_agrees_with_scikit_learn(shot):
    linear_model = pytest.importorskip("sklearn.linear_model")
    support, labels, query, _ = make_episodes(shot=shot)
    probabilities = BASELINES["logistic"](support, labels, query, way=WAY).softmax(-1)
    for i, (x, q) in enumerate(zip(unit(support), unit(query), strict=True)):
        reference = linear_model.LogisticRegression(C=1.0, tol=1e-9, max_iter=10_000).fit(x, labels[i])
        torch.testing.assert_close(probabilities[i], torch.from_numpy(reference.predict_proba(q)), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("name", "shot", "noise"), [("svm", 1, 1.0), ("svm", 5, 1.5), ("rbf_svm", 5, 1.0)])
def test_svms_agree_with_scikit_learn(name, shot, noise):
    svms = pytest.importorskip("sklearn.svm")
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    support, labels, query, query_labels = make_episodes(shot=shot, noise=noise)
    predicted = BASELINES[name](support, labels, query, way=WAY).argmax(-1)
    assert 0.4 < (predicted == query_labels).double().mean() < 0.95
    is_equal = []
    for i in range(E):
        x, q = (y[i].numpy() for y in (support[:, :, 0], query[:, :, 0]))
        reference = make_pipeline(StandardScaler(), svms.SVC(gamma="auto", break_ties=True))
        if name == "svm":
            (x, q), reference = (
                (unit(y)[i] for y in (support, query)),
                svms.SVC(kernel="linear", C=1.0, break_ties=True),
            )
        is_equal.append(torch.from_numpy(reference.fit(x, labels[i]).predict(q)) == predicted[i])
    assert torch.cat(is_equal).double().mean() >= 0.98

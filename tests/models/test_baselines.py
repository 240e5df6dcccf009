import pytest
import torch
import torch.nn.functional as F

from sightline.models.baselines import BASELINES
from sightline.models.few_shot import FewShotConfig, FewShotHead

E, N, S, Q, P, M = 3, 5, 3, 7, 2, 11
LABELS = torch.arange(N).repeat_interleave(S).expand(E, N * S)
ALL = pytest.mark.parametrize("name", BASELINES)


def episodes(*, noise=1.0, places=1, way=N, shot=S, seed=0):
    """Images scattered about the middle of their class: support, labels, query and what is right."""
    random = torch.Generator().manual_seed(seed)
    middles = torch.randn(E, way, 1, 1, M, generator=random, dtype=torch.float64)

    def some(count):
        scatter = torch.randn(E, way, count, places, M, generator=random, dtype=torch.float64)
        return (middles + noise * scatter).flatten(1, 2)

    labels, right = (torch.arange(way).repeat_interleave(count).expand(E, -1) for count in (shot, Q))
    return some(shot), labels, some(Q), right


@ALL
def test_what_is_easy_is_right(name):
    support, labels, query, right = episodes(noise=0.1)
    logits = BASELINES[name](support, labels, query, way=N)
    assert logits.shape == (E, N * Q, N)
    assert logits.argmax(-1).equal(right)


@ALL
def test_it_is_called_like_a_head(name):
    support, labels, query, _ = episodes(places=P)
    head = FewShotHead(M, FewShotConfig(num_heads=1, depth=0)).double()
    assert BASELINES[name](support, labels, query, way=N).shape == head(support, labels, query, way=N).shape


@ALL
def test_places_are_averaged(name):
    support, labels, query, _ = episodes(places=P)
    means = (x.mean(2, keepdim=True) for x in (support, query))
    support_mean, query_mean = means
    one, other = (BASELINES[name](a, labels, b, way=N) for a, b in ((support, query), (support_mean, query_mean)))
    torch.testing.assert_close(one, other)


@ALL
def test_episodes_and_queries_do_not_know_each_other(name):
    support, labels, query, _ = episodes()
    together = BASELINES[name](support, labels, query, way=N)
    alone = BASELINES[name](support[1:2], labels[1:2], query[1:2, 4:5], way=N)
    torch.testing.assert_close(together[1:2, 4:5], alone, rtol=1e-3, atol=1e-3)


@ALL
def test_neither_classes_nor_images_have_an_order(name):
    support, labels, query, _ = episodes()
    logits = BASELINES[name](support, labels, query, way=N)
    images = torch.randperm(N * S, generator=torch.Generator().manual_seed(1))
    names = torch.tensor([3, 0, 4, 1, 2])
    again = BASELINES[name](support[:, images], names[labels[:, images]], query, way=N)
    torch.testing.assert_close(again[..., names], logits, rtol=1e-3, atol=1e-3)


@ALL
def test_unequal_classes_go_together(name):
    support, _, query, _ = episodes(noise=0.1)
    labels = LABELS.clone()
    labels[1] = torch.tensor([0] * 6 + [1] * 4 + [2, 3, 4, 4, 4])
    both = BASELINES[name](support, labels, query, way=N)
    alone = BASELINES[name](support[1:2], labels[1:2], query[1:2], way=N)
    torch.testing.assert_close(both[1:2], alone, rtol=1e-3, atol=1e-3)


@ALL
def test_half_precision_and_equal_images_give_numbers(name):
    same = torch.ones(1, 4, 1, M, dtype=torch.bfloat16)
    logits = BASELINES[name](same, torch.tensor([[0, 0, 1, 1]]), same, way=2)
    assert logits.isfinite().all()
    assert logits.dtype == torch.float32


def test_protonet_measures_to_the_mean():
    support, labels, query, _ = episodes()
    means = support.view(E, N, S, M).mean(2)
    expected = -torch.cdist(query[:, :, 0], means).square()
    torch.testing.assert_close(BASELINES["protonet"](support, labels, query, way=N), expected)


def test_matching_divides_attention():
    support, labels, query, _ = episodes()
    cosines = F.cosine_similarity(query, support[:, None, :, 0], dim=-1)
    expected = cosines.softmax(-1).view(E, N * Q, N, S).sum(-1)
    found = BASELINES["matching"](support, labels, query, way=N)
    torch.testing.assert_close(found.exp(), expected)
    torch.testing.assert_close(found.exp().sum(-1), torch.ones(E, N * Q, dtype=torch.float64))


def test_nearest_goes_by_the_best_image():
    support, labels, query, _ = episodes()
    cosines = F.cosine_similarity(query, support[:, None, :, 0], dim=-1)
    expected = cosines.view(E, N * Q, N, S).amax(-1)
    torch.testing.assert_close(BASELINES["nearest"](support, labels, query, way=N), expected)


def unit(x):
    return F.normalize(x[:, :, 0], dim=-1).numpy()


@pytest.mark.parametrize("shot", [1, 5])
def test_logistic_is_that_of_scikit_learn(shot):
    linear_model = pytest.importorskip("sklearn.linear_model")
    support, labels, query, _ = episodes(shot=shot)
    found = BASELINES["logistic"](support, labels, query, way=N).softmax(-1)
    for i, (x, q) in enumerate(zip(unit(support), unit(query), strict=True)):
        theirs = linear_model.LogisticRegression(C=1.0, tol=1e-9, max_iter=10_000).fit(x, labels[i])
        torch.testing.assert_close(found[i], torch.from_numpy(theirs.predict_proba(q)), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("name", "shot", "noise"), [("svm", 1, 1.0), ("svm", 5, 1.5), ("rbf_svm", 5, 1.0)])
def test_machines_answer_like_those_of_scikit_learn(name, shot, noise):
    svms = pytest.importorskip("sklearn.svm")
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    support, labels, query, right = episodes(shot=shot, noise=noise)
    found = BASELINES[name](support, labels, query, way=N).argmax(-1)
    assert 0.4 < (found == right).double().mean() < 0.95  # a task that tells answers apart
    same = []
    for i in range(E):
        x, q = (y[i].numpy() for y in (support[:, :, 0], query[:, :, 0]))
        theirs = make_pipeline(StandardScaler(), svms.SVC(gamma="auto", break_ties=True))
        if name == "svm":
            (x, q), theirs = (unit(y)[i] for y in (support, query)), svms.SVC(kernel="linear", C=1.0, break_ties=True)
        same.append(torch.from_numpy(theirs.fit(x, labels[i]).predict(q)) == found[i])
    assert torch.cat(same).double().mean() >= 0.98

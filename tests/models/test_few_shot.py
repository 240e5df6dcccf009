import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sightline.models.baselines import protonet
from sightline.models.few_shot import FewShotConfig, FewShotHead
from sightline.models.few_shot_answers import members_of

E, N, S, Q, P, M = 2, 3, 2, 5, 4, 12
K = N * S
LABELS = torch.arange(N).repeat_interleave(S).expand(E, K)


def head(**choices: object) -> FewShotHead:
    """One that has learned something: no weight is where it started."""
    torch.manual_seed(0)
    made = FewShotHead(M, FewShotConfig(num_heads=3, **choices))
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return made.double().eval()


def episode(places: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(1)
    make = {"generator": random, "dtype": torch.float64}
    return torch.randn(E, K, places, M, **make), torch.randn(E, Q, places, M, **make)


CHOICES = [
    {},
    {"score": "dot"},
    {"depth": 2},
    {"labels": False},
    {"mlp_ratio": 0.5},
    {"learn_temperature": False},
    {"transductive": True},
    {"narrow": 6},
]


@pytest.mark.parametrize("choices", [{}, {"narrow": 6}])
def test_before_it_learns_it_is_a_prototype_classifier(choices):
    support, query = episode()
    logits = FewShotHead(M, FewShotConfig(num_heads=3, **choices)).double()(support, LABELS, query, way=N)
    prototypes = support.view(E, N, S, M).mean(2)
    angles = F.cosine_similarity(query.squeeze(2)[:, :, None], prototypes[:, None], dim=-1)
    torch.testing.assert_close(logits, angles / 0.1)


def test_what_a_narrow_head_adds_lies_where_its_blocks_work():
    support, query = episode()
    net = FewShotHead(M, FewShotConfig(num_heads=3, bottleneck_dim=6)).double()
    nn.init.normal_(net.blocks[0].feed_forward.narrow.weight)
    _, refined = net.refine(support, members_of(LABELS, N).double(), query)
    added, space = refined - query, net.narrow.weight
    assert net.label.weight.shape == (6, 6)
    assert added.abs().max() > 0.1
    torch.testing.assert_close(added @ space.mT @ space, added, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("narrow", "message"), [(M, "narrow must be below the embedding's width 12, got 12"), (0, "")])
def test_a_head_that_is_not_narrower_is_refused(narrow, message):
    with pytest.raises(ValueError, match=message or "narrow must be an integer of at least 1, got 0"):
        FewShotHead(M, FewShotConfig(num_heads=3, bottleneck_dim=narrow))


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_every_choice_learns(choice):
    support, query = episode()
    net = head(**choice)
    F.cross_entropy(net(support, LABELS, query, way=N).flatten(0, 1), torch.zeros(E * Q, dtype=torch.long)).backward()
    silent = {name for name, p in net.named_parameters() if p.requires_grad and (p.grad is None or not p.grad.any())}
    assert not silent


@pytest.mark.parametrize("places", [1, P])
def test_an_answer_does_not_depend_on_the_other_queries(places):
    support, query = episode(places)
    net = head()
    together = net(support, LABELS, query, way=N)
    alone = torch.cat([net(support, LABELS, query[:, i : i + 1], way=N) for i in range(Q)], 1)
    torch.testing.assert_close(together, alone, rtol=1e-9, atol=1e-9)
    other = head(transductive=True)
    assert not torch.allclose(other(support, LABELS, query, way=N), other(support, LABELS, query[:, :1], way=N))


@pytest.mark.parametrize("places", [1, P])
@pytest.mark.parametrize(
    "choice",
    [{}, {"score": "dot"}, {"depth": 2}, {"labels": False}, {"depth": 0}, {"narrow": 6}, {"answer": "distance"}],
    ids=str,
)
@pytest.mark.parametrize("recorded", [False, True])
def test_what_is_remembered_answers_as_the_whole_does(choice, places, recorded):
    support, query = episode(places)
    net = head(**choice)
    labels = torch.tensor([[0, 0, 0, 0, 1, 2], [0, 1, 1, 2, 2, 2]])
    with torch.set_grad_enabled(recorded):
        memory = net.remember(support, labels, way=N)
        for some in (query, query[:, :1], query[:, 1:]):  # asked again and again, nothing of the last time is left
            expected = net(support, labels, some, way=N)
            torch.testing.assert_close(net.ask(memory, some), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("places", [1, P])
def test_a_memory_of_some_examples(places):
    """All of them are what they were; without a block, some are what they would be alone."""
    support, query = (x[:1] for x in episode(places))
    labels, kept = torch.tensor([0, 1, 0, 2, 1, 0]), torch.tensor([True, True, False, True, False, True])
    for choice in ({"parts": True}, {"parts": True, "depth": 0}):
        net = head(**choice)
        memory = net.remember(support, labels[None], way=N)
        torch.testing.assert_close(net.ask(memory.only(kept | True, labels), query), net.ask(memory, query))
    alone = net.remember(support[:, kept], labels[None, kept], way=N)
    torch.testing.assert_close(net.ask(memory.only(kept, labels), query), net.ask(alone, query))


def test_a_class_without_an_image_is_nowhere():
    support, query = episode()
    net = head()
    logits = net.ask(net.remember(support, LABELS, way=N + 1), query)
    torch.testing.assert_close(logits[..., :N], net(support, LABELS, query, way=N))
    assert not logits[..., N].any()


def test_by_distance_and_without_a_block_it_is_a_prototypical_network():
    support, query = episode(P)
    net = head(depth=0, answer="distance")
    net.calibration_scale.fill_(1)
    torch.testing.assert_close(net(support, LABELS, query, way=N), protonet(support, LABELS, query, way=N))
    assert not [*net.parameters()]


@pytest.mark.parametrize("gaps", [False, True])
def test_compiled_it_learns_the_same(gaps):
    support, query = episode(P)
    net, answers = head(parts=True), torch.arange(E * Q) % N
    labels = LABELS.index_fill(1, torch.tensor([1, 4]), -1) if gaps else LABELS
    slopes = []
    for run in (net, torch.compile(net, backend="aot_eager")):
        net.zero_grad()
        F.cross_entropy(run(support, labels, query, way=N, gaps=gaps).flatten(0, 1), answers).backward()
        slopes.append({name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None})
    torch.testing.assert_close(*slopes)
    assert all(slope.any() for slope in slopes[0].values())


def test_classes_have_no_order():
    support, query = episode()
    net = head()
    order = torch.tensor([2, 0, 1])
    renamed = net(support, order[LABELS], query, way=N)
    torch.testing.assert_close(renamed[..., order], net(support, LABELS, query, way=N))


def test_images_have_no_order():
    support, query = episode()
    net = head()
    order = torch.randperm(K, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(
        net(support[:, order], LABELS[:, order], query, way=N), net(support, LABELS, query, way=N)
    )


def test_labels_matter_to_attention():
    """Two classes that trade an image change what a query becomes, not only what it is compared with."""
    support, query = episode()
    traded = torch.tensor([0, 1, 0, 1, 2, 2]).expand(E, K)
    for knows in (True, False):
        net = head(labels=knows)
        before, after = (net.refine(support, members_of(labels, N).double(), query)[1] for labels in (LABELS, traded))
        assert torch.allclose(before, after) is not knows


@pytest.mark.parametrize("places", [1, P])
def test_empty_places_change_nothing(places):
    support, query = episode(places)
    net = head()
    padded = torch.cat((support, torch.full((E, 2, places, M), 9.0, dtype=torch.float64)), 1)
    labels = F.pad(LABELS, (0, 2), value=-1)
    torch.testing.assert_close(net(padded, labels, query, way=N, gaps=True), net(support, LABELS, query, way=N))


def test_unequal_classes_go_together():
    support, query = episode()
    labels = torch.tensor([[0, 0, 0, 0, 1, 2], [0, 1, 1, 2, 2, 2]])
    net = head()
    both = net(support, labels, query, way=N)
    for i in range(E):
        torch.testing.assert_close(both[i : i + 1], net(support[i : i + 1], labels[i : i + 1], query[i : i + 1], way=N))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: FewShotHead(10, FewShotConfig(num_heads=3)),
            "heads must divide the width 10 at which blocks work, got 3",
        ),
        (lambda: FewShotConfig(depth=-1), "depth must be an integer of at least 0, got -1"),
        (lambda: FewShotConfig(temperature=0.001), "temperature must be at least the floor 0.01, got 0.001"),
        (lambda: FewShotConfig(mlp_ratio=0), "mlp_ratio must be above 0 and finite, got 0"),
    ],
)
def test_what_cannot_be_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_parts_weigh_nothing_before_they_are_learned():
    support, query = episode(P)
    torch.manual_seed(0)
    whole = FewShotHead(M, FewShotConfig(num_heads=3)).double()
    both = FewShotHead(M, FewShotConfig(num_heads=3, parts=True)).double()
    both.load_state_dict(both.state_dict() | whole.state_dict())
    torch.testing.assert_close(both(support, LABELS, query, way=N), whole(support, LABELS, query, way=N))

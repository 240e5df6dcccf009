import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sightline.errors import SightlineError
from sightline.models import few_shot_head
from sightline.models.baselines import protonet
from sightline.models.embedding_modules import BackboneModule
from sightline.models.few_shot import FewShot
from sightline.models.few_shot_config import FewShotConfig
from sightline.models.few_shot_head import FewShotHead, NegativeSquaredDistance, PatchMatching
from sightline.models.support_state import SupportState, class_means, class_membership

E, WAY, SHOT, Q, T, M = 2, 3, 2, 5, 4, 12
S = WAY * SHOT
LABELS = torch.arange(WAY).repeat_interleave(SHOT).expand(E, S)
UNEQUAL_LABELS = torch.tensor([[0, 0, 0, 0, 1, 2], [0, 1, 1, 2, 2, 2]])
TOKEN_LABELS = torch.tensor([[0, 0, 1, 1, 2, 2]])


def make_head(**options: object) -> FewShotHead:
    """A head in which no parameter has its initial value."""
    torch.manual_seed(0)
    head = FewShotHead(M, FewShotConfig(num_heads=3, **options))
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return head.double().eval()


def make_episode(tokens: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    options = {"generator": torch.Generator().manual_seed(1), "dtype": torch.float64}
    return torch.randn(E, S, tokens, M, **options), torch.randn(E, Q, tokens, M, **options)


@pytest.mark.parametrize("options", [{}, {"bottleneck_dim": 6}])
def test_untrained_head_is_a_nearest_mean_classifier(options):
    support, query = make_episode()
    logits = FewShotHead(M, FewShotConfig(num_heads=3, **options)).double()(support, LABELS, query, way=WAY)
    means = support.view(E, WAY, SHOT, M).mean(2)
    cosines = F.cosine_similarity(query.squeeze(2)[:, :, None], means[:, None], dim=-1)
    torch.testing.assert_close(logits, cosines / 0.1)


def test_bottleneck_adds_a_vector_of_its_subspace():
    support, query = make_episode()
    head = FewShotHead(M, FewShotConfig(num_heads=3, bottleneck_dim=6)).double()
    nn.init.normal_(head.blocks[0].mlp.fc2.weight)
    _, refined = head.refine(support, class_membership(LABELS, WAY).double(), query)
    added, basis = refined - query, head.bottleneck.weight
    assert head.label_proj.weight.shape == (6, 6)
    assert added.abs().max() > 0.1
    torch.testing.assert_close(added @ basis.mT @ basis, added, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"score": "dot"},
        {"depth": 2},
        {"label_embeddings": False},
        {"mlp_ratio": 0.5},
        {"learn_temperature": False},
        {"transductive": True},
        {"bottleneck_dim": 6},
    ],
    ids=str,
)
def test_every_parameter_gets_a_gradient(options):
    support, query = make_episode()
    head = make_head(**options)
    logits = head(support, LABELS, query, way=WAY).flatten(0, 1)
    F.cross_entropy(logits, torch.zeros(E * Q, dtype=torch.long)).backward()
    without = {name for name, p in head.named_parameters() if p.requires_grad and (p.grad is None or not p.grad.any())}
    assert not without


@pytest.mark.parametrize("tokens", [1, T])
def test_logits_do_not_depend_on_other_queries_unless_transductive(tokens):
    support, query = make_episode(tokens)
    head = make_head()
    together = head(support, LABELS, query, way=WAY)
    alone = torch.cat([head(support, LABELS, query[:, i : i + 1], way=WAY) for i in range(Q)], 1)
    torch.testing.assert_close(together, alone, rtol=1e-9, atol=1e-9)
    head = make_head(transductive=True)
    assert not torch.allclose(head(support, LABELS, query, way=WAY), head(support, LABELS, query[:, :1], way=WAY))


@pytest.mark.parametrize("tokens", [1, T])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"score": "dot"},
        {"depth": 2},
        {"label_embeddings": False},
        {"depth": 0},
        {"bottleneck_dim": 6},
        {"metric": "euclidean"},
    ],
    ids=str,
)
@pytest.mark.parametrize("with_gradients", [False, True])
def test_classify_agrees_with_forward(options, tokens, with_gradients):
    support, query = make_episode(tokens)
    head = make_head(**options)
    with torch.set_grad_enabled(with_gradients):
        state = head.encode_support(support, UNEQUAL_LABELS, way=WAY)
        for queries in (query, query[:, :1], query[:, 1:]):  # a call leaves the state unchanged
            expected = head(support, UNEQUAL_LABELS, queries, way=WAY)
            torch.testing.assert_close(head.classify(state, queries), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("tokens", [1, T])
def test_support_states_of_subsets(tokens):
    """Selecting all images changes nothing; without blocks, a subset equals the subset encoded alone."""
    support, query = (x[:1] for x in make_episode(tokens))
    labels, subsets = torch.tensor([0, 1, 0, 2, 1, 0]), torch.tensor([[0, 1, 3, 5], [1, 2, 3, 4]])
    for options in ({"patch_matching": True}, {"patch_matching": True, "depth": 0}):
        head = make_head(**options)
        state = head.encode_support(support, labels[None], way=WAY)
        everything = state.select(torch.arange(6)[None], labels)
        torch.testing.assert_close(head.classify(everything, query), head.classify(state, query))
        both = head.classify(state.select(subsets, labels), query.expand(2, -1, -1, -1))
        single = [head.classify(state.select(subset[None], labels), query) for subset in subsets]
        torch.testing.assert_close(both, torch.cat(single))
        assert (both[0] - both[1]).abs().max() > 1e-3
    for subset, logits in zip(subsets, both, strict=True):
        encoded = head.encode_support(support[:, subset], labels[None, subset], way=WAY)
        torch.testing.assert_close(logits[None], head.classify(encoded, query))


def test_class_without_images_has_logit_0():
    support, query = make_episode()
    head = make_head()
    logits = head.classify(head.encode_support(support, LABELS, way=WAY + 1), query)
    torch.testing.assert_close(logits[..., :WAY], head(support, LABELS, query, way=WAY))
    assert not logits[..., WAY].any()


def test_euclidean_head_without_blocks_is_a_prototypical_network():
    support, query = make_episode(T)
    head = make_head(depth=0, metric="euclidean")
    head.calibration_scale.fill_(1)
    torch.testing.assert_close(head(support, LABELS, query, way=WAY), protonet(support, LABELS, query, way=WAY))
    assert not [*head.parameters()]


@pytest.mark.parametrize("padded", [False, True])
def test_compiled_head_has_the_same_gradients(padded):
    support, query = make_episode(T)
    head, targets = make_head(patch_matching=True), torch.arange(E * Q) % WAY
    labels = LABELS.index_fill(1, torch.tensor([1, 4]), -1) if padded else LABELS
    gradients = []
    for module in (head, torch.compile(head, backend="aot_eager")):
        head.zero_grad()
        logits = module(support, labels, query, way=WAY, padded=padded)
        F.cross_entropy(logits.flatten(0, 1), targets).backward()
        gradients.append({name: p.grad.clone() for name, p in head.named_parameters() if p.grad is not None})
    torch.testing.assert_close(*gradients)
    assert all(gradient.any() for gradient in gradients[0].values())


def test_head_is_equivariant_to_the_order_of_classes():
    support, query = make_episode()
    head, order = make_head(), torch.tensor([2, 0, 1])
    permuted = head(support, order[LABELS], query, way=WAY)
    torch.testing.assert_close(permuted[..., order], head(support, LABELS, query, way=WAY))


def test_head_is_invariant_to_the_order_of_support_images():
    support, query = make_episode()
    head, order = make_head(), torch.randperm(S, generator=torch.Generator().manual_seed(2))
    permuted = head(support[:, order], LABELS[:, order], query, way=WAY)
    torch.testing.assert_close(permuted, head(support, LABELS, query, way=WAY))


def test_label_embeddings_change_the_refined_queries():
    support, query = make_episode()
    swapped = torch.tensor([0, 1, 0, 1, 2, 2]).expand(E, S)
    for has_labels in (True, False):
        head = make_head(label_embeddings=has_labels)
        before, after = (
            head.refine(support, class_membership(labels, WAY).double(), query)[1] for labels in (LABELS, swapped)
        )
        assert torch.allclose(before, after) is not has_labels


@pytest.mark.parametrize("tokens", [1, T])
def test_padding_does_not_change_logits(tokens):
    support, query = make_episode(tokens)
    head = make_head()
    padded = torch.cat((support, torch.full((E, 2, tokens, M), 9.0, dtype=torch.float64)), 1)
    labels = F.pad(LABELS, (0, 2), value=-1)
    torch.testing.assert_close(head(padded, labels, query, way=WAY, padded=True), head(support, LABELS, query, way=WAY))


def test_episodes_with_unequal_classes_share_a_batch():
    support, query = make_episode()
    head = make_head()
    logits = head(support, UNEQUAL_LABELS, query, way=WAY)
    for i in range(E):
        one = slice(i, i + 1)
        torch.testing.assert_close(logits[one], head(support[one], UNEQUAL_LABELS[one], query[one], way=WAY))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: FewShotHead(10, FewShotConfig(num_heads=3)),
            "num_heads must divide the dimension 10 of the blocks, got 3",
        ),
        (
            lambda: FewShotHead(M, FewShotConfig(num_heads=3, bottleneck_dim=M)),
            "bottleneck_dim must be below the embedding dimension 12, got 12",
        ),
        (lambda: FewShotConfig(bottleneck_dim=0), "bottleneck_dim must be an integer of at least 1, got 0"),
        (lambda: FewShotConfig(depth=-1), "depth must be an integer of at least 0, got -1"),
        (lambda: FewShotConfig(temperature=0.001), "temperature must be at least .*0.01, got 0.001"),
        (lambda: FewShotConfig(mlp_ratio=0), "mlp_ratio must be above 0 and at most 100, got 0"),
        (lambda: FewShotConfig(channels=1000), "channels must be 1 or 3, got 1000"),
        (lambda: FewShotConfig(image_size=513), "image_size must be at most 512, got 513"),
        (lambda: FewShotConfig(embed_dim=8), "embed_dim must be given if backbone is none, and only then, got 8"),
        (lambda: FewShotConfig(backbone="none"), "embed_dim must be given if backbone is none"),
        (lambda: FewShotConfig(pool="flat", tokens="patches"), "pool must be mean if tokens is patches"),
        (lambda: FewShot(FewShotConfig(channels=1)), "image_size and channels must be given"),
    ],
)
def test_invalid_configs_are_refused(make, message):
    with pytest.raises(SightlineError, match=message):
        make()


def test_num_heads_need_not_divide_the_dimension_without_blocks():
    head = FewShotHead(10, FewShotConfig(depth=0, num_heads=3))
    assert head(torch.randn(1, 4, 1, 10), torch.tensor([[0, 0, 1, 1]]), torch.randn(1, 3, 1, 10), way=2).shape == (
        1,
        3,
        2,
    )


def test_patch_matching_has_weight_0_at_initialization():
    support, query = make_episode(T)
    torch.manual_seed(0)
    without = FewShotHead(M, FewShotConfig(num_heads=3)).double()
    with_matching = FewShotHead(M, FewShotConfig(num_heads=3, patch_matching=True)).double()
    with_matching.load_state_dict(with_matching.state_dict() | without.state_dict())
    torch.testing.assert_close(with_matching(support, LABELS, query, way=WAY), without(support, LABELS, query, way=WAY))


def trained_patch_matching() -> PatchMatching:
    module = PatchMatching()
    torch.nn.init.ones_(module.weight)
    return module


def make_state(tokens: torch.Tensor, labels: torch.Tensor) -> SupportState:
    has_images = torch.ones(len(tokens), WAY, dtype=torch.bool)
    return SupportState(torch.zeros(len(tokens), WAY, M), has_images, torch.zeros(len(tokens), 1, M), tokens, labels)


def test_patch_matching_finds_a_token_anywhere_in_a_class():
    tokens = torch.eye(M)[:6]
    both_of_class_0, one_each_of_the_others = [1, 0], [3, 4]
    query = tokens[torch.tensor([both_of_class_0, one_each_of_the_others])][None]
    similarity = trained_patch_matching()(3 * query, make_state(tokens[None], TOKEN_LABELS))
    torch.testing.assert_close(similarity[0, 0], torch.tensor([1.0, 0.0, 0.0]), atol=1e-3, rtol=0)
    torch.testing.assert_close(similarity[0, 1], torch.tensor([0.0, 0.5, 0.5]), atol=1e-3, rtol=0)


def test_patch_matching_in_chunks_gives_the_same_result(monkeypatch):
    torch.manual_seed(0)
    tokens, query = F.normalize(torch.randn(2, 7, M), dim=-1), torch.randn(2, 5, 4, M)
    labels = torch.tensor([[0, 0, 1, 1, 2, 2, 2], [2, 1, 0, 0, -1, 1, 2]])  # -1 is padding
    matching, expected = trained_patch_matching(), trained_patch_matching()(query, make_state(tokens, labels))
    monkeypatch.setattr(few_shot_head, "SUPPORT_TOKENS_PER_CHUNK", 3)
    torch.testing.assert_close(matching(query, make_state(tokens, labels)), expected)
    monkeypatch.setattr(few_shot_head, "SUPPORT_TOKENS_PER_CHUNK", 1)  # one chunk is padding only
    torch.testing.assert_close(matching(query[1:], make_state(tokens[1:], labels[1:])), expected[1:])
    is_token = labels[1] >= 0
    torch.testing.assert_close(
        matching(query[1:], make_state(tokens[1:, is_token], labels[1:, is_token])), expected[1:]
    )


def test_negative_squared_distance():
    q, k = torch.tensor([[0.0, 0.0], [3.0, 0.0]]), torch.tensor([[0.0, 4.0]])
    torch.testing.assert_close(NegativeSquaredDistance()(q, k), torch.tensor([[-16.0], [-25.0]]))


def test_mean_of_an_empty_class_is_0():
    membership = class_membership(TOKEN_LABELS, WAY + 1).float()
    means = class_means(membership, torch.arange(6.0)[None, :, None])
    torch.testing.assert_close(means[0, :, 0], torch.tensor([0.5, 2.5, 4.5, 0.0]))


@pytest.mark.parametrize("tokens", ["pooled", "patches"])
def test_views_of_a_backbone_are_an_image_and_its_mirror_image(tokens):
    torch.manual_seed(0)
    options = {"image_size": 32, "channels": 3, "backbone_channels": (4, 4, 8, 8), "tokens": tokens}
    model = FewShot(FewShotConfig(**options, views=2, num_heads=2)).eval()
    pixels = torch.randint(256, (3, 3, 32, 32), dtype=torch.uint8)
    single = FewShot(FewShotConfig(**options, num_heads=2)).eval()
    single.load_state_dict(model.state_dict())
    both = model.embed_pixels(pixels)
    of_whole, of_mirrored = single.embed_pixels(pixels), single.embed_pixels(pixels.flip(-1))
    if tokens == "patches":  # 2 x 2 positions
        of_mirrored = of_mirrored[:, [1, 0, 3, 2]]
        torch.testing.assert_close(model.embed_pixels(pixels.flip(-1)), both[:, [1, 0, 3, 2]])
    else:
        torch.testing.assert_close(model.embed_pixels(pixels.flip(-1)), both)
    torch.testing.assert_close(both, (of_whole + of_mirrored) / 2)
    assert not both.equal(of_whole)
    torch.testing.assert_close(BackboneModule(model)(pixels / 255), both)  # as exported
    torch.testing.assert_close(model.embed(pixels / 255), single.embed(pixels / 255))  # training has one view

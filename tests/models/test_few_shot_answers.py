import torch
import torch.nn.functional as F

from sightline.models import few_shot_answers
from sightline.models.few_shot_answers import Distance, Known, PartsScore, means, members_of

N, M = 3, 12
OWNERS = torch.tensor([[0, 0, 1, 1, 2, 2]])


def learned() -> PartsScore:
    parts = PartsScore()
    torch.nn.init.ones_(parts.weight)
    return parts


def test_a_part_is_found_wherever_it_lies_in_a_class():
    tokens = torch.eye(M)[:6]
    both_of_the_first, one_each_of_the_others = [1, 0], [3, 4]
    query = tokens[torch.tensor([both_of_the_first, one_each_of_the_others])][None]
    found = learned()(3 * query, Known(torch.zeros(1, N, M), torch.zeros(1, 3, M), tokens[None], OWNERS))
    torch.testing.assert_close(found[0, 0], torch.tensor([1.0, 0.0, 0.0]), atol=1e-3, rtol=0)
    torch.testing.assert_close(found[0, 1], torch.tensor([0.0, 0.5, 0.5]), atol=1e-3, rtol=0)


def test_parts_held_against_some_at_a_time_are_the_same(monkeypatch):
    torch.manual_seed(0)
    tokens, query = F.normalize(torch.randn(2, 7, M), dim=-1), torch.randn(2, 5, 4, M)
    owners = torch.tensor([[0, 0, 1, 1, 2, 2, 2], [2, 1, 0, 0, -1, 1, 2]])  # -1 is of no class
    known = Known(torch.zeros(2, N, M), torch.zeros(2, 7, M), tokens, owners)
    together = learned()(query, known)
    monkeypatch.setattr(few_shot_answers, "PARTS_AT_ONCE", 3)
    torch.testing.assert_close(learned()(query, known), together)
    monkeypatch.setattr(few_shot_answers, "PARTS_AT_ONCE", 1)  # the one that is of no class is alone
    torch.testing.assert_close(
        learned()(query[1:], Known(known.classes[1:], known.images[1:], tokens[1:], owners[1:])), together[1:]
    )
    left_out = Known(known.classes[1:], known.images[1:], tokens[1:, owners[1] >= 0], owners[1:, owners[1] >= 0])
    torch.testing.assert_close(learned()(query[1:], left_out), together[1:])


def test_distance_is_squared_and_falls():
    q, k = torch.tensor([[0.0, 0.0], [3.0, 0.0]]), torch.tensor([[0.0, 4.0]])
    torch.testing.assert_close(Distance()(q, k), torch.tensor([[-16.0], [-25.0]]))


def test_the_mean_of_a_class_without_an_image_is_nowhere():
    members = members_of(OWNERS, N + 1).float()
    middle = means(members, torch.arange(6.0)[None, :, None])
    torch.testing.assert_close(middle[0, :, 0], torch.tensor([0.5, 2.5, 4.5, 0.0]))

import pytest
import torch

from sightline.errors import SightlineError
from sightline.models.drawings import drawing_views, normalize_drawings
from sightline.models.few_shot import FewShot
from sightline.models.few_shot_config import FewShotConfig


def make_drawing(paper: float = 1.0, ink: float = 0.0) -> torch.Tensor:
    """A cross with edges of half the darkness."""
    strokes = torch.zeros(23, 23)
    strokes[9:14, 3:20] = strokes[3:20, 9:14] = 0.5
    strokes[10:13, 3:20] = strokes[3:20, 10:13] = 1.0
    return (paper + (ink - paper) * strokes)[None, None]


@pytest.mark.parametrize(
    ("paper", "ink"), [(0.75, 0.35), (0.86, 0.2), (0.95, 0.6), (0.0, 1.0), (0.2, 0.5)], ids=lambda value: f"{value}"
)
def test_any_paper_and_ink_become_black_on_white(paper, ink):
    torch.testing.assert_close(normalize_drawings(make_drawing(paper, ink)), make_drawing())


def test_dark_ink_on_white_is_unchanged():
    images = torch.cat([make_drawing(), make_drawing(0.97, 0.1)])
    assert normalize_drawings(images).equal(images)


def test_blank_paper_stays_blank():
    noise = 0.7 + 0.002 * torch.rand(1, 1, 23, 23)
    assert normalize_drawings(noise).min() > 0.9
    assert normalize_drawings(torch.full((1, 1, 5, 5), 0.3)).eq(1).all()


def test_images_of_a_batch_are_independent():
    images = torch.cat([make_drawing(), make_drawing(0.5, 0.2), make_drawing(0.0, 1.0)])
    expected = torch.cat([normalize_drawings(image[None]) for image in images])
    torch.testing.assert_close(normalize_drawings(images), expected)


def test_model_normalizes_drawings_and_refuses_color():
    torch.manual_seed(0)
    model = FewShot(
        FewShotConfig(image_size=23, channels=1, normalize_drawings=True, backbone_channels=(4, 4, 4, 8), num_heads=2)
    ).eval()
    torch.testing.assert_close(model.embed(make_drawing(0.0, 1.0)), model.embed(make_drawing()))
    with pytest.raises(SightlineError, match="channels must be 1 if normalize_drawings is true, got 3"):
        FewShotConfig(channels=3, normalize_drawings=True)


def test_views_of_a_drawing_are_rotated_to_either_side():
    drawing = make_drawing()
    drawing[..., :8] = 1  # without its left arm
    whole, left, right = drawing_views(drawing)
    assert whole is drawing
    for rotated in (left, right):
        assert rotated[..., 0, 0] == 1  # paper
        assert rotated.mean().item() == pytest.approx(whole.mean().item(), abs=0.02)
        assert (rotated - whole).abs().max() > 0.4
    torch.testing.assert_close(left.flip(-2), right)  # the drawing is its own mirror image from top to bottom
    arm = 1 - left[0, 0, :, 19]
    assert (arm * torch.arange(23)).sum() / arm.sum() != pytest.approx(11, abs=0.5)


@pytest.mark.parametrize("paper", [0.7, 1.0])
def test_embeddings_of_drawings_are_means_over_rotated_views(paper):
    torch.manual_seed(0)
    options = {"image_size": 23, "channels": 1, "backbone_channels": (4, 8), "num_heads": 2, "normalize_drawings": True}
    model = FewShot(FewShotConfig(**options, views=3)).eval()
    model.set_normalization(torch.tensor([0.9]), torch.tensor([0.3]))
    noise = 0.7 + 0.002 * torch.rand(1, 1, 23, 23)  # blank paper, which must not become ink
    images = torch.cat([make_drawing(paper, 0.35), noise])
    views = list(drawing_views(normalize_drawings(images)))
    embeddings = [model.backbone((view - 0.9) / 0.3).mean(1, keepdim=True) for view in views]
    torch.testing.assert_close(model.embed(images), embeddings[0])
    torch.testing.assert_close(model.embed_views(images), torch.stack(embeddings).mean(0))

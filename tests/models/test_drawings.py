import pytest
import torch

from sightline.models.drawings import dark_on_white
from sightline.models.few_shot import FewShot, FewShotConfig


def drawing(paper: float = 1.0, ink: float = 0.0) -> torch.Tensor:
    """A cross, its edges half as dark."""
    strokes = torch.zeros(23, 23)
    strokes[9:14, 3:20] = strokes[3:20, 9:14] = 0.5
    strokes[10:13, 3:20] = strokes[3:20, 10:13] = 1.0
    return (paper + (ink - paper) * strokes)[None, None]


@pytest.mark.parametrize(
    ("paper", "ink"), [(0.75, 0.35), (0.86, 0.2), (0.95, 0.6), (0.0, 1.0), (0.2, 0.5)], ids=lambda level: f"{level}"
)
def test_any_paper_and_pencil_become_ink_on_white(paper, ink):
    torch.testing.assert_close(dark_on_white(drawing(paper, ink)), drawing())


def test_what_is_dark_on_white_stays_as_it_is():
    images = torch.cat([drawing(), drawing(0.97, 0.1)])
    assert dark_on_white(images).equal(images)


def test_a_blank_page_stays_blank():
    grain = 0.7 + 0.002 * torch.rand(1, 1, 23, 23)
    assert dark_on_white(grain).min() > 0.9
    assert dark_on_white(torch.full((1, 1, 5, 5), 0.3)).eq(1).all()


def test_each_image_is_looked_at_alone():
    images = torch.cat([drawing(), drawing(0.5, 0.2), drawing(0.0, 1.0)])
    torch.testing.assert_close(dark_on_white(images), torch.cat([dark_on_white(one[None]) for one in images]))


def test_a_model_of_drawings_sees_them_so_and_takes_no_color():
    torch.manual_seed(0)
    model = FewShot(
        FewShotConfig(image_size=23, channels=1, normalize_drawings=True, backbone_channels=(4, 4, 4, 8), num_heads=2)
    ).eval()
    torch.testing.assert_close(model.embed(drawing(0.0, 1.0)), model.embed(drawing()))
    with pytest.raises(ValueError, match="channels must be 1 where images are drawings, got 3"):
        FewShotConfig(channels=3, normalize_drawings=True)

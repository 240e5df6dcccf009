import colorsys
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from sightline.data.images import augmentation as augment
from sightline.data.images.augmentation import Augment, Draws, apply, draw

B, C, S, CLASSES = 7, 3, 13, 5
ALL = Augment(
    crop=2,
    flip=True,
    rotate=30.0,
    scale=0.3,
    shear=10.0,
    translate=0.1,
    brightness=0.3,
    contrast=0.3,
    saturation=0.4,
    hue=0.1,
    erase=0.5,
    mixup=0.4,
    cutmix=1.0,
    probability=0.8,
)
ONE_EACH = [Augment(**{field.name: getattr(ALL, field.name)}) for field in fields(Augment)]
MANY = [*ONE_EACH, Augment(crop=2, flip=True), Augment(crop=2, flip=True, rotate=9.0), ALL]


def batch(count=B, channels=C, size=S):
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, channels, size, size), dtype=torch.uint8, generator=generator)
    return pixels, torch.arange(count) % CLASSES


def changed(config, pixels, labels, **parts):
    """What comes out when these parts of the draws are set by hand."""
    draws = draw(config, len(pixels), seed=0, step=0)
    values = draws.values.clone()
    for name, value in parts.items():
        start, stop = next((start, stop) for part, start, stop in draws.columns if part == name)
        values[:, start:stop] = torch.as_tensor(value, dtype=torch.float32)
    return apply(config, pixels, labels, CLASSES, replace(draws, values=values))


def smooth(count=2, size=32):
    """Images without sharp edges, so that sampling between pixels costs little."""
    y, x = torch.meshgrid(torch.linspace(0, 3, size), torch.linspace(0, 2, size), indexing="ij")
    image = torch.stack((torch.sin(x) * torch.cos(y), torch.cos(2 * x), torch.sin(y + x))) * 100 + 128
    return torch.stack([image.roll(i, 0) for i in range(count)]).round().to(torch.uint8), torch.arange(count)


# ---- draws


@pytest.mark.parametrize("config", MANY)
def test_draws_are_a_pure_function_of_seed_and_step(config):
    first, again = (draw(config, B, seed=3, step=5) for _ in range(2))
    assert torch.equal(first.values, again.values)
    assert first.columns == again.columns
    if (
        first.values.shape[1]
        and first["flip" if config == Augment(flip=True) else first.columns[0][0]].unique().numel() > 1
    ):
        assert not torch.equal(first.values, draw(config, B, seed=3, step=6).values)
        assert not torch.equal(first.values, draw(config, B, seed=4, step=5).values)


def test_nothing_is_on_by_default():
    pixels, labels = batch()
    config = Augment()
    draws = draw(config, B, seed=0, step=0)
    assert draws.values.shape == (B, 0)
    images, targets = apply(config, pixels, labels, CLASSES, draws)
    assert images.dtype == torch.float32
    assert torch.equal(images, pixels / 255)
    assert targets is labels


def test_turning_one_change_on_does_not_alter_the_others():
    alone, together = (
        draw(Augment(rotate=30.0), B, seed=0, step=0),
        draw(Augment(rotate=30.0, crop=4), B, seed=0, step=0),
    )
    assert torch.equal(alone["affine"], together["affine"])


def test_draws_stay_within_their_bounds():
    config = replace(ALL, mixup=0.0)
    draws = draw(config, 4001, seed=0, step=0)
    assert draws["shift"].unique().tolist() == [-2, -1, 0, 1, 2]
    assert draws["flip"].mean() == pytest.approx(0.5, abs=0.05)
    scales = draws["affine"].view(-1, 2, 3)[:, :, :2].double().det().rsqrt()
    assert scales.min() >= 1 / 1.3 - 1e-6
    assert scales.max() <= 1.3 + 1e-6
    still = (draws["affine"] == torch.tensor([1.0, 0, 0, 0, 1, 0])).all(1).float().mean()
    assert still == pytest.approx(0.2, abs=0.03)
    for part in (draws["erase"], draws["mix"][:, 1:]):
        assert part.min() >= 0
        assert part.max() <= 1 + 1e-6
    erased = (draws["erase"][:, 1] - draws["erase"][:, 0]) * (draws["erase"][:, 3] - draws["erase"][:, 2])
    assert (erased > 0).float().mean() == pytest.approx(0.5, abs=0.04)
    assert erased[erased > 0].min() >= 0.0199
    assert erased.max() <= 0.3301


def test_of_mixup_and_cutmix_each_pair_takes_one():
    mix = draw(Augment(mixup=1.0, cutmix=1.0), 4000, seed=0, step=0)["mix"]
    cut = mix[:, 2] > mix[:, 1]
    assert cut.float().mean() == pytest.approx(0.5, abs=0.05)
    assert mix[cut][:, 0].eq(1).all()
    assert mix[~cut][:, 1:].eq(0).all()
    assert torch.equal(mix[0::2], mix[1::2])
    assert not (draw(Augment(mixup=1.0), 400, seed=0, step=0)["mix"][:, 1:]).any()
    assert draw(Augment(cutmix=1.0), 400, seed=0, step=0)["mix"][:, 0].eq(1).all()


def test_rows_may_not_tear_a_pair():
    draws = draw(ALL, B, seed=0, step=0)
    assert len(draws.rows(slice(2, 6))) == 4
    assert len(draws.rows(slice(4, None))) == 3
    for part in (slice(1, 4), slice(0, 3)):
        with pytest.raises(ValueError, match="rows must start and stop at even rows where neighbors are mixed, got"):
            draws.rows(part)
    with pytest.raises(ValueError, match="rows must be a contiguous part, got step 2"):
        draws.rows(slice(0, 4, 2))
    assert len(draw(Augment(crop=1), B, seed=0, step=0).rows(slice(1, 4))) == 3


def test_a_part_that_was_not_drawn_is_named():
    with pytest.raises(ValueError, match="a part must be one of shift, got 'flip'"):
        draw(Augment(crop=1), B, seed=0, step=0)["flip"]


@pytest.mark.parametrize("bad", [{"count": -1}, {"seed": -1}, {"step": -1}, {"step": 0.5}])
def test_impossible_draws_are_refused(bad):
    given = {"count": B, "seed": 0, "step": 0} | bad
    with pytest.raises(ValueError, match=f"{next(iter(bad))} must be an integer of at least 0"):
        draw(ALL, given["count"], seed=given["seed"], step=given["step"])


# ---- the configuration


@pytest.mark.parametrize("name", [field.name for field in fields(Augment) if field.name not in ("crop", "flip")])
@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf"), "much", True])
def test_impossible_strengths_are_refused(name, value):
    with pytest.raises(ValueError, match=rf"^{name} must be a number from 0 to [\d.]+, got"):
        Augment(**{name: value})


def test_impossible_crops_and_flips_are_refused():
    with pytest.raises(ValueError, match="crop must be an integer of at least 0, got -1"):
        Augment(crop=-1)
    with pytest.raises(ValueError, match=r"flip must be true or false, got 0\.5"):
        Augment(flip=0.5)


def test_every_field_is_explained():
    from pathlib import Path

    source = Path(augment.__file__).read_text()
    for field in fields(Augment):
        after = source.split(f"\n    {field.name}: ", 1)[1].splitlines()[1]
        assert after.strip().startswith('"""'), field.name


# ---- what is done to the pixels


@pytest.mark.parametrize("config", MANY)
@pytest.mark.parametrize("channels", [1, 3])
def test_images_stay_within_0_and_1_and_the_input_as_it_was(config, channels, device):
    pixels, labels = batch(channels=channels)
    before = pixels.clone()
    draws = draw(config, B, seed=0, step=1).to(device)
    images, targets = apply(config, pixels.to(device), labels.to(device), CLASSES, draws)
    assert images.shape == pixels.shape
    assert images.dtype == torch.float32
    assert images.min() >= 0
    assert images.max() <= 1
    assert torch.equal(pixels, before)
    if config.mixes:
        assert targets.shape == (B, CLASSES)
        torch.testing.assert_close(targets.sum(1), torch.ones(B, device=device))
    else:
        assert torch.equal(targets.cpu(), labels)


@pytest.mark.parametrize("config", MANY)
@pytest.mark.parametrize("cut", [2, 4, 6])
def test_parts_of_a_batch_come_out_as_in_the_whole(config, cut):
    pixels, labels = batch()
    draws = draw(config, B, seed=1, step=2)
    whole = apply(config, pixels, labels, CLASSES, draws)
    for part in (slice(0, cut), slice(cut, B)):
        ours = apply(config, pixels[part], labels[part], CLASSES, draws.rows(part))
        for one, all_of_it in zip(ours, whole, strict=True):
            assert torch.equal(one, all_of_it[part])


@pytest.mark.parametrize("config", MANY)
def test_the_same_again_is_the_same(config):
    pixels, labels = batch()
    first, again = (apply(config, pixels, labels, CLASSES, draw(config, B, seed=1, step=2)) for _ in range(2))
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])


@pytest.mark.parametrize("extra", [{}, {"rotate": 1.0, "probability": 0.0}])
def test_flip_is_a_mirror(extra):
    pixels, labels = batch()
    images, _ = changed(Augment(flip=True, **extra), pixels, labels, flip=torch.arange(B)[:, None] % 2)
    torch.testing.assert_close(images[0::2], pixels[0::2] / 255, atol=1e-5, rtol=0)
    torch.testing.assert_close(images[1::2], pixels[1::2].flip(-1) / 255, atol=1e-5, rtol=0)


@pytest.mark.parametrize("extra", [{}, {"rotate": 1.0, "probability": 0.0}])
def test_crop_is_a_window_on_the_image_with_its_edge_repeated(extra):
    pixels, labels = batch()
    config = Augment(crop=4, **extra)
    images, _ = apply(config, pixels, labels, CLASSES, draws := draw(config, B, seed=0, step=0))
    padded = F.pad(pixels / 255, (4, 4, 4, 4), mode="replicate")
    for image, wide, (down, right) in zip(images, padded, draws["shift"].int().tolist(), strict=True):
        torch.testing.assert_close(image, wide[:, 4 + down :, 4 + right :][:, :S, :S], atol=2e-5, rtol=0)


def test_crop_and_flip_alone_invent_no_values():
    pixels, labels = batch()
    images, _ = apply(config := Augment(crop=3, flip=True), pixels, labels, CLASSES, draw(config, B, seed=0, step=0))
    assert torch.equal(images * 255, (images * 255).round())


def test_crop_and_flip_are_the_same_by_indexing_and_by_sampling():
    pixels, labels = batch()
    plain = Augment(crop=3, flip=True)
    sampled = replace(plain, rotate=1.0, probability=0.0)
    ours = apply(plain, pixels, labels, CLASSES, draw(plain, B, seed=0, step=0))[0]
    theirs = apply(sampled, pixels, labels, CLASSES, draw(sampled, B, seed=0, step=0))[0]
    torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=0)


def matrix(**given):
    still = {"degrees": 0.0, "scale": 1.0, "shear": 0.0, "right": 0.0, "down": 0.0} | given
    return augment.matrices(**{name: np.array([value]) for name, value in still.items()}).reshape(6)


@pytest.mark.parametrize("turns", [1, 2, 3])
@pytest.mark.parametrize("size", [12, 13])
def test_a_quarter_turn_is_rot90(turns, size):
    pixels, labels = batch(size=size)
    images, _ = changed(Augment(rotate=90.0), pixels, labels, affine=matrix(degrees=90.0 * turns))
    torch.testing.assert_close(images, torch.rot90(pixels / 255, turns, (2, 3)), atol=1e-5, rtol=0)


def test_translate_moves_by_shares_of_the_side():
    pixels, labels = batch(size=10)
    images, _ = changed(Augment(translate=0.5), pixels, labels, affine=matrix(right=0.2, down=-0.3))
    torch.testing.assert_close(images[:, :, :7, 2:], pixels[:, :, 3:, :8] / 255, atol=1e-5, rtol=0)


def test_scale_enlarges_the_middle():
    pixels, labels = smooth()
    images, _ = changed(Augment(scale=1.0), pixels, labels, affine=matrix(scale=2.0))
    middle = F.interpolate(pixels[:, :, 8:24, 8:24] / 255, scale_factor=2, mode="bilinear")
    torch.testing.assert_close(images[:, :, 2:-2, 2:-2], middle[:, :, 2:-2, 2:-2], atol=0.02, rtol=0)


def test_shear_moves_rows_sideways():
    pixels, labels = smooth(size=33)
    images, _ = changed(Augment(shear=45.0), pixels, labels, affine=matrix(shear=45.0))
    rows = pixels / 255
    torch.testing.assert_close(images[:, :, 16], rows[:, :, 16], atol=1e-5, rtol=0)
    torch.testing.assert_close(images[:, :, 20, 4:], rows[:, :, 20, :-4], atol=1e-5, rtol=0)  # below the middle: right
    torch.testing.assert_close(images[:, :, 12, :-4], rows[:, :, 12, 4:], atol=1e-5, rtol=0)


def test_lean_scale_turn_and_move_are_done_in_this_order():
    degrees, scale, shear, right, down = 25.0, 1.4, 12.0, 0.07, -0.04
    turn, lean = np.deg2rad(degrees), np.tan(np.deg2rad(shear))
    anticlockwise = np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])  # y runs downwards
    forward = anticlockwise @ (np.eye(2) * scale) @ np.array([[1.0, lean], [0.0, 1.0]])
    there = forward @ [0.2, -0.1] + [right, down]
    back = matrix(degrees=degrees, scale=scale, shear=shear, right=right, down=down).reshape(2, 3)
    np.testing.assert_allclose(back @ [*there, 1.0], [0.2, -0.1], atol=1e-12)


def test_images_that_are_not_square_turn_without_being_bent():
    pixels = torch.zeros(1, 1, 21, 41, dtype=torch.uint8)
    pixels[:, :, 10, 15:26] = 255  # a bar of 11
    images, _ = changed(Augment(rotate=90.0), pixels, torch.zeros(1, dtype=torch.long), affine=matrix(degrees=90.0))
    assert images[0, 0, :, 20].gt(0.9).sum() == 11


def test_brightness_multiplies():
    pixels, labels = batch()
    images, _ = changed(Augment(brightness=0.5), pixels, labels, tone=(1.5, 0.0))
    torch.testing.assert_close(images, (pixels / 255 * 1.5).clamp(0, 1))


@pytest.mark.parametrize("channels", [1, 3])
def test_contrast_multiplies_the_distance_from_the_mean_grey(channels):
    pixels, labels = batch(channels=channels)
    config = Augment(contrast=0.5)
    images, _ = apply(config, pixels, labels, CLASSES, draws := draw(config, B, seed=0, step=0))
    luma = torch.tensor([0.299, 0.587, 0.114] if channels == 3 else [1.0])[:, None, None]
    for image, old, (gain, _) in zip(images, pixels / 255, draws["tone"], strict=True):
        mean = (old * luma).sum(0).mean()
        torch.testing.assert_close(image, (mean + gain * (old - mean)).clamp(0, 1), atol=1e-6, rtol=1e-5)


def test_saturation_multiplies_the_distance_from_grey():
    pixels, labels = batch()
    for factor in (0.0, 0.4, 1.7):
        tint = augment._tints(np.array([factor]), np.array([0.0])).reshape(9)
        images, _ = changed(Augment(saturation=0.5), pixels, labels, tone=(1.0, 0.0), tint=tint)
        old = pixels / 255
        gray = (old * torch.tensor([0.299, 0.587, 0.114])[:, None, None]).sum(1, keepdim=True)
        torch.testing.assert_close(images, (gray + factor * (old - gray)).clamp(0, 1), atol=1e-5, rtol=0)


def test_a_third_of_the_circle_turns_red_to_another_color_of_the_same_brightness():
    pixels = torch.tensor([120, 100, 100], dtype=torch.uint8).view(1, 3, 1, 1).expand(1, 3, 4, 4)
    old = colorsys.rgb_to_yiq(*(pixels[0, :, 0, 0] / 255).tolist())
    for share in (1 / 3, 0.5, -0.2):
        tint = augment._tints(np.array([1.0]), np.array([share])).reshape(9)
        images, _ = changed(Augment(hue=0.5), pixels, torch.zeros(1, dtype=torch.long), tone=(1.0, 0.0), tint=tint)
        new = colorsys.rgb_to_yiq(*images[0, :, 0, 0].tolist())
        assert new[0] == pytest.approx(old[0], abs=2e-3)
        assert np.hypot(*new[1:]) == pytest.approx(np.hypot(*old[1:]), rel=0.03)
        turned = np.exp(1j * 2 * np.pi * share) * complex(*old[1:])
        assert abs(complex(*new[1:]) - turned) < 3e-3


def test_brightness_contrast_saturation_and_hue_follow_one_another():
    pixels = batch()[0] // 4 + 96  # far enough from black and white that nothing is cut off in between
    config = Augment(brightness=0.2, contrast=0.3, saturation=0.5, hue=0.2)
    images, _ = apply(config, pixels, torch.zeros(B), CLASSES, draws := draw(config, B, seed=0, step=0))
    luma = torch.tensor([0.299, 0.587, 0.114])[:, None, None]
    for image, old, tone, tint in zip(images, pixels / 255, draws["tone"], draws["tint"], strict=True):
        bright = tone.sum()  # brightness * contrast + brightness * (1 - contrast)
        step = old * bright
        mean = (step * luma).sum(0).mean()
        step = mean + (tone[0] / bright) * (step - mean)
        step = torch.einsum("ij,jhw->ihw", tint.view(3, 3), step)
        torch.testing.assert_close(image, step.clamp(0, 1), atol=1e-5, rtol=0)


def test_grey_images_have_no_color_to_change():
    pixels, labels = batch(channels=1)
    config = Augment(saturation=0.5, hue=0.5)
    images, _ = apply(config, pixels, labels, CLASSES, draw(config, B, seed=0, step=0))
    torch.testing.assert_close(images, pixels / 255)


def test_erase_fills_a_rectangle_with_the_mean_and_touches_nothing_else():
    pixels, labels = batch(size=20)
    images, _ = changed(Augment(erase=1.0), pixels, labels, erase=(0.1, 0.4, 0.5, 0.75))
    inside = torch.zeros(20, 20, dtype=torch.bool)
    inside[2:8, 10:15] = True
    old = pixels / 255
    expected = torch.where(inside, old.mean((2, 3), keepdim=True), old)
    torch.testing.assert_close(images, expected)


def test_mixup_blends_neighbors_and_their_targets():
    pixels, labels = batch()
    config = Augment(mixup=0.8)
    images, targets = apply(config, pixels, labels, CLASSES, draws := draw(config, B, seed=0, step=0))
    old, hard = pixels / 255, F.one_hot(labels, CLASSES).float()
    for row in range(B - 1):
        share = draws["mix"][row, 0]
        torch.testing.assert_close(images[row], share * old[row] + (1 - share) * old[row ^ 1])
        torch.testing.assert_close(targets[row], share * hard[row] + (1 - share) * hard[row ^ 1])
    assert torch.equal(images[-1], old[-1])
    assert torch.equal(targets[-1], hard[-1])


def test_cutmix_puts_a_rectangle_of_the_neighbor_in_and_counts_its_pixels():
    pixels, labels = batch(size=20)
    images, targets = changed(Augment(cutmix=1.0), pixels[:6], labels[:6], mix=(1.0, 0.1, 0.4, 0.5, 0.76))
    old, hard = pixels / 255, F.one_hot(labels, CLASSES).float()
    for row in range(6):
        expected = old[row].clone()
        expected[:, 2:8, 10:15] = old[row ^ 1][:, 2:8, 10:15]
        assert torch.equal(images[row], expected)
        torch.testing.assert_close(targets[row], hard[row] * (1 - 30 / 400) + hard[row ^ 1] * 30 / 400)


@given(st.integers(0, 9), st.integers(0, 50), st.sampled_from(MANY), st.sampled_from([1, 3]), st.integers(1, 6))
def test_any_batch_of_any_size_works(count, step, config, channels, size):
    pixels, labels = batch(count, channels, size)
    images, targets = apply(config, pixels, labels, CLASSES, draw(config, count, seed=0, step=step))
    assert images.shape == pixels.shape
    assert torch.isfinite(images).all()
    assert len(targets) == count


def test_what_does_not_fit_the_draws_is_refused():
    pixels, labels = batch()
    draws = draw(ALL, B, seed=0, step=0)
    with pytest.raises(ValueError, match="must have a row for each of the 7 draws, got 6 and 6"):
        apply(ALL, pixels[:6], labels[:6], CLASSES, draws)
    with pytest.raises(ValueError, match=r"pixels must be uint8 \(B, C, H, W\), got torch.float32"):
        apply(ALL, pixels / 255, labels, CLASSES, draws)


def test_nothing_asks_for_a_number_on_the_way():
    """What would make the CPU wait for a GPU breaks on a device without data."""
    pixels, labels = batch()
    draws = draw(ALL, B, seed=0, step=0)
    images, targets = apply(
        ALL, pixels.to("meta"), labels.to("meta"), CLASSES, Draws(draws.values.to("meta"), draws.columns)
    )
    assert images.shape == pixels.shape
    assert targets.shape == (B, CLASSES)


def test_it_is_one_graph_without_breaks():
    pixels, labels = batch()
    draws = draw(ALL, B, seed=0, step=0)
    compiled = torch.compile(
        lambda p, t, v: apply(ALL, p, t, CLASSES, Draws(v, draws.columns)), backend="eager", fullgraph=True
    )
    ours = compiled(pixels, labels, draws.values)
    plain = apply(ALL, pixels, labels, CLASSES, draws)
    torch.testing.assert_close(ours[0], plain[0])
    torch.testing.assert_close(ours[1], plain[1])

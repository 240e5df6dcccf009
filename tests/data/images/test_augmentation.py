import colorsys
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from sightline.data.images import augmentation
from sightline.data.images.augmentation import AugmentConfig, AugmentParams, apply, sample_params
from sightline.errors import SightlineError

B, C, S, CLASSES = 7, 3, 13, 5
ALL = AugmentConfig(
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
ONE_EACH = [AugmentConfig(**{field.name: getattr(ALL, field.name)}) for field in fields(AugmentConfig)]
MANY = [*ONE_EACH, AugmentConfig(crop=2, flip=True), AugmentConfig(crop=2, flip=True, rotate=9.0), ALL]


def batch(count=B, channels=C, size=S):
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, channels, size, size), dtype=torch.uint8, generator=generator)
    return pixels, torch.arange(count) % CLASSES


def apply_with(config, pixels, labels, **groups):
    """Apply with given values of some parameters."""
    params = sample_params(config, len(pixels), seed=0, step=0)
    values = params.values.clone()
    for name, value in groups.items():
        values[:, params.columns[name]] = torch.as_tensor(value, dtype=torch.float32)
    return apply(config, pixels, labels, CLASSES, replace(params, values=values))


def smooth_batch(count=2, size=32):
    """Images without sharp edges, which interpolation hardly changes."""
    y, x = torch.meshgrid(torch.linspace(0, 3, size), torch.linspace(0, 2, size), indexing="ij")
    image = torch.stack((torch.sin(x) * torch.cos(y), torch.cos(2 * x), torch.sin(y + x))) * 100 + 128
    return torch.stack([image.roll(i, 0) for i in range(count)]).round().to(torch.uint8), torch.arange(count)


# ---- parameters


@pytest.mark.parametrize("config", MANY)
def test_params_depend_only_on_seed_and_step(config):
    first, again = (sample_params(config, B, seed=3, step=5) for _ in range(2))
    assert torch.equal(first.values, again.values)
    assert first.columns == again.columns
    if (
        first.values.shape[1]
        and first["flip" if config == AugmentConfig(flip=True) else next(iter(first.columns))].unique().numel() > 1
    ):
        assert not torch.equal(first.values, sample_params(config, B, seed=3, step=6).values)
        assert not torch.equal(first.values, sample_params(config, B, seed=4, step=5).values)


def test_all_augmentations_are_off_by_default():
    pixels, labels = batch()
    config = AugmentConfig()
    params = sample_params(config, B, seed=0, step=0)
    assert params.values.shape == (B, 0)
    images, targets = apply(config, pixels, labels, CLASSES, params)
    assert images.dtype == torch.float32
    assert torch.equal(images, pixels / 255)
    assert targets is labels


def test_an_option_does_not_change_the_params_of_others():
    first, second = (
        sample_params(AugmentConfig(rotate=30.0), B, seed=0, step=0),
        sample_params(AugmentConfig(rotate=30.0, crop=4), B, seed=0, step=0),
    )
    assert torch.equal(first["affine"], second["affine"])


def test_params_are_within_their_bounds():
    config = replace(ALL, mixup=0.0)
    params = sample_params(config, 4001, seed=0, step=0)
    assert params["shift"].unique().tolist() == [-2, -1, 0, 1, 2]
    assert params["flip"].mean() == pytest.approx(0.5, abs=0.05)
    scales = params["affine"].view(-1, 2, 3)[:, :, :2].double().det().rsqrt()
    assert scales.min() >= 1 / 1.3 - 1e-6
    assert scales.max() <= 1.3 + 1e-6
    is_identity = (params["affine"] == torch.tensor([1.0, 0, 0, 0, 1, 0])).all(1).float().mean()
    assert is_identity == pytest.approx(0.2, abs=0.03)
    for boxes in (params["erase"], params["mix"][:, 1:]):
        assert boxes.min() >= 0
        assert boxes.max() <= 1 + 1e-6
    erased = (params["erase"][:, 1] - params["erase"][:, 0]) * (params["erase"][:, 3] - params["erase"][:, 2])
    assert (erased > 0).float().mean() == pytest.approx(0.5, abs=0.04)
    assert erased[erased > 0].min() >= 0.0199
    assert erased.max() <= 0.3301


def test_each_pair_uses_mixup_or_cutmix():
    mix = sample_params(AugmentConfig(mixup=1.0, cutmix=1.0), 4000, seed=0, step=0)["mix"]
    cut = mix[:, 2] > mix[:, 1]
    assert cut.float().mean() == pytest.approx(0.5, abs=0.05)
    assert mix[cut][:, 0].eq(1).all()
    assert mix[~cut][:, 1:].eq(0).all()
    assert torch.equal(mix[0::2], mix[1::2])
    assert not (sample_params(AugmentConfig(mixup=1.0), 400, seed=0, step=0)["mix"][:, 1:]).any()
    assert sample_params(AugmentConfig(cutmix=1.0), 400, seed=0, step=0)["mix"][:, 0].eq(1).all()


def test_slices_cannot_split_a_pair():
    params = sample_params(ALL, B, seed=0, step=0)
    assert len(params.take(slice(2, 6))) == 4
    assert len(params.take(slice(4, None))) == 3
    for part in (slice(1, 4), slice(0, 3)):
        with pytest.raises(
            SightlineError, match="batch_slice must start and stop at even indices if neighbors are mixed, got"
        ):
            params.take(part)
    with pytest.raises(SightlineError, match="batch_slice must be contiguous, got step 2"):
        params.take(slice(0, 4, 2))
    assert len(sample_params(AugmentConfig(crop=1), B, seed=0, step=0).take(slice(1, 4))) == 3


def test_groups_that_were_not_sampled_have_no_params():
    with pytest.raises(KeyError, match="flip"):
        sample_params(AugmentConfig(crop=1), B, seed=0, step=0)["flip"]


@pytest.mark.parametrize("bad", [{"batch_size": -1}, {"seed": -1}, {"step": -1}, {"step": 0.5}])
def test_invalid_arguments_are_rejected(bad):
    arguments = {"batch_size": B, "seed": 0, "step": 0} | bad
    with pytest.raises(SightlineError, match=f"{next(iter(bad))} must be an integer of at least 0"):
        sample_params(ALL, **arguments)


# ---- config


@pytest.mark.parametrize("name", [field.name for field in fields(AugmentConfig) if field.name not in ("crop", "flip")])
@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf"), "much", True])
def test_invalid_strengths_are_rejected(name, value):
    rule = "a number" if value in ("much", True) else r"a number from 0 to [\d.]+"
    with pytest.raises(SightlineError, match=rf"^{name} must be {rule}, got"):
        AugmentConfig(**{name: value})


def test_invalid_crops_and_flips_are_rejected():
    with pytest.raises(SightlineError, match="crop must be an integer of at least 0, got -1"):
        AugmentConfig(crop=-1)
    with pytest.raises(SightlineError, match=r"flip must be true or false, got 0\.5"):
        AugmentConfig(flip=0.5)


def test_all_fields_have_docstrings():
    from pathlib import Path

    source = Path(augmentation.__file__).read_text()
    for field in fields(AugmentConfig):
        after = source.split(f"\n    {field.name}: ", 1)[1].splitlines()[1]
        assert after.strip().startswith('"""'), field.name


# ---- pixels


@pytest.mark.parametrize("config", MANY)
@pytest.mark.parametrize("channels", [1, 3])
def test_images_are_between_0_and_1_and_inputs_are_not_modified(config, channels, device):
    pixels, labels = batch(channels=channels)
    before = pixels.clone()
    params = sample_params(config, B, seed=0, step=1).to(device)
    images, targets = apply(config, pixels.to(device), labels.to(device), CLASSES, params)
    assert images.shape == pixels.shape
    assert images.dtype == torch.float32
    assert images.min() >= 0
    assert images.max() <= 1
    assert torch.equal(pixels, before)
    if config.mixes_labels:
        assert targets.shape == (B, CLASSES)
        torch.testing.assert_close(targets.sum(1), torch.ones(B, device=device))
    else:
        assert torch.equal(targets.cpu(), labels)


@pytest.mark.parametrize("config", MANY)
@pytest.mark.parametrize("cut", [2, 4, 6])
def test_slices_of_a_batch_equal_the_whole_batch(config, cut):
    pixels, labels = batch()
    params = sample_params(config, B, seed=1, step=2)
    whole = apply(config, pixels, labels, CLASSES, params)
    for part in (slice(0, cut), slice(cut, B)):
        actual = apply(config, pixels[part], labels[part], CLASSES, params.take(part))
        for sliced, full in zip(actual, whole, strict=True):
            assert torch.equal(sliced, full[part])


@pytest.mark.parametrize("config", MANY)
def test_apply_is_deterministic(config):
    pixels, labels = batch()
    first, again = (apply(config, pixels, labels, CLASSES, sample_params(config, B, seed=1, step=2)) for _ in range(2))
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])


@pytest.mark.parametrize("extra", [{}, {"rotate": 1.0, "probability": 0.0}])
def test_flip_mirrors_images(extra):
    pixels, labels = batch()
    images, _ = apply_with(AugmentConfig(flip=True, **extra), pixels, labels, flip=torch.arange(B)[:, None] % 2)
    torch.testing.assert_close(images[0::2], pixels[0::2] / 255, atol=1e-5, rtol=0)
    torch.testing.assert_close(images[1::2], pixels[1::2].flip(-1) / 255, atol=1e-5, rtol=0)


@pytest.mark.parametrize("extra", [{}, {"rotate": 1.0, "probability": 0.0}])
def test_crop_shifts_images_and_repeats_edges(extra):
    pixels, labels = batch()
    config = AugmentConfig(crop=4, **extra)
    images, _ = apply(config, pixels, labels, CLASSES, params := sample_params(config, B, seed=0, step=0))
    padded = F.pad(pixels / 255, (4, 4, 4, 4), mode="replicate")
    for image, wide, (down, right) in zip(images, padded, params["shift"].int().tolist(), strict=True):
        torch.testing.assert_close(image, wide[:, 4 + down :, 4 + right :][:, :S, :S], atol=2e-5, rtol=0)


def test_crop_and_flip_do_not_interpolate():
    pixels, labels = batch()
    images, _ = apply(
        config := AugmentConfig(crop=3, flip=True), pixels, labels, CLASSES, sample_params(config, B, seed=0, step=0)
    )
    assert torch.equal(images * 255, (images * 255).round())


def test_crop_and_flip_agree_with_resampling():
    pixels, labels = batch()
    plain = AugmentConfig(crop=3, flip=True)
    sampled = replace(plain, rotate=1.0, probability=0.0)
    actual = apply(plain, pixels, labels, CLASSES, sample_params(plain, B, seed=0, step=0))[0]
    expected = apply(sampled, pixels, labels, CLASSES, sample_params(sampled, B, seed=0, step=0))[0]
    torch.testing.assert_close(actual, expected, atol=2e-5, rtol=0)


def affine(**changes):
    identity = {"degrees": 0.0, "scale": 1.0, "shear": 0.0, "right": 0.0, "down": 0.0} | changes
    return augmentation.inverse_affine(**{name: np.array([value]) for name, value in identity.items()}).reshape(6)


@pytest.mark.parametrize("turns", [1, 2, 3])
@pytest.mark.parametrize("size", [12, 13])
def test_rotations_by_90_degrees_equal_rot90(turns, size):
    pixels, labels = batch(size=size)
    images, _ = apply_with(AugmentConfig(rotate=90.0), pixels, labels, affine=affine(degrees=90.0 * turns))
    torch.testing.assert_close(images, torch.rot90(pixels / 255, turns, (2, 3)), atol=1e-5, rtol=0)


def test_translate_shifts_by_fractions_of_the_side():
    pixels, labels = batch(size=10)
    images, _ = apply_with(AugmentConfig(translate=0.5), pixels, labels, affine=affine(right=0.2, down=-0.3))
    torch.testing.assert_close(images[:, :, :7, 2:], pixels[:, :, 3:, :8] / 255, atol=1e-5, rtol=0)


def test_scale_enlarges_the_center():
    pixels, labels = smooth_batch()
    images, _ = apply_with(AugmentConfig(scale=1.0), pixels, labels, affine=affine(scale=2.0))
    middle = F.interpolate(pixels[:, :, 8:24, 8:24] / 255, scale_factor=2, mode="bilinear")
    torch.testing.assert_close(images[:, :, 2:-2, 2:-2], middle[:, :, 2:-2, 2:-2], atol=0.02, rtol=0)


def test_shear_shifts_rows_horizontally():
    pixels, labels = smooth_batch(size=33)
    images, _ = apply_with(AugmentConfig(shear=45.0), pixels, labels, affine=affine(shear=45.0))
    rows = pixels / 255
    torch.testing.assert_close(images[:, :, 16], rows[:, :, 16], atol=1e-5, rtol=0)
    torch.testing.assert_close(images[:, :, 20, 4:], rows[:, :, 20, :-4], atol=1e-5, rtol=0)  # below the center: right
    torch.testing.assert_close(images[:, :, 12, :-4], rows[:, :, 12, 4:], atol=1e-5, rtol=0)


def test_shear_scale_rotation_and_shift_are_applied_in_this_order():
    degrees, scale, shear, right, down = 25.0, 1.4, 12.0, 0.07, -0.04
    turn, lean = np.deg2rad(degrees), np.tan(np.deg2rad(shear))
    counterclockwise = np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])  # y runs downwards
    forward = counterclockwise @ (np.eye(2) * scale) @ np.array([[1.0, lean], [0.0, 1.0]])
    forward_point = forward @ [0.2, -0.1] + [right, down]
    back = affine(degrees=degrees, scale=scale, shear=shear, right=right, down=down).reshape(2, 3)
    np.testing.assert_allclose(back @ [*forward_point, 1.0], [0.2, -0.1], atol=1e-12)


def test_images_that_are_not_square_rotate_without_distortion():
    pixels = torch.zeros(1, 1, 21, 41, dtype=torch.uint8)
    pixels[:, :, 10, 15:26] = 255  # a bar of 11
    images, _ = apply_with(
        AugmentConfig(rotate=90.0), pixels, torch.zeros(1, dtype=torch.long), affine=affine(degrees=90.0)
    )
    assert images[0, 0, :, 20].gt(0.9).sum() == 11


def test_brightness_multiplies_pixels():
    pixels, labels = batch()
    images, _ = apply_with(AugmentConfig(brightness=0.5), pixels, labels, tone=(1.5, 0.0))
    torch.testing.assert_close(images, (pixels / 255 * 1.5).clamp(0, 1))


@pytest.mark.parametrize("channels", [1, 3])
def test_contrast_multiplies_the_distance_from_the_mean_gray(channels):
    pixels, labels = batch(channels=channels)
    config = AugmentConfig(contrast=0.5)
    images, _ = apply(config, pixels, labels, CLASSES, params := sample_params(config, B, seed=0, step=0))
    luma = torch.tensor([0.299, 0.587, 0.114] if channels == 3 else [1.0])[:, None, None]
    for image, old, (gain, _) in zip(images, pixels / 255, params["tone"], strict=True):
        mean = (old * luma).sum(0).mean()
        torch.testing.assert_close(image, (mean + gain * (old - mean)).clamp(0, 1), atol=1e-6, rtol=1e-5)


def test_saturation_multiplies_the_distance_from_gray():
    pixels, labels = batch()
    for factor in (0.0, 0.4, 1.7):
        tint = augmentation._tint_matrices(np.array([factor]), np.array([0.0])).reshape(9)
        images, _ = apply_with(AugmentConfig(saturation=0.5), pixels, labels, tone=(1.0, 0.0), tint=tint)
        old = pixels / 255
        gray = (old * torch.tensor([0.299, 0.587, 0.114])[:, None, None]).sum(1, keepdim=True)
        torch.testing.assert_close(images, (gray + factor * (old - gray)).clamp(0, 1), atol=1e-5, rtol=0)


def test_hue_rotates_colors_and_keeps_brightness():
    pixels = torch.tensor([120, 100, 100], dtype=torch.uint8).view(1, 3, 1, 1).expand(1, 3, 4, 4)
    old = colorsys.rgb_to_yiq(*(pixels[0, :, 0, 0] / 255).tolist())
    for share in (1 / 3, 0.5, -0.2):
        tint = augmentation._tint_matrices(np.array([1.0]), np.array([share])).reshape(9)
        images, _ = apply_with(
            AugmentConfig(hue=0.5), pixels, torch.zeros(1, dtype=torch.long), tone=(1.0, 0.0), tint=tint
        )
        new = colorsys.rgb_to_yiq(*images[0, :, 0, 0].tolist())
        assert new[0] == pytest.approx(old[0], abs=2e-3)
        assert np.hypot(*new[1:]) == pytest.approx(np.hypot(*old[1:]), rel=0.03)
        turned = np.exp(1j * 2 * np.pi * share) * complex(*old[1:])
        assert abs(complex(*new[1:]) - turned) < 3e-3


def test_color_changes_are_composed():
    pixels = batch()[0] // 4 + 96  # far from black and white, so that nothing is clamped in between
    config = AugmentConfig(brightness=0.2, contrast=0.3, saturation=0.5, hue=0.2)
    images, _ = apply(config, pixels, torch.zeros(B), CLASSES, params := sample_params(config, B, seed=0, step=0))
    luma = torch.tensor([0.299, 0.587, 0.114])[:, None, None]
    for image, old, tone, tint in zip(images, pixels / 255, params["tone"], params["tint"], strict=True):
        bright = tone.sum()  # brightness * contrast + brightness * (1 - contrast)
        step = old * bright
        mean = (step * luma).sum(0).mean()
        step = mean + (tone[0] / bright) * (step - mean)
        step = torch.einsum("ij,jhw->ihw", tint.view(3, 3), step)
        torch.testing.assert_close(image, step.clamp(0, 1), atol=1e-5, rtol=0)


def test_grayscale_images_ignore_saturation_and_hue():
    pixels, labels = batch(channels=1)
    config = AugmentConfig(saturation=0.5, hue=0.5)
    images, _ = apply(config, pixels, labels, CLASSES, sample_params(config, B, seed=0, step=0))
    torch.testing.assert_close(images, pixels / 255)


def test_erase_fills_a_rectangle_with_the_mean():
    pixels, labels = batch(size=20)
    images, _ = apply_with(AugmentConfig(erase=1.0), pixels, labels, erase=(0.1, 0.4, 0.5, 0.75))
    inside = torch.zeros(20, 20, dtype=torch.bool)
    inside[2:8, 10:15] = True
    old = pixels / 255
    expected = torch.where(inside, old.mean((2, 3), keepdim=True), old)
    torch.testing.assert_close(images, expected)


def test_mixup_blends_neighbors_and_targets():
    pixels, labels = batch()
    config = AugmentConfig(mixup=0.8)
    images, targets = apply(config, pixels, labels, CLASSES, params := sample_params(config, B, seed=0, step=0))
    old, hard = pixels / 255, F.one_hot(labels, CLASSES).float()
    for row in range(B - 1):
        share = params["mix"][row, 0]
        torch.testing.assert_close(images[row], share * old[row] + (1 - share) * old[row ^ 1])
        torch.testing.assert_close(targets[row], share * hard[row] + (1 - share) * hard[row ^ 1])
    assert torch.equal(images[-1], old[-1])
    assert torch.equal(targets[-1], hard[-1])


def test_cutmix_pastes_a_rectangle_and_weights_targets_by_area():
    pixels, labels = batch(size=20)
    images, targets = apply_with(AugmentConfig(cutmix=1.0), pixels[:6], labels[:6], mix=(1.0, 0.1, 0.4, 0.5, 0.76))
    old, hard = pixels / 255, F.one_hot(labels, CLASSES).float()
    for row in range(6):
        expected = old[row].clone()
        expected[:, 2:8, 10:15] = old[row ^ 1][:, 2:8, 10:15]
        assert torch.equal(images[row], expected)
        torch.testing.assert_close(targets[row], hard[row] * (1 - 30 / 400) + hard[row ^ 1] * 30 / 400)


@given(st.integers(0, 9), st.integers(0, 50), st.sampled_from(MANY), st.sampled_from([1, 3]), st.integers(1, 6))
def test_all_batch_and_image_sizes_work(count, step, config, channels, size):
    pixels, labels = batch(count, channels, size)
    images, targets = apply(config, pixels, labels, CLASSES, sample_params(config, count, seed=0, step=step))
    assert images.shape == pixels.shape
    assert torch.isfinite(images).all()
    assert len(targets) == count


def test_batches_of_another_size_are_rejected():
    pixels, labels = batch()
    params = sample_params(ALL, B, seed=0, step=0)
    with pytest.raises(SightlineError, match="must have the batch size of params, 7, got 6 and 6"):
        apply(ALL, pixels[:6], labels[:6], CLASSES, params)
    with pytest.raises(SightlineError, match=r"pixels must be uint8 \(B, C, H, W\), got torch.float32"):
        apply(ALL, pixels / 255, labels, CLASSES, params)


def test_apply_does_not_synchronize_the_device():
    """Reading a value fails on the meta device."""
    pixels, labels = batch()
    params = sample_params(ALL, B, seed=0, step=0)
    images, targets = apply(
        ALL, pixels.to("meta"), labels.to("meta"), CLASSES, AugmentParams(params.values.to("meta"), params.columns)
    )
    assert images.shape == pixels.shape
    assert targets.shape == (B, CLASSES)


def test_apply_compiles_without_graph_breaks():
    pixels, labels = batch()
    params = sample_params(ALL, B, seed=0, step=0)
    compiled = torch.compile(
        lambda p, t, v: apply(ALL, p, t, CLASSES, AugmentParams(v, params.columns)), backend="eager", fullgraph=True
    )
    actual = compiled(pixels, labels, params.values)
    plain = apply(ALL, pixels, labels, CLASSES, params)
    torch.testing.assert_close(actual[0], plain[0])
    torch.testing.assert_close(actual[1], plain[1])

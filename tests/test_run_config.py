"""The config of a run: changes, and the values that cannot change on resume."""

from dataclasses import replace

import pytest

from sightline.errors import SightlineError
from sightline.registry import task_spec
from sightline.run_config import fixed_values, resolve_config
from sightline.training.config import TrainingConfig

ImageClassificationTaskConfig = task_spec("image_classification").config


def test_keys_that_older_versions_lack_are_not_part_of_the_digest_of_a_config():
    """Otherwise older runs could not be resumed. The digest is that of the version without these keys."""
    fixed = fixed_values(ImageClassificationTaskConfig.starter())
    assert not fixed.keys() & {"start_from", "training.backbone_lr_ratio"}
    training = replace(ImageClassificationTaskConfig.starter().training, backbone_lr_ratio=0.5)
    changed = fixed_values(replace(ImageClassificationTaskConfig.starter(), training=training))
    assert changed["training.backbone_lr_ratio"] == 0.5


@pytest.mark.parametrize("task", ["translation", "captioning"])
def test_limits_of_the_search_are_part_of_a_digest_only_if_they_are_used(task):
    starter = task_spec(task).config.starter()
    assert "search.num_beams" in fixed_values(starter)
    assert "search.no_repeat_ngram_size" not in fixed_values(starter)
    changed = replace(starter, search=replace(starter.search, no_repeat_ngram_size=3))
    assert fixed_values(changed)["search.no_repeat_ngram_size"] == 3


def test_another_backbone_has_its_own_channels():
    changes = ["task=captioning", "model.backbone=none", "data.embedder=efficientnet_lite0"]
    assert resolve_config(None, changes)[0].model.backbone_channels is None
    changes = ["task=captioning", "model.backbone=resnet12", "model.backbone_channels=[3, 5, 7, 9]"]
    assert resolve_config(None, changes)[0].model.backbone_channels == (3, 5, 7, 9)


def test_the_encoder_is_that_of_the_run_that_training_starts_from():
    inherited = resolve_config(None, ["task=captioning", "start_from=caption"])[0]
    assert (inherited.data.embedder, inherited.data.max_tokens) == ("efficientnet_lite0", 32)
    assert inherited.data.source == "shapes"
    given = resolve_config(None, ["task=captioning", "start_from=caption", "data.max_tokens=20"])[0]
    assert given.data.max_tokens == 20
    few_shot = resolve_config(None, ["task=few_shot", "start_from=photos", "data.augmented_copies=1"])[0]
    assert few_shot.data.embedder == "efficientnet_lite0_spatial"


def test_changes_keep_the_other_values_of_their_section():
    """Without a config they change the starter; with one, missing values are defaults."""
    starter = ImageClassificationTaskConfig.starter()
    assert resolve_config(None, [])[0] == starter
    changed = resolve_config(None, ["training.ema_decay=0.5", "augment.flip=true"])[0]
    assert changed == replace(
        starter,
        training=replace(starter.training, ema_decay=0.5),
        augment=replace(starter.augment, flip=True),
    )
    values = {"data": {"source": "glyphs"}}
    assert resolve_config(values, ["training.ema_decay=0.5"])[0] == ImageClassificationTaskConfig(
        training=TrainingConfig(ema_decay=0.5)
    )


@pytest.mark.parametrize("source", [None, {"task": "masked_lm", "model": {"embed_dim": 24, "depth": 7}}])
def test_a_changed_size_determines_the_dimensions_that_are_not_changed(source):
    changes = ["task=masked_lm", "model.size=small", "model.depth=5", "model.dropout=0.3"]
    model = resolve_config(source, changes)[0].model
    assert model.dimensions == {"embed_dim": 256, "ffn_dim": 1024, "num_heads": 4, "depth": 5}
    assert model.dropout == 0.3
    translation = resolve_config(None, ["task=translation", "model.transformer.size=base"])[0]
    assert translation.model.transformer.dimensions["decoder_layers"] == 6
    assert resolve_config(None, ["task=masked_lm"])[0].model.dimensions["embed_dim"] == 64  # that of the preset


def test_changed_epochs_replace_steps_and_vice_versa():
    assert resolve_config(None, ["training.epochs=2"])[0].training.steps is None
    values = {"training": {"epochs": 3.0}}
    training = resolve_config(values, ["training.steps=7"])[0].training
    assert (training.epochs, training.steps) == (None, 7)
    with pytest.raises(SightlineError, match="training: epochs and steps must not both be given"):
        resolve_config(values, ["training.steps=7", "training.epochs=2"])

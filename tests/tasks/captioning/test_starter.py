"""The config without a file learns to caption drawn scenes, and its maps point to the objects."""

from PIL import Image

import sightline
from sightline.data.captions import shapes
from sightline.tasks.captioning.metrics import equals_one


def test_the_starter_captions_new_drawings_and_its_maps_point_to_the_objects(tmp_path):
    """94.8% and 88.3% where they were measured, after two thirds of its steps; the margins are for other roundings."""
    training = [f"training.{change}" for change in ("steps=500", "evaluate_every=500", "device=cpu")]
    sightline.train(None, ["task=captioning", *training, f"out={tmp_path / 'run'}"], quiet=True)
    predictor = sightline.load(tmp_path / "run")
    scenes = shapes.draw(31, seed=5)
    paths = [tmp_path / f"{i}.png" for i in range(len(scenes))]
    for path, image in zip(paths, scenes.pixels, strict=True):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(path)
    captions = predictor.predict(paths)
    is_right = [equals_one(caption.text, texts) for caption, texts in zip(captions, scenes.captions, strict=True)]
    assert sum(is_right) >= 27
    evaluation = predictor.evaluate()
    assert evaluation.exact > 0.9
    assert evaluation.pointing.words > 1400
    assert evaluation.pointing.accuracy > 0.8
    assert evaluation.pointing.accuracy > 7 * evaluation.pointing.chance

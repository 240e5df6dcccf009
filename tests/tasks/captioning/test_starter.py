"""The config without a file learns to caption drawn scenes, and its maps point to the objects."""

from PIL import Image

import sightline
from sightline.data.captions import shapes
from sightline.tasks.captioning.metrics import equals_one


def test_the_starter_captions_new_drawings_and_its_maps_point_to_the_objects(tmp_path):
    """98.0% and 89.0% where they were measured; the margins are for other roundings."""
    changes = ["task=captioning", "training.evaluate_every=750", "training.device=cpu", f"out={tmp_path / 'run'}"]
    sightline.train(None, changes, quiet=True)
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

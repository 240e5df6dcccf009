import numpy as np

from sightline.data.captions import shapes


def test_scenes_are_reproducible_and_captions_describe_them():
    few, more = shapes.draw(5, seed=7), shapes.draw(11, seed=7)
    assert few.pixels.equal(more.pixels[:5])
    for image, texts, (a, b) in zip(more.pixels, more.captions, more.objects, strict=True):
        assert texts[0].startswith(f"a {a.color} {a.shape} ")
        assert texts[0].endswith(f"a {b.color} {b.shape}")
        assert texts[1].split()[:3] + texts[1].split()[-3:] == texts[0].split()[:3] + texts[0].split()[-3:]
        horizontal = abs(a.x - b.x) > abs(a.y - b.y)
        word = ("left" if a.x < b.x else "right") if horizontal else ("above" if a.y < b.y else "below")
        assert word in texts[0]
        assert {"left": "to the left of", "right": "to the right of", "above": "over", "below": "under"}[word] in texts[
            1
        ]
        for item in (a, b):
            row, column = int((item.y + (0.75 * item.radius if item.shape == "ring" else 0)) * 48), int(item.x * 48)
            assert np.abs(image[:, row, column].numpy().astype(int) - shapes.COLORS[item.color]).max() < 80
            assert item.covers(item.y, item.x)


def test_objects_do_not_overlap():
    for a, b in shapes.draw(50, seed=3).objects:
        assert max(abs(a.x - b.x), abs(a.y - b.y)) > a.radius + b.radius


def test_a_scene_determines_the_order_of_its_objects():
    colors = list(shapes.COLORS)
    for a, b in shapes.draw(50, seed=3).objects:
        assert (colors.index(a.color), shapes.SHAPES.index(a.shape)) < (
            colors.index(b.color),
            shapes.SHAPES.index(b.shape),
        )

"""Make the picture of docs/few-shot.md: a page with explanations of one known and one unknown character.

python docs/few_shot_picture.py
"""

import argparse
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from sightline import FewShotClassifier
from sightline.data.images.glyphs import draw_alphabets

DOCS = Path(__file__).parent
sys.path.append(str(DOCS.parent / "tests"))
from browser import launch  # noqa: E402

IMAGES = DOCS / "images"
WAY, SHOT = 5, 3


def write_images(folder: Path) -> list[Path]:
    """Write class folders, and beside them an image of one of the classes and an image of another class."""
    drawn = draw_alphabets(size=56)
    pixels = drawn.pixels.unflatten(0, (-1, 20))[200:, :, 0].numpy()  # the alphabets of the test split
    for index in range(WAY):
        class_folder = folder / "characters" / drawn.classes[200 + index].rpartition("/")[2]
        class_folder.mkdir(parents=True)
        for shot in range(SHOT):
            Image.fromarray(pixels[index, shot]).save(class_folder / f"{shot + 1}.png")
    queries = {folder / "queries" / "new.png": pixels[1, 7], folder / "queries" / "another.png": pixels[30, 4]}
    (folder / "queries").mkdir()
    for path, image in queries.items():
        Image.fromarray(image).save(path)
    return list(queries)


def main() -> None:
    """Fit, explain and take a screenshot."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="glyphs")
    classifier = FewShotClassifier.pretrained(parser.parse_args().model)
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        queries = write_images(folder)
        print(classifier.fit(folder / "characters").summary())
        explanations = classifier.explain(queries)
        for path, prediction in explanations.pairs():
            print(f"{path.name}: {prediction}")
        page = explanations.page.save(folder / "page.html")
        browser = launch(playwright)
        window = browser.new_page(viewport={"width": 1120, "height": 600}, device_scale_factor=1.5)
        window.goto(page.as_uri())
        window.screenshot(path=IMAGES / "few-shot-explanation.png", full_page=True)
        browser.close()
    print("wrote few-shot-explanation.png")


if __name__ == "__main__":
    main()

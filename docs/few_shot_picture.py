"""Makes the picture of docs/few-shot.md: a classifier of five drawn characters, asked for one it knows and one it does
not, photographed by Chromium.

python docs/few_shot_picture.py
"""

import argparse
import shutil
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from sightline import FewShotClassifier
from sightline.data.images.glyphs import draw_alphabets

IMAGES = Path(__file__).parent / "images"
CHARACTERS, SHOT = 5, 3


def write(folder: Path) -> list[Path]:
    """A folder of class folders, and beside it an image of a class that is there and one of a class that is not."""
    drawn = draw_alphabets(size=56)
    pixels = drawn.pixels.unflatten(0, (-1, 20))[200:, :, 0].numpy()  # alphabets to judge by
    for number in range(CHARACTERS):
        home = folder / "characters" / drawn.classes[200 + number].rpartition("/")[2]
        home.mkdir(parents=True)
        for shot in range(SHOT):
            Image.fromarray(pixels[number, shot]).save(home / f"{shot + 1}.png")
    asked = {"new.png": pixels[1, 7], "another.png": pixels[30, 4]}
    for name, image in asked.items():
        Image.fromarray(image).save(folder / name)
    return [folder / name for name in asked]


def main() -> None:
    """Fit, ask, photograph."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="glyphs")
    model = FewShotClassifier.pretrained(parser.parse_args().model)
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        asked = write(folder)
        print(model.fit(folder / "characters").summary())
        page = model.page(asked).save(folder / "page.html")
        for path, answer in zip(asked, model.predict(asked), strict=True):
            print(f"{path.name}: {answer}")
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        window = browser.new_page(viewport={"width": 1120, "height": 600}, device_scale_factor=1.5)
        window.goto(page.as_uri())
        window.screenshot(path=IMAGES / "few-shot-explanation.png", full_page=True)
        browser.close()
    print("wrote few-shot-explanation.png")


if __name__ == "__main__":
    main()

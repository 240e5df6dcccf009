"""Makes the pictures of docs/viewer.md: two toy models learn for some minutes, Chromium photographs what they see.

python docs/screenshots.py
"""

import random
import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw
from playwright.sync_api import sync_playwright
from torch import Tensor, nn

from sightline.attention import Record, record_attention
from sightline.layers import SinusoidalPositions, Transformer

IMAGES = Path(__file__).parent / "images"
CHROMIUM = "--no-sandbox --disable-gpu --disable-background-networking --disable-component-update --disable-sync"
WIDTH = 48

NOUNS = {"cat": "chat", "dog": "chien", "bird": "corbeau", "fish": "poisson", "horse": "cheval"}
ADJECTIVES = {"black": "noir", "red": "rouge", "white": "blanc", "quiet": "calme"}
VERBS = {"sleeps": "dort", "eats": "mange", "sings": "chante", "runs": "court"}
ADVERBS = {"here": "ici", "often": "souvent", "slowly": "lentement", "today": "aujourd'hui"}
COLORS = {"red": "#d1493f", "blue": "#3d7bd9", "green": "#4c9a4e", "yellow": "#e3b341"}
SHAPES = ("circle", "square", "triangle")


class Speaker(nn.Module):
    """Says a sentence about a source of words or patches."""

    def __init__(self, words: list[str], source: nn.Module):
        super().__init__()
        self.words = words
        self.source, self.target = source, nn.Embedding(len(words), WIDTH)
        self.places = SinusoidalPositions(WIDTH)
        self.transformer = Transformer(WIDTH, num_heads=4, ffn_dim=96, depth=2)
        self.out = nn.Linear(WIDTH, len(words))

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """source (B, S) or (B, S, P), target (B, T) -> logits (B, T, words)"""
        return self.out(self.transformer(self.places(self.source(source)), self.places(self.target(target))))

    def say(self, source: Tensor) -> tuple[dict[str, list[str]], Record]:
        """What it read and wrote about one source, and the attention of its last pass."""
        said = [self.words.index("<s>")]
        self.eval()
        with torch.no_grad():
            while self.words[said[-1]] != "</s>" and len(said) < 16:
                said.append(int(self(source, torch.tensor([said]))[0, -1].argmax()))
            with record_attention(self) as record:
                self(source, torch.tensor([said[:-1]]))
        words = [self.words[i] for i in said]
        return {"target": words[:-1], "generated": words[1:]}, record


def learn(model: Speaker, batches: object, steps: int) -> None:
    """Teacher forcing."""
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for step in range(steps):
        source, target = batches()
        loss = F.cross_entropy(model(source, target[:, :-1]).flatten(0, 1), target[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0 or step == steps - 1:
            print(f"  step {step}: loss {loss.item():.3f}")


def translator() -> tuple[Record, dict[str, list[str]]]:
    """English to French, where adjectives follow their noun."""
    tables = (ADJECTIVES, NOUNS, VERBS, ADVERBS)
    english = ["the", *(word for table in tables for word in table)]
    french = ["<s>", "</s>", "le", *(word for table in tables for word in table.values())]
    model = Speaker(french, nn.Embedding(len(english), WIDTH))

    def pair(words: list[str]) -> tuple[list[str], list[str]]:
        adjective, noun, verb, adverb = words
        target = ["le", NOUNS[noun], ADJECTIVES[adjective], VERBS[verb], ADVERBS[adverb]]
        return ["the", *words], ["<s>", *target, "</s>"]

    def batch() -> tuple[Tensor, Tensor]:
        pairs = [pair([random.choice(list(table)) for table in tables]) for _ in range(64)]
        return (
            torch.tensor([[english.index(w) for w in source] for source, _ in pairs]),
            torch.tensor([[french.index(w) for w in target] for _, target in pairs]),
        )

    learn(model, batch, 300)
    source, _ = pair(["black", "cat", "sleeps", "here"])
    said, record = model.say(torch.tensor([[english.index(w) for w in source]]))
    return record, {"source": source, **said}


def scene(shapes: list[tuple[str, str, int, int]]) -> Image.Image:
    """Colored shapes on paper, 64 x 64."""
    image = Image.new("RGB", (512, 512), "#f4f1ea")
    draw = ImageDraw.Draw(image)
    for color, shape, x, y in shapes:
        box, fill = (8 * x, 8 * y, 8 * x + 136, 8 * y + 136), COLORS[color]
        if shape == "circle":
            draw.ellipse(box, fill)
        elif shape == "square":
            draw.rectangle(box, fill)
        else:
            draw.polygon([(box[0], box[3]), (box[2], box[3]), ((box[0] + box[2]) / 2, box[1])], fill)
    return image


def patches(image: Image.Image) -> Tensor:
    """(64, 192): an 8 x 8 grid of 8 x 8 pixels"""
    pixels = torch.from_numpy(np.asarray(image.resize((64, 64))).copy()).float() / 127.5 - 1
    return pixels.unfold(0, 8, 8).unfold(1, 8, 8).reshape(64, -1)


def captioner() -> tuple[Record, Image.Image, dict[str, list[str]]]:
    """Names two shapes, the left one first."""
    words = ["<s>", "</s>", "a", "and", *COLORS, *SHAPES]
    model = Speaker(words, nn.Linear(192, WIDTH))

    def example() -> tuple[Image.Image, list[str]]:
        kinds = [(random.choice(list(COLORS)), random.choice(SHAPES)) for _ in range(2)]
        shapes = [
            (*kinds[0], random.randint(1, 12), random.randint(1, 45)),
            (*kinds[1], random.randint(34, 45), random.randint(1, 45)),
        ]
        return scene(shapes), ["<s>", "a", *kinds[0], "and", "a", *kinds[1], "</s>"]

    pool = [example() for _ in range(1500)]
    pictures = torch.stack([patches(image) for image, _ in pool])
    captions = torch.tensor([[words.index(w) for w in caption] for _, caption in pool])

    def batch() -> tuple[Tensor, Tensor]:
        chosen = torch.randint(len(pool), (48,))
        return pictures[chosen], captions[chosen]

    learn(model, batch, 600)
    image = scene([("blue", "circle", 6, 10), ("red", "triangle", 42, 38)])
    said, record = model.say(patches(image)[None])
    return record, image, said


def main() -> None:
    """Learn, show, photograph."""
    random.seed(0)
    torch.manual_seed(0)
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        print("translator")
        record, words = translator()
        translated = record.save_html(Path(folder) / "translator.html", title="Translator", **words)
        print("captioner")
        record, image, words = captioner()
        captioned = record.save_html(Path(folder) / "captioner.html", images=image, title="Captioner", **words)
        cross = [i for i, seen in enumerate(record) if seen.kind == "cross"][-1]
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=CHROMIUM.split())
        for name, path, state, scheme in (
            ("viewer-heads", translated, "view=heads&layer=5", "light"),
            ("viewer-alignment", translated, "view=alignment&layer=5", "dark"),
            ("viewer-image", captioned, f"view=image&layer={cross}&query={words['generated'].index('blue')}", "light"),
        ):
            page = browser.new_page(
                viewport={"width": 1120, "height": 680}, color_scheme=scheme, device_scale_factor=1.5
            )
            page.goto(f"{path.as_uri()}#{state}")
            page.wait_for_selector("#stage[aria-busy=false]")
            page.wait_for_timeout(300)
            page.screenshot(path=IMAGES / f"{name}.png")
            print(f"wrote {name}.png")
        browser.close()


if __name__ == "__main__":
    main()

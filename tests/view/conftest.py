import numpy as np
import pytest

from browser import NoBrowserError, launch, new_window, open_viewer
from samples import SOURCE, TARGET, WORDS, AttentionMap, record_of, weights
from sightline.attention import Record


@pytest.fixture(scope="session")
def browser(browser_driver):
    try:
        browser = launch(browser_driver)
    except NoBrowserError as error:
        pytest.fail(str(error), pytrace=False)
    yield browser
    browser.close()


@pytest.fixture(scope="session")
def page_of_all_tests(browser):
    """Opening a file in an open page is much faster than a new page."""
    with new_window(browser) as window, open_viewer(window) as viewer:
        yield viewer


@pytest.fixture
def viewer(page_of_all_tests):
    yield page_of_all_tests
    assert page_of_all_tests.reset() == []


@pytest.fixture
def encoder():
    """Three layers of five heads over seven tokens. A page opens on the first, which has the most information."""
    return record_of(*(weights(5, 7, 7, sharp=sharp) for sharp in (3.0, 2.0, 2.0)))


@pytest.fixture
def encoder_page(encoder, tmp_path):
    return encoder.save_html(tmp_path / "encoder.html", WORDS)


@pytest.fixture
def translator():
    """Two layers of each kind, three heads, five source and seven target tokens. First layers have more information."""
    maps = [
        AttentionMap(name=f"encoder.{i}", kind="encoder", weights=weights(3, 5, 5, sharp=4 - 3 * i)) for i in (0, 1)
    ]
    for i, sharp in enumerate((4.0, 2.0)):
        decoder, cross = weights(3, 7, 7, causal=True, sharp=sharp), weights(3, 7, 5, sharp=sharp + 1)
        maps.append(AttentionMap(name=f"decoder.{i}.self", kind="decoder", weights=decoder))
        maps.append(AttentionMap(name=f"decoder.{i}.cross", kind="cross", weights=cross))
    return Record("Translator", maps)


@pytest.fixture
def translator_page(translator, tmp_path):
    return translator.save_html(tmp_path / "translator.html", source=SOURCE, target=TARGET)


@pytest.fixture
def photo():
    """A bright spot on a gradient, 96 x 96."""
    y, x = np.mgrid[0:96, 0:96]
    spot = 255 * np.exp(-((x - 30) ** 2 + (y - 60) ** 2) / 300)
    return np.stack([spot, x * 2, y * 2], -1).clip(0, 255).astype(np.uint8)


@pytest.fixture
def vit():
    """Two layers of three heads over a class token and 4 x 4 patches."""
    return record_of(*(weights(3, 17, 17) for _ in range(2)))


@pytest.fixture
def vit_page(vit, photo, tmp_path):
    return vit.save_html(tmp_path / "vit.html", images=photo)

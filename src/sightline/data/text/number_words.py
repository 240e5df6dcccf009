"""Numbers in German words and in English ones: a small translation that needs no download.

German says the ones before the tens and joins it all (siebenundvierzig, forty-seven), so a translator must learn where
to look.
"""

import numpy as np

from ...errors import SightlineError, check_int

MOST = 1_000_000
"""All numbers are below it."""
WORDS = {
    "de": "null ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn "
    "siebzehn achtzehn neunzehn",
    "en": "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen",
}
TENS = {
    "de": "zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig",
    "en": "twenty thirty forty fifty sixty seventy eighty ninety",
}
_GERMAN, _ENGLISH = WORDS["de"].split(), WORDS["en"].split()
_GERMAN_TENS, _ENGLISH_TENS = TENS["de"].split(), TENS["en"].split()


def german(number: int) -> str:
    """47 is siebenundvierzig."""
    _check(number)
    return _german(number, last="eins")


def english(number: int) -> str:
    """47 is forty-seven."""
    _check(number)
    thousands, rest = divmod(number, 1000)
    words = [f"{_english(thousands)} thousand"] if thousands else []
    if rest or not thousands:
        words.append(_english(rest))
    return " ".join(words)


def pairs(count: int, seed: int = 0) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """That many different numbers, in German and in English; short ones and long ones alike."""
    check_int(1, count=count)
    check_int(0, seed=seed)
    if count > MOST // 10:
        raise SightlineError(f"count must be at most {MOST // 10:,}, got {count:,}")
    random = np.random.default_rng(seed)
    drawn: dict[int, None] = {}
    while len(drawn) < count:
        digits = random.integers(1, 7, count)
        drawn |= dict.fromkeys((random.random(count) * 10.0**digits).astype(int).tolist())
    numbers = list(drawn)[:count]
    return tuple(map(german, numbers)), tuple(map(english, numbers))


def _german(number: int, last: str) -> str:
    """`last` is how a one at the end sounds: eins alone, ein before another word."""
    if number >= 1000:
        rest = _german(number % 1000, last) if number % 1000 else ""
        return _german(number // 1000, "ein") + "tausend" + rest
    if number >= 100:
        rest = _german(number % 100, last) if number % 100 else ""
        return _GERMAN[number // 100] + "hundert" + rest
    if number >= 20:
        tens = _GERMAN_TENS[number // 10 - 2]
        return f"{_GERMAN[number % 10]}und{tens}" if number % 10 else tens
    return last if number == 1 else _GERMAN[number]


def _english(number: int) -> str:
    if number >= 100:
        rest = f" {_english(number % 100)}" if number % 100 else ""
        return f"{_ENGLISH[number // 100]} hundred{rest}"
    if number >= 20:
        tens = _ENGLISH_TENS[number // 10 - 2]
        return f"{tens}-{_ENGLISH[number % 10]}" if number % 10 else tens
    return _ENGLISH[number]


def _check(number: int) -> None:
    check_int(0, number=number)
    if number >= MOST:
        raise SightlineError(f"number must be below {MOST:,}, got {number:,}")

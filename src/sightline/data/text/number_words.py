"""German and English number words: a small parallel corpus without a download.

German puts the ones before the tens in a single word (siebenundvierzig, forty-seven), so a translator must learn to
reorder.
"""

from ... import seeds
from ...errors import SightlineError, check_int

MAX_NUMBER = 999_999
"""Largest number that is spelled out."""
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
    """The German word of a number: 47 is siebenundvierzig."""
    _check(number)
    return _german(number, final_one="eins")


def english(number: int) -> str:
    """The English words of a number: 47 is forty-seven."""
    _check(number)
    thousands, rest = divmod(number, 1000)
    words = [f"{_english(thousands)} thousand"] if thousands else []
    if rest or not thousands:
        words.append(_english(rest))
    return " ".join(words)


def pairs(count: int, seed: int = 0) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """German and English words of `count` distinct random numbers with 1 to 6 digits."""
    check_int(1, count=count)
    check_int(0, seed=seed)
    max_count = (MAX_NUMBER + 1) // 10
    if count > max_count:
        raise SightlineError(f"count must be at most {max_count:,}, got {count:,}")
    generator = seeds.make_generator(seed, seeds.DATA)
    drawn: dict[int, None] = {}
    while len(drawn) < count:
        digits = generator.integers(1, 7, count)
        drawn |= dict.fromkeys((generator.random(count) * 10.0**digits).astype(int).tolist())
    numbers = list(drawn)[:count]
    return tuple(map(german, numbers)), tuple(map(english, numbers))


def _german(number: int, final_one: str) -> str:
    """`final_one` is the form of a final 1: eins at the end, ein before another word."""
    if number >= 1000:
        rest = _german(number % 1000, final_one) if number % 1000 else ""
        return _german(number // 1000, "ein") + "tausend" + rest
    if number >= 100:
        rest = _german(number % 100, final_one) if number % 100 else ""
        return _GERMAN[number // 100] + "hundert" + rest
    if number >= 20:
        tens = _GERMAN_TENS[number // 10 - 2]
        return f"{_GERMAN[number % 10]}und{tens}" if number % 10 else tens
    return final_one if number == 1 else _GERMAN[number]


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
    if number > MAX_NUMBER:
        raise SightlineError(f"number must be at most {MAX_NUMBER:,}, got {number:,}")

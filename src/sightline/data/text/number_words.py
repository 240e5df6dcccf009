"""German and English number words: a small parallel corpus without a download.

German puts the ones before the tens in a single word (siebenundvierzig, forty-seven), so a translator must learn to
reorder.
"""

from ... import seeds
from ...errors import check_int, check_max

MAX_NUMBER = 999_999
"""Largest number that is spelled out."""
_GERMAN, _ENGLISH, _GERMAN_TENS, _ENGLISH_TENS = (
    words.split()
    for words in (
        "null ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn "
        "siebzehn achtzehn neunzehn",
        "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
        "seventeen eighteen nineteen",
        "zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig",
        "twenty thirty forty fifty sixty seventy eighty ninety",
    )
)


def german(number: int) -> str:
    """The German word of a number: 47 is siebenundvierzig."""
    return _german(_checked(number), final_one="eins")


def english(number: int) -> str:
    """The English words of a number: 47 is forty-seven."""
    return _english(_checked(number))


def pairs(count: int, seed: int = 0) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """German and English words of `count` distinct random numbers with 1 to 6 digits."""
    generator = seeds.make_generator(seed, seeds.DATA)
    drawn: dict[int, None] = {}
    while len(drawn) < count:
        digits = generator.integers(1, 7, count)
        drawn |= dict.fromkeys((generator.random(count) * 10.0**digits).astype(int).tolist())
    numbers = list(drawn)[:count]
    return tuple(map(german, numbers)), tuple(map(english, numbers))


def _german(number: int, final_one: str) -> str:
    """`final_one` is the form of a final 1: eins at the end, ein before another word."""
    for unit, word in ((1000, "tausend"), (100, "hundert")):
        if number >= unit:
            rest = _german(number % unit, final_one) if number % unit else ""
            return _german(number // unit, "ein") + word + rest
    if number >= 20:
        tens = _GERMAN_TENS[number // 10 - 2]
        return f"{_GERMAN[number % 10]}und{tens}" if number % 10 else tens
    return final_one if number == 1 else _GERMAN[number]


def _english(number: int) -> str:
    for unit, word in ((1000, "thousand"), (100, "hundred")):
        if number >= unit:
            rest = f" {_english(number % unit)}" if number % unit else ""
            return f"{_english(number // unit)} {word}{rest}"
    if number >= 20:
        tens = _ENGLISH_TENS[number // 10 - 2]
        return f"{tens}-{_ENGLISH[number % 10]}" if number % 10 else tens
    return _ENGLISH[number]


def _checked(number: int) -> int:
    check_int(0, number=number)
    check_max(MAX_NUMBER, number=number)
    return number

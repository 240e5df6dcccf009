"""English sentences of a small grammar: a corpus for language models and text classifiers without a download.

Articles agree with nouns, nouns with verbs, and verbs with places, so that a masked word often follows from the others.
The topic of a sentence is that of its place.
"""

from ... import seeds
from ...errors import check_int

SENTENCES = "sentences"
"""Name of the built-in corpus."""
_ANIMALS = {"dog": "dogs", "cat": "cats", "horse": "horses", "duck": "ducks", "goat": "goats", "puppy": "puppies"}
_PEOPLE = {"man": "men", "woman": "women", "boy": "boys", "girl": "girls", "child": "children", "farmer": "farmers"}
_ADJECTIVES = ("young", "old", "small", "happy", "tired", "quiet")
_COLORS = ("brown", "white", "black", "gray")
_CLOTHES = ("shirt", "coat", "hat", "jacket", "sweater", "dress")
_CLOTH_COLORS = ("red", "blue", "green", "yellow", "pink")
_QUANTITIES = ("two", "three", "four", "many", "some")
_VERBS = {
    "run": "runs", "walk": "walks", "jump": "jumps", "swim": "swims", "sleep": "sleeps", "sit": "sits", "play": "plays",
}  # fmt: skip
_ADVERBS = {"run": "quickly", "walk": "slowly", "sleep": "deeply", "play": "happily"}
_PLACES: dict[str, dict[str, tuple[str, ...]]] = {
    "water": {
        "run": ("through the water", "along the river", "along the beach"),
        "walk": ("along the river", "along the beach", "through the waves"),
        "jump": ("into the water", "into the lake", "over the waves"),
        "swim": ("across the lake", "through the waves", "in the river", "in the sea"),
        "sit": ("near the lake", "on the beach"),
        "play": ("in the water", "on the beach"),
        "sleep": ("on the beach", "near the river"),
    },
    "farm": {
        "run": ("across the field", "around the barn", "through the grass"),
        "walk": ("around the barn", "across the field"),
        "jump": ("over the fence", "over the gate"),
        "sit": ("under the tree", "on the fence"),
        "play": ("in the grass", "behind the barn"),
        "sleep": ("under the tree", "in the barn"),
    },
    "city": {
        "run": ("across the street", "around the corner", "over the bridge"),
        "walk": ("down the street", "over the bridge", "past the shop"),
        "jump": ("onto the bus", "over the curb"),
        "sit": ("on the bench", "in front of the shop"),
        "play": ("in the street", "behind the school"),
        "sleep": ("on the bench", "on the bus"),
    },
    "home": {
        "run": ("down the stairs", "around the table", "through the kitchen"),
        "walk": ("up the stairs", "through the kitchen"),
        "jump": ("onto the sofa", "onto the table", "off the chair"),
        "sit": ("on the sofa", "at the table", "on the chair"),
        "play": ("on the carpet", "in the kitchen"),
        "sleep": ("in the bed", "on the sofa", "on the carpet"),
    },
}
"""Places of each verb, by topic."""
TOPICS = tuple(_PLACES)


def sentences(count: int, seed: int = 0) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """`count` distinct random sentences and their topics."""
    check_int(1, count=count)
    generator = seeds.make_generator(seed, seeds.DATA)
    drawn: dict[str, str] = {}
    while len(drawn) < count:
        sentence, topic = _sentence(generator.random(16).tolist())
        drawn[sentence] = topic
    return tuple(drawn), tuple(drawn.values())


def _sentence(random: list[float]) -> tuple[str, str]:
    """A sentence and its topic, from 16 random numbers."""

    def choose(options: tuple[str, ...]) -> str:
        return options[int(random.pop() * len(options))]

    is_person, is_plural = random.pop() < 0.5, random.pop() < 0.4
    nouns = _PEOPLE if is_person else _ANIMALS
    noun, topic = choose(tuple(nouns)), choose(TOPICS)
    verb = choose(tuple(_PLACES[topic]))
    place, adverb = choose(_PLACES[topic][verb]), _ADVERBS.get(verb, "") if random.pop() < 0.3 else ""
    adjective = choose(_ADJECTIVES if is_person else _ADJECTIVES + _COLORS) if random.pop() < 0.6 else ""
    clothes = f"in a {choose(_CLOTH_COLORS)} {choose(_CLOTHES)}" if is_person and random.pop() < 0.4 else ""
    if is_plural:
        clothes = clothes.replace("in a ", "in ") + "s" * bool(clothes) if not clothes.endswith("dress") else ""
        words = [choose(_QUANTITIES), adjective, nouns[noun], clothes, verb, adverb, place]
    else:
        article = choose(("a", "the"))
        article = "an" if article == "a" and adjective.startswith("o") else article
        words = [article, adjective, noun, clothes, _VERBS[verb], adverb, place]
    text = " ".join(word for word in words if word)
    return f"{text[0].upper()}{text[1:]}.", topic

"""Made-up words, keys and values, so that no word list of a benchmark is needed.

Plain numbers never have 7 or 10 digits: those lengths belong to the RULER and PhoneBook tests.
"""

from collections.abc import Callable
from random import Random

_DIGIT_COUNTS = (3, 4, 5, 6, 8, 9, 11, 12, 13)

Maker = Callable[[], str]


def listed(text: str) -> tuple[str, ...]:
    """The words of a string, for lists that would fill a page one word a line."""
    return tuple(text.split())


_ONSETS = ("",) * 6 + listed(
    "b c d f g h j k l m n p r s t v w y z bl br ch cl cr dr fl fr gl gr kr pl pr qu sh sk sl sm "
    "sn sp st str sw th tr tw wh"
)
_NUCLEI = listed("a e i o u") * 5 + listed("ai au ea ee ei ia ie io oa oo ou ue y")
_CODAS = listed("b ck d ff g k l ll m n nd ng nn nt p r rd rk rn rt s ss st t th x z") + ("",) * 20
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_HEX = "0123456789abcdef"


def joined(items: list[str]) -> str:
    """Items as an enumeration: ``a, b, and c``."""
    if len(items) == 1:
        return items[0]
    return ", ".join(items[:-1]) + ", and " + items[-1]


def word(rng: Random, syllables: int | None = None) -> str:
    """A pronounceable lower-case word."""
    count = syllables or rng.choice((1, 2, 2, 2, 3, 3))
    return "".join(rng.choice(_ONSETS) + rng.choice(_NUCLEI) for _ in range(count)) + rng.choice(
        _CODAS
    )


def name(rng: Random) -> str:
    """A capitalised made-up proper name."""
    return word(rng, rng.choice((1, 2, 2, 3))).capitalize()


def digits(rng: Random, count: int) -> str:
    """A number of exactly ``count`` digits without a leading zero."""
    return str(rng.randrange(10 ** (count - 1), 10**count))


def _pool(rng: Random, size: int, make: Callable[[Random], str]) -> list[str]:
    return [make(rng) for _ in range(size)]


def _person_maker(rng: Random, count: int) -> Maker:
    # A small pool of either half forces a reader to match the whole name.
    small = rng.choice((4, 12, 40, 160))
    large = max(16, 4 * count // small + 1)
    sizes = (small, large) if rng.random() < 0.7 else (large, small)
    given, family = (_pool(rng, size, name) for size in sizes)
    style = rng.choices(("{0} {1}", "{1}, {0}", "{0} {2}. {1}"), (8, 1, 1))[0]
    return lambda: style.format(rng.choice(given), rng.choice(family), rng.choice(_LETTERS))


def _pair_maker(rng: Random, vocabulary: list[str]) -> Maker:
    joint = rng.choice(("_", ".", " ", "/", "-", ""))
    if vocabulary and joint != "-" and rng.random() < 0.5:
        return lambda: f"{rng.choice(vocabulary)}{joint}{rng.choice(vocabulary)}"
    first = _pool(rng, rng.choice((6, 40, 200)), word)
    if joint:
        return lambda: f"{rng.choice(first)}{joint}{word(rng)}"
    return lambda: f"{rng.choice(first)}{name(rng)}"


def _code(rng: Random) -> str:
    letters = "".join(rng.choices(_LETTERS, k=rng.choice((2, 3))))
    return f"{letters}-{digits(rng, rng.choice((2, 3, 4)))}"


def _word_maker(rng: Random) -> Maker:
    return lambda: word(rng, rng.choice((2, 3)))


def _code_maker(rng: Random) -> Maker:
    return lambda: _code(rng)


def _address_maker(rng: Random) -> Maker:
    return lambda: f"{word(rng)}@{word(rng, 2)}.net"


def unique_keys(rng: Random, count: int, vocabulary: list[str]) -> list[str]:
    """``count`` different keys of one style.

    Args:
        rng: source of randomness.
        count: number of keys.
        vocabulary: plain words that a style may draw on; empty for made-up words only.
    """
    styles: dict[Callable[[], Maker], int] = {
        lambda: _person_maker(rng, count): 12,
        lambda: _pair_maker(rng, vocabulary): 5,
        lambda: _word_maker(rng): 2,
        lambda: _code_maker(rng): 2,
        lambda: _address_maker(rng): 1,
    }
    make = rng.choices(list(styles), list(styles.values()))[0]()
    keys: dict[str, None] = {}
    while len(keys) < count:
        keys[make()] = None
    return list(keys)


def number_maker(rng: Random) -> Maker:
    """A maker of plain numbers of one length."""
    count = rng.choice(_DIGIT_COUNTS)
    return lambda: digits(rng, count)


def value_maker(rng: Random) -> Maker:
    """A maker of values of one style: mostly plain numbers."""
    styles: dict[Maker, int] = {
        number_maker(rng): 16,
        lambda: f"{digits(rng, 3)}-{digits(rng, 4)}": 2,
        lambda: f"({digits(rng, 3)}) {digits(rng, 2)} {digits(rng, 4)}": 1,
        lambda: f"{digits(rng, 4)} {digits(rng, 4)} {digits(rng, 4)}": 1,
        lambda: "".join(rng.choices(_HEX, k=8)) + "-" + "".join(rng.choices(_HEX, k=4)): 2,
        lambda: word(rng, 3): 2,
        lambda: f"{word(rng)} {word(rng)}": 1,
    }
    return rng.choices(list(styles), list(styles.values()))[0]

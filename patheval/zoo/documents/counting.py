"""Word counting: lists in which some words are more common, then questions about them."""

from collections import Counter
from random import Random

from patheval.zoo.documents import words
from patheval.zoo.documents.corpus import Corpus

_QUESTIONS = (
    ("Which {count} words are the most common?", " {words}"),
    ("Name the {count} words that occur most.", " The {count} words that occur most: {words}"),
)


def write(rng: Random, num_chars: int, corpus: Corpus) -> str:
    """A list of about ``num_chars`` characters with the words that occur most in it."""
    num_common = rng.randint(2, 6)
    common = list({words.word(rng, 2): None for _ in range(num_common)})
    times = rng.randint(3, 8)
    room = max(num_chars - 80 - len(common) * 8 * (times + 1), 16)
    items = common * times
    while room > 0:
        rare = words.word(rng, 2)
        items.append(rare)
        room -= len(rare) + 4
    rng.shuffle(items)
    counts = Counter(items)
    top = sorted(common, key=lambda item: (-counts[item], items.index(item)))
    if rng.random() < 0.5:
        text = " ".join(f"{number}. {item}" for number, item in enumerate(items, 1))
    else:
        text = rng.choice((" ", ", ", "\n")).join(items)
    ask, answer = rng.choice(_QUESTIONS)
    listed = rng.choice((" ", ", ")).join(top)
    return text + "\n" + (ask + answer).format(count=len(top), words=listed) + "\n"

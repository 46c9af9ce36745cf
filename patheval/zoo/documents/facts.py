"""Facts in sentences of random words, hidden in filler of random words, then asked for.

Every document has its own wording, so a reader cannot lean on set phrases: what is left is to find
the key again and to give what stood with it.
"""

from random import Random

from patheval.zoo.documents import words
from patheval.zoo.documents.corpus import Corpus

_SMALL_WORDS = words.listed(
    "the a of for in on with from to and or this that these some all one any each by at as"
)
_LINKS = (" is", " is", " is:", ":", " =", " was", " has", " reads", " means", " ->")
_ASKS = ("What is", "What was", "Which is", "Tell me", "Find", "Recall", "Give", "Say", "Name")
_LEADS = ("The", "The", "One of the", "Some", "This", "Here is that the", "As for the", "Of all")
_PAIRINGS = ("for", "for", "of", "with", "from", "at")
_SHORT_ANSWERS = (" ", "\n", " Answer: ")
_SKIPPED = frozenset({"magic"})


class _Wording:
    """The words in which one document states and asks its facts."""

    def __init__(self, rng: Random, vocabulary: list[str]) -> None:
        self.rng = rng
        self.vocabulary = [word for word in vocabulary if word not in _SKIPPED]
        self.subject = self._words(1, 3)
        self.pairing = rng.choice(_PAIRINGS)
        self.tail = self._phrase(0, 5)

    def _words(self, low: int, high: int) -> str:
        return " ".join(self.rng.choices(self.vocabulary, k=self.rng.randint(low, high)))

    def _phrase(self, low: int, high: int) -> str:
        count = self.rng.randint(low, high)
        pools = self.rng.choices((self.vocabulary, _SMALL_WORDS), k=count)
        return "".join(f" {self.rng.choice(pool)}" for pool in pools)

    def _link(self, plural: bool) -> str:
        link = self.rng.choice(_LINKS)
        return link.replace(" is", " are").replace(" was", " were") if plural else link

    def statements(self, facts: dict[str, str]) -> list[str]:
        """One sentence for each fact, all in the same words."""
        rng = self.rng
        start, middle = f"{rng.choice(_LEADS)} {self.subject}", self._phrase(0, 2)
        link, end = (
            self._link(False),
            rng.choice((".", ".", ".", "", ";", f"{self._phrase(1, 3)}.")),
        )
        if rng.random() < 0.2:
            start = self._phrase(0, 4).strip().capitalize()
            return [f"{start} {key}{middle}{link} {value}{end}" for key, value in facts.items()]
        return [
            f"{start} {self.pairing} {key}{middle}{link} {value}{end}"
            for key, value in facts.items()
        ]

    def question(self, keys: list[str], values: list[str]) -> str:
        """A question for some keys and its answer, mostly in a whole sentence."""
        rng = self.rng
        plural = len(keys) > 1
        subject = self.subject if rng.random() < 0.8 else self._words(1, 3)
        subject += "s" if plural else ""
        tail = self.tail if rng.random() < 0.7 else self._phrase(0, 5)
        about = f"{subject} {self.pairing} {words.joined(keys)}{tail}"
        ask = f"{rng.choice(_ASKS)} the {about}{rng.choice(('?', '?', '.'))}"
        given = words.joined(values)
        shape = rng.random()
        if shape < 0.6:
            return f"{ask} The {about}{self._link(plural)} {given}{rng.choice(('.', ''))}"
        if shape < 0.8:
            other = f"{self._phrase(0, 3).strip()} {words.joined(keys)}{self._phrase(0, 4)}"
            return f"{ask} {other.strip()}{self._link(plural)} {given}."
        return f"{ask}{rng.choice(_SHORT_ANSWERS)}{given}"

    def introduction(self) -> str:
        """A line before the haystack, or nothing."""
        rng = self.rng
        if rng.random() < 0.3:
            return ""
        parts = [f"{self._phrase(2, 6).strip().capitalize()} {self.subject}{self._phrase(1, 6)}."]
        parts += [f"{self._phrase(3, 9).strip().capitalize()}." for _ in range(rng.randint(0, 2))]
        return " ".join(parts) + "\n"

    def filler_line(self) -> str:
        """A few short sentences, to be repeated."""
        rng = self.rng
        sentences = []
        for _ in range(rng.randint(1, 6)):
            if rng.random() < 0.6:
                sentences.append(f"The {self._words(1, 1)} is {self._words(1, 1)}.")
            else:
                sentences.append(f"{self._phrase(2, 6).strip().capitalize()}.")
        return " ".join(sentences)


def _haystack(rng: Random, wording: _Wording, num_chars: int, corpus: Corpus) -> list[str]:
    if rng.random() < 0.65:
        line = wording.filler_line()
        return [line] * (num_chars // (len(line) + 1) + 1)
    return corpus.sentences(rng, num_chars)


def write(rng: Random, num_chars: int, corpus: Corpus) -> str:
    """A haystack of about ``num_chars`` characters with its facts and questions."""
    wording = _Wording(rng, corpus.words)
    make_value = words.number_maker(rng) if rng.random() < 0.75 else words.value_maker(rng)
    num_facts = min(rng.choice((1, 1, 1, 2, 4, 8, 16, 32)), max(1, num_chars // 160))
    facts = {key: make_value() for key in words.unique_keys(rng, num_facts, corpus.words)}

    keys = rng.sample(list(facts), num_facts)
    if num_facts < 4:
        keys *= rng.randint(1, 4)
    group = rng.choice((1, 1, 1, 1, 2, 4)) if num_facts >= 4 else 1
    questions = [
        wording.question(asked, [facts[key] for key in asked])
        for asked in (keys[i : i + group] for i in range(0, len(keys), group))
    ]
    intro = wording.introduction()
    ending = "\n" + "\n".join(questions)
    lines = wording.statements(facts)
    room = num_chars - len(intro) - len(ending) - sum(map(len, lines))
    haystack = _haystack(rng, wording, max(room, 0), corpus)
    for position in sorted(rng.choices(range(len(haystack) + 1), k=num_facts), reverse=True):
        haystack.insert(position, lines.pop())
    return intro + rng.choice(("\n", "\n", " ")).join(haystack) + ending

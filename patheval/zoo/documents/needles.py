"""Needles in haystacks: a few facts hidden in filler, then questions about them."""

from random import Random

from patheval.zoo.documents import words
from patheval.zoo.documents.corpus import Corpus

_ADJECTIVES = words.listed(
    "secret hidden private official assigned current final access lucky rare stored unique "
    "registered internal favourite original"
)
_NOUNS = words.listed("code number pin figure passcode value key label token entry reading mark")
_NEEDLES = (
    "The {adjective} {noun} for {key} is {value}.",
    "The {adjective} {noun} for {key} is: {value}.",
    "The {adjective} {noun} of {key} is {value}.",
    "Among the {adjective} {noun}s, the one of {key} is: {value}.",
    "Of all {adjective} {noun}s here, {key} has {value}.",
    "{key} has the {adjective} {noun} {value}.",
    "Note that {key} was given the {noun} {value}.",
    "For {key}, the {adjective} {noun} reads {value}.",
    "Remember this {adjective} {noun}: {key} = {value}.",
    "{key} -> {value}",
    "Please keep {value} as the {noun} of {key}.",
    "{value} is the {adjective} {noun} of {key}.",
)
_INTROS = (
    "",
    "Some facts are scattered in this text. Questions follow.\n",
    "One {adjective} {noun} is hidden in the lines below. Keep it in mind.\n",
    "Several {adjective} {noun}s are mentioned in the passage. Learn them, they are asked later.\n",
    "Read carefully and remember every {noun}.\n\n",
)
_QUESTIONS = (
    "What is the {adjective} {noun} for {key}?",
    "What is the {adjective} {noun} for {key} given in the text above?",
    "Which {noun} belongs to {key}?",
    "Which {adjective} {noun} was mentioned for {key} in the passage?",
    "Question: {noun} of {key}?",
    "Tell me the {noun} of {key}.",
)
_ANSWERS = (
    " {value}",
    "\nAnswer: {value}",
    " The {adjective} {noun} for {key} is {value}.",
    " The {adjective} {noun} for {key} given in the text above is {value}.",
    " In the passage, the {noun} mentioned for {key} is {value}.",
    " It is {value}.",
    "\n{key}: {value}",
    " According to the text, the {noun} that belongs to {key} is: {value}.",
)
_GROUP_QUESTIONS = (
    "What are the {adjective} {noun}s for {keys}?",
    "List the {noun}s of {keys} given above.",
)
_GROUP_ANSWERS = (
    " The {adjective} {noun}s for {keys} are {values}.",
    " They are {values}.",
    "\n{values}",
)
_FILLERS = (
    "The river runs to the sea.",
    "Rain falls on the old roof.",
    "A clock ticks in the hall.",
    "The night is long and quiet.",
    "Birds sing before dawn.",
    "Snow covers the narrow road.",
    "Someone left the lamp on.",
    "Wheels turn and dust rises.",
    "The market opens at nine.",
    "Bread is sold by the door.",
    "Nothing happens here.",
    "Later the wind changes.",
    "Up and down it goes.",
    "Stones are heavy and leaves are light.",
    "Then it begins once more.",
    "Two boats wait at the pier.",
    "It was the same as before.",
    "We walk on.",
)


def _filler(rng: Random, num_chars: int, corpus: Corpus) -> list[str]:
    if rng.random() < 0.5:
        line = " ".join(rng.sample(_FILLERS, rng.randint(1, 5)))
        return [line] * (num_chars // len(line) + 1)
    return corpus.sentences(rng, num_chars)


def _question(rng: Random, keys: list[str], values: list[str], terms: dict[str, str]) -> str:
    if len(keys) == 1:
        template = rng.choice(_QUESTIONS) + rng.choice(_ANSWERS)
        return template.format(key=keys[0], value=values[0], **terms)
    template = rng.choice(_GROUP_QUESTIONS) + rng.choice(_GROUP_ANSWERS)
    return template.format(keys=words.joined(keys), values=words.joined(values), **terms)


def write(rng: Random, num_chars: int, corpus: Corpus) -> str:
    """A haystack of about ``num_chars`` characters with its needles and questions."""
    terms = {"adjective": rng.choice(_ADJECTIVES), "noun": rng.choice(_NOUNS)}
    make_value = words.number_maker(rng) if rng.random() < 0.7 else words.value_maker(rng)
    num_needles = min(rng.choice((1, 1, 2, 4, 8, 16, 32)), max(1, num_chars // 200))
    facts = {key: make_value() for key in words.unique_keys(rng, num_needles, corpus.words)}
    needle = rng.choice(_NEEDLES)
    needles = [needle.format(key=key, value=value, **terms) for key, value in facts.items()]

    asked = rng.sample(list(facts), min(num_needles, rng.choice((1, 2, 4, 8, 16))))
    group = rng.choice((1, 1, 1, 2, 4))
    questions = [
        _question(rng, keys, [facts[key] for key in keys], terms)
        for keys in (asked[i : i + group] for i in range(0, len(asked), group))
    ]
    intro = rng.choice(_INTROS).format(**terms)
    ending = "\n" + "\n".join(questions)
    room = num_chars - len(intro) - len(ending) - sum(map(len, needles))
    lines = _filler(rng, max(room, 0), corpus)
    for position in sorted(rng.choices(range(len(lines) + 1), k=num_needles), reverse=True):
        lines.insert(position, needles.pop())
    return intro + rng.choice(("\n", " ")).join(lines) + ending

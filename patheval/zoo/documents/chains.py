"""Variable tracking: chains of assignments, then questions about what holds which value."""

from itertools import pairwise
from random import Random

from patheval.zoo.documents import words
from patheval.zoo.documents.corpus import Corpus

_ASSIGNMENTS = (
    ("let {name} = {value}", "let {name} = {source}"),
    ("{name} := {value}", "{name} := {source}"),
    ("set {name} to {value}", "set {name} to {source}"),
    ("{name} = {value};", "{name} = {source};"),
    ("store {value} in {name}", "copy {source} to {name}"),
    ("DEF {name} {value}", "DEF {name} {source}"),
)
_HOLDERS = (
    ("Which names hold {value}?", " {names}"),
    ("Find every name that is equal to {value}.", " {count} names are equal to {value}: {names}"),
    ("Who has {value}?", "\nAnswer: {names}"),
)
_VALUES = (
    ("What is {name}?", " {value}"),
    ("{name} =", " {value}"),
    ("Print {name}.", " {value}"),
)


def _variable(rng: Random, upper: bool) -> str:
    if upper:
        return "".join(rng.choices("ABCDEFGHIJKLMNOPQRSTUVWXYZ", k=rng.choice((2, 3, 4))))
    return words.word(rng, rng.choice((1, 2)))


def _names(rng: Random, count: int) -> list[str]:
    upper = rng.random() < 0.5
    names: dict[str, None] = {}
    while len(names) < count:
        names[_variable(rng, upper)] = None
    return list(names)


def write(rng: Random, num_chars: int, corpus: Corpus) -> str:
    """Chains of assignments of about ``num_chars`` characters, mixed with other lines."""
    num_chains = rng.choice((1, 2, 3, 4, 6))
    num_hops = rng.randint(0, 5)
    make_value = words.number_maker(rng)
    start, hop = rng.choice(_ASSIGNMENTS)
    names = _names(rng, num_chains * (num_hops + 1))
    chains = [names[i::num_chains] for i in range(num_chains)]
    values = [make_value() for _ in chains]

    queues = [
        [start.format(name=chain[0], value=value)]
        + [hop.format(name=new, source=old) for old, new in pairwise(chain)]
        for chain, value in zip(chains, values, strict=True)
    ]
    order = [i for i, queue in enumerate(queues) for _ in queue]
    rng.shuffle(order)
    lines = [queues[i].pop(0) for i in order]

    separator = rng.choice((" ", ", "))
    questions = []
    for chain, value in zip(chains, values, strict=True):
        ask, answer = rng.choice(_HOLDERS)
        joined = separator.join(chain)
        questions.append((ask + answer).format(value=value, names=joined, count=len(chain)))
        for member in rng.sample(chain, min(2, len(chain))):
            questions.append("".join(rng.choice(_VALUES)).format(name=member, value=value))
    rng.shuffle(questions)
    ending = "\n\n" + "\n".join(questions)

    room = num_chars - len(ending) - sum(map(len, lines))
    if room > 0:
        filler = corpus.sentences(rng, room)
        for position in sorted(rng.choices(range(len(filler) + 1), k=len(lines)), reverse=True):
            filler.insert(position, lines.pop())
        lines = filler
    return "\n".join(lines) + ending

"""Key-value books: many lines ``key: value``, then the same book asked many times."""

from random import Random

from patheval.zoo.documents import words
from patheval.zoo.documents.corpus import Corpus

_LINES = {
    "{key}: {value}": 14,
    "{key} - {value}": 1,
    "{key} = {value}": 1,
    "{key} -> {value}": 1,
    "{key}\t{value}": 1,
    "{key}, {value}": 1,
    "{key} | {value}": 1,
    "* {key}: {value}": 1,
}
_TITLES = ("", "", "", "Directory", "Entries:", "List of records", "Register", "# Table", "Book")
_QUESTIONS = (
    "What is listed for {key}? {value}",
    "Find {key}. {value}",
    "Q: {key}\nA: {value}",
    "Value of {key}: {value}",
    "The entry of {key} is {value}.",
)


def write(rng: Random, num_chars: int, corpus: Corpus) -> str:
    """A book of about ``num_chars`` characters with its questions."""
    line = rng.choices(list(_LINES), list(_LINES.values()))[0]
    make_value = words.value_maker(rng)
    sample = line.format(key=words.unique_keys(rng, 1, [])[0], value=make_value())
    num_entries = max(2, round(num_chars * rng.uniform(0.4, 0.8) / (len(sample) + 1)))
    entries = [(key, make_value()) for key in words.unique_keys(rng, num_entries, corpus.words)]

    body = "\n".join(line.format(key=key, value=value) for key, value in entries)
    ask = line if rng.random() < 0.7 else rng.choice(_QUESTIONS)
    joints = rng.choice((("\n",), ("\n\n",), ("\n", "\n\n")))
    title = rng.choice(_TITLES)
    parts = [f"{title}\n{body}" if title else body, "\n\n"]
    length = len(parts[0]) + 2
    while True:
        for key, value in rng.sample(entries, len(entries)):
            query = ask.format(key=key, value=value) + rng.choice(joints)
            if len(query) + length > num_chars and len(parts) > 2:
                return "".join(parts)
            parts.append(query)
            length += len(query)

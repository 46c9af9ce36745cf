import re
from random import Random

from patheval.zoo.documents import stories
from patheval.zoo.documents.corpus import Corpus

_WHERE = re.compile(r"Where is ([A-Z]\w+)\?(?: Answer:)?\s(\w+)")


def test_people_are_where_they_went_last(corpus: Corpus) -> None:
    checked = 0
    for seed in range(200):
        for story in stories.write(Random(seed), 800, corpus).split("\n\n"):
            for match in _WHERE.finditer(story):
                told = story[: match.start()]
                moves = re.findall(rf"\b{match[1]} \w+ to the (\w+)\.", told)
                if moves:
                    checked += 1
                    assert moves[-1] == match[2]
    assert checked > 100

"""Stories of people, places and things with questions on the current state of the world."""

from random import Random

from patheval.zoo.documents import words
from patheval.zoo.documents.corpus import Corpus

_PLACES = words.listed(
    "attic cellar library studio stable tower bakery chapel workshop harbour market museum "
    "orchard pantry terrace theatre tunnel warehouse lobby meadow"
)
_THINGS = words.listed(
    "lamp rope coin basket hammer letter mirror blanket kettle candle ladder map needle "
    "painting ring scarf spoon ticket umbrella violin"
)
_MOVES = ("went to", "walked to", "moved to", "ran to", "returned to", "travelled to")
_TAKES = ("took", "lifted", "got", "collected", "picked up")
_DROPS = ("dropped", "left", "put down", "set aside")
_GIVES = ("gave", "handed", "passed")
_JOINTS = (" ", " Answer: ", "\n")
_SIDES = {"north": "south", "south": "north", "east": "west", "west": "east"}


class _World:
    """Who is where and what lies where, with one sentence for each change."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.people = list({words.name(rng): None for _ in range(rng.randint(2, 5))})
        self.places = rng.sample(_PLACES, rng.randint(3, 6))
        self.things = rng.sample(_THINGS, rng.randint(1, 4))
        self.at: dict[str, str] = {}
        self.before: dict[str, str] = {}
        self.holder: dict[str, str] = {}
        self.lies: dict[str, str] = {}
        self.gift: tuple[str, str, str] | None = None

    def step(self) -> str:
        """Changes the world and tells how."""
        rng = self.rng
        person = rng.choice(self.people)
        held = [thing for thing in self.things if self.holder.get(thing) == person]
        act = rng.random()
        if person not in self.at or act < 0.5:
            place = rng.choice([place for place in self.places if place != self.at.get(person)])
            if person in self.at:
                self.before[person] = self.at[person]
            self.at[person] = place
            return f"{person} {rng.choice(_MOVES)} the {place}."
        if held and act < 0.65:
            thing = rng.choice(held)
            del self.holder[thing]
            self.lies[thing] = self.at[person]
            return f"{person} {rng.choice(_DROPS)} the {thing}."
        others = [other for other in self.people if other != person]
        if held and others and act < 0.8:
            thing, other = rng.choice(held), rng.choice(others)
            self.holder[thing] = other
            self.at.setdefault(other, self.at[person])
            self.gift = (person, thing, other)
            return f"{person} {rng.choice(_GIVES)} the {thing} to {other}."
        thing = rng.choice(self.things)
        self.holder[thing] = person
        self.lies.pop(thing, None)
        return f"{person} {rng.choice(_TAKES)} the {thing}."

    def question(self) -> str:
        """A question that the story so far answers, with its answer."""
        choices = [(f"Where is {who}?", place) for who, place in self.at.items()]
        choices += [
            (f"Where was {who} before the {self.at[who]}?", place)
            for who, place in self.before.items()
        ]
        for thing in self.things:
            if thing in self.holder:
                choices.append((f"Who has the {thing}?", self.holder[thing]))
                choices.append((f"Where is the {thing}?", self.at[self.holder[thing]]))
            elif thing in self.lies:
                choices.append((f"Where is the {thing}?", self.lies[thing]))
        if self.gift:
            giver, thing, taker = self.gift
            choices.append((f"Who gave the {thing} to {taker}?", giver))
            choices.append((f"What did {giver} give to {taker}?", thing))
            choices.append((f"Who did {giver} give the {thing} to?", taker))
        ask, answer = self.rng.choice(choices)
        return f"{ask}{self.rng.choice(_JOINTS)}{answer}"


def _compass(rng: Random) -> str:
    first, second, third = rng.sample(_PLACES, 3)
    side, other = rng.choice(list(_SIDES)), rng.choice(list(_SIDES))
    facts = [f"The {first} is {side} of the {second}.", f"The {second} is {other} of the {third}."]
    rng.shuffle(facts)
    ask, answer = rng.choice(
        (
            (f"What is {side} of the {second}?", first),
            (f"What is the {first} {side} of?", second),
            (f"What is the {second} {other} of?", third),
            (f"What is {_SIDES[other]} of the {second}?", third),
        )
    )
    return f"{facts[0]} {facts[1]} {ask} {answer}\n"


def write(rng: Random, num_chars: int, corpus: Corpus) -> str:
    """One story after another, about ``num_chars`` characters, some told between other text."""
    parts: list[str] = []
    length = 0
    noisy = rng.random() < 0.4
    while length < num_chars:
        if rng.random() < 0.1:
            story = _compass(rng)
        else:
            world = _World(rng)
            told: list[str] = []
            for _ in range(rng.randint(2, 12)):
                told.append(world.step())
                if noisy:
                    told += corpus.sentences(rng, rng.choice((0, 100, 400)))
                if rng.random() < 0.3:
                    told.append(world.question() + "\n")
            told.append(world.question() + "\n")
            story = " ".join(told) + "\n"
        parts.append(story)
        length += len(story)
    return "".join(parts)

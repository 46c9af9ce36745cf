"""Little worlds of people, rooms and things: facts, a question and its answer, as in bAbI.

The tasks that need no data set are made of these stories; they have the form, the names and the
verbs of bAbI's tasks 1 to 5.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..generation import SampleRng

_PEOPLE = ("John", "Mary", "Daniel", "Sandra")
_GIVERS = ("Fred", "Bill", "Jeff", "Mary")
_ROOMS = ("bathroom", "bedroom", "garden", "hallway", "kitchen", "office")
_THINGS = ("apple", "football", "milk")
_MOVED = ("went to", "went back to", "moved to", "travelled to", "journeyed to")
_TOOK = ("took", "got", "grabbed", "picked up")
_DROPPED = ("dropped", "discarded", "put down", "left")
_GAVE = ("gave", "handed", "passed")
_OPPOSITE = {"north": "south", "south": "north", "east": "west", "west": "east"}


@dataclass(frozen=True)
class Story:
    """Facts, a question about them, and its answer.

    Attributes:
        facts: Sentences in the order of what happened.
        question: The question.
        target: The answer.
    """

    facts: list[str]
    question: str
    target: str


def hide(facts: Sequence[str], places: Sequence[int], sentences: Sequence[str]) -> str:
    """Puts facts between the sentences of a text.

    Args:
        facts: Sentences to hide, in order.
        places: For each fact, in ascending order, how many sentences come before it.
        sentences: The text.
    """
    pieces: list[str] = []
    start = 0
    for fact, place in zip(facts, places, strict=True):
        pieces += [*sentences[start:place], fact]
        start = place
    return " ".join(piece for piece in [*pieces, *sentences[start:]] if piece)


def tell(task: str, rng: SampleRng) -> Story:
    """Makes a story.

    Args:
        task: `qa1` to `qa5`.
        rng: Source of randomness.
    """
    return _TELLERS[task](rng)


@dataclass
class _World:
    """Where people are, who has what, and where each thing has been."""

    rng: SampleRng
    people: tuple[str, ...]
    facts: list[str] = field(default_factory=list)
    room_of: dict[str, str] = field(default_factory=dict)
    owner_of: dict[str, str] = field(default_factory=dict)
    been_in: dict[str, list[str]] = field(default_factory=dict)

    def move(self) -> None:
        person = self.rng.choice(self.people)
        room = self.rng.choice(tuple(r for r in _ROOMS if r != self.room_of.get(person)))
        self.facts.append(f"{person} {self.rng.choice(_MOVED)} the {room}.")
        self.room_of[person] = room
        for thing, owner in self.owner_of.items():
            if owner == person:
                self.been_in[thing].append(room)

    def take_or_drop(self) -> None:
        placed = [person for person in self.people if person in self.room_of]
        if not placed:
            return self.move()
        person, thing = self.rng.choice(tuple(placed)), self.rng.choice(_THINGS)
        room = self.room_of[person]
        if self.owner_of.get(thing) == person:
            del self.owner_of[thing]
            self.facts.append(f"{person} {self.rng.choice(_DROPPED)} the {thing}.")
        elif thing not in self.owner_of and self.been_in.get(thing, [room])[-1] == room:
            self.owner_of[thing] = person
            self.been_in.setdefault(thing, [room])
            self.facts.append(f"{person} {self.rng.choice(_TOOK)} the {thing} there.")
        else:
            self.move()
        return None

    def step(self) -> None:
        if self.rng.fraction() < 0.6:
            self.move()
        else:
            self.take_or_drop()


def _where_is_somebody(rng: SampleRng) -> Story:
    world = _World(rng, _PEOPLE)
    for _ in range(2 * rng.integer(1, 6)):
        world.move()
    person = rng.choice(tuple(world.room_of))
    return Story(world.facts, f"Where is {person}?", world.room_of[person])


def _where_is_something(rng: SampleRng) -> Story:
    world = _World(rng, _PEOPLE)
    num_facts = rng.integer(2, 25)
    while len(world.facts) < num_facts or not world.been_in:
        world.step()
    thing = rng.choice(tuple(world.been_in))
    return Story(world.facts, f"Where is the {thing}?", world.been_in[thing][-1])


def _where_was_something(rng: SampleRng) -> Story:
    world = _World(rng, _PEOPLE)
    num_facts = rng.integer(4, 33)
    while len(world.facts) < num_facts or all(len(been) < 2 for been in world.been_in.values()):
        world.step()
    thing = rng.choice(tuple(t for t, been in world.been_in.items() if len(been) > 1))
    before, after = world.been_in[thing][-2:]
    return Story(world.facts, f"Where was the {thing} before the {after}?", before)


def _what_lies_where(rng: SampleRng) -> Story:
    rooms = list(_ROOMS)
    rng.shuffle(rooms)
    first, middle, last = rooms[:3]
    direction = rng.choice(tuple(_OPPOSITE))
    facts = [
        f"The {first} is {direction} of the {middle}.",
        f"The {middle} is {direction} of the {last}.",
    ]
    rng.shuffle(facts)
    opposite = _OPPOSITE[direction]
    questions = (
        (f"What is {direction} of the {middle}?", first),
        (f"What is the {middle} {direction} of?", last),
        (f"What is {direction} of the {last}?", middle),
        (f"What is the {first} {direction} of?", middle),
    )
    if rng.fraction() < 0.5:
        # The same map, told from the other side.
        facts[0] = _turned(facts[0], direction, opposite)
    question, target = questions[rng.integer(0, len(questions))]
    return Story(facts, question, target)


def _turned(fact: str, direction: str, opposite: str) -> str:
    left, right = fact.removesuffix(".").split(f" is {direction} of ")
    return f"{right[0].upper()}{right[1:]} is {opposite} of {left[0].lower()}{left[1:]}."


def _who_gave_what(rng: SampleRng) -> Story:
    world = _World(rng, _GIVERS)
    num_facts = rng.integer(2, 25)
    gift: tuple[str, str, str] | None = None
    while len(world.facts) < num_facts or gift is None:
        owned = tuple(world.owner_of)
        if owned and rng.fraction() < 0.3:
            thing = rng.choice(owned)
            giver = world.owner_of[thing]
            receiver = rng.choice(tuple(person for person in _GIVERS if person != giver))
            world.facts.append(f"{giver} {rng.choice(_GAVE)} the {thing} to {receiver}.")
            world.owner_of[thing] = receiver
            world.room_of.setdefault(receiver, world.room_of[giver])
            gift = giver, thing, receiver
        else:
            world.step()
    giver, thing, receiver = gift
    questions = (
        (f"What did {giver} give to {receiver}?", thing),
        (f"Who gave the {thing} to {receiver}?", giver),
        (f"Who did {giver} give the {thing} to?", receiver),
        (f"Who gave the {thing}?", giver),
        (f"Who received the {thing}?", receiver),
    )
    question, target = questions[rng.integer(0, len(questions))]
    return Story(world.facts, question, target)


_TELLERS: dict[str, Callable[[SampleRng], Story]] = {
    "qa1": _where_is_somebody,
    "qa2": _where_is_something,
    "qa3": _where_was_something,
    "qa4": _what_lies_where,
    "qa5": _who_gave_what,
}

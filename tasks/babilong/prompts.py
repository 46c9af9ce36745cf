"""The wording of BABILong's prompts and the possible answers of its questions."""

from dataclasses import dataclass

_POSITIONS = (
    "I will give you context with the facts about positions of different persons hidden in some "
    "random text and a question. You need to answer the question based only on the information "
    "from the facts. If a person was in different locations, use the latest location to answer "
    "the question."
)
_ACTIONS = (
    "I give you context with the facts about locations and actions of different persons hidden in "
    "some random text and a question.{space}You need to answer the question based only on the "
    "information from the facts.\nIf a person got an item in the first location and travelled to "
    "the second location the item is also in the second location. If a person dropped an item in "
    "the first location and moved to the second location the item remains in the first location."
)
_ABOUT = (
    "I will give you context with the facts about {what} hidden in some random text and a "
    "question. You need to answer the question based only on the information from the facts."
)
_LATEST = (
    " If a person was in different locations, use the latest location the person was in to answer "
    "the question."
)
_PEOPLE = _ABOUT.format(what="people and their locations") + _LATEST
_CARRIED = _ABOUT.format(what="people and objects they carry,")
_ANIMALS = (
    "I will give you context with the facts about animals, their names and {what}. The facts and "
    "a question are hidden in some random text. You need to answer the question based only on the "
    "information from the facts."
)
_NOTHING_ELSE = " Do not write anything else after that."
_NO_REASONS = " Do not explain your answer."
_ONE_WORD = "Your answer should contain only one word"
_ONE_LOCATION = f"{_ONE_WORD} - location.{_NOTHING_ELSE}"
_YES_OR_NO = f"{_ONE_WORD} - $yes$ or $no$. Do not write anything else.{_NO_REASONS}"

_ROOMS = ("bathroom", "bedroom", "garden", "hallway", "kitchen", "office")
# The original's text breaks off behind the examples of some tasks.
_STRAY = "\n<context>\n"


@dataclass(frozen=True)
class Question:
    """One of BABILong's tasks.

    Attributes:
        instruction: What the task is.
        examples: Stories that end with a question, and their answers.
        post_prompt: What an answer looks like.
        labels: Every possible answer.
        separator: What stands between two examples.
        last_separator: What stands before the last example.
        end: What stands behind the last example.
    """

    instruction: str
    examples: tuple[tuple[str, str], ...]
    post_prompt: str
    labels: tuple[str, ...]
    separator: str = "\n"
    last_separator: str = "\n"
    end: str = ""

    @property
    def example_text(self) -> str:
        """The examples as they stand in a prompt."""
        *first, last = (
            f"<example>\n{story}\nAnswer: {answer}\n</example>" for story, answer in self.examples
        )
        return self.separator.join(first) + self.last_separator + last + self.end


def render_prompt(
    task: str,
    context: str,
    question: str,
    *,
    use_instruction: bool = True,
    use_examples: bool = True,
    use_post_prompt: bool = True,
) -> str:
    """Writes a prompt.

    Args:
        task: `qa1` to `qa20`.
        context: Facts hidden in text.
        question: What is asked about them.
        use_instruction: Whether the prompt says what the task is.
        use_examples: Whether worked examples are shown.
        use_post_prompt: Whether the prompt says what an answer looks like.
    """
    wording = QUESTIONS[task]
    parts = (
        wording.instruction if use_instruction else "",
        wording.example_text if use_examples else "",
        wording.post_prompt if use_post_prompt else "",
        f"<context>\n{context.strip()}\n</context>",
        f"Question: {question}",
    )
    return "\n\n".join(parts).strip()


QUESTIONS = {
    "qa1": Question(
        _POSITIONS,
        (
            (
                "Charlie went to the hallway. Judith come back to the kitchen. Charlie travelled "
                "to balcony. Where is Charlie?",
                "The most recent location of Charlie is balcony.",
            ),
            (
                "Alan moved to the garage. Charlie went to the beach. Alan went to the shop. Rouse "
                "travelled to balcony. Where is Alan?",
                "The most recent location of Alan is shop.",
            ),
        ),
        "Always return your answer in the following format: The most recent location of "
        f"\u2019person\u2019 is \u2019location\u2019.{_NOTHING_ELSE}",
        _ROOMS,
        last_separator="\n\n",
    ),
    "qa2": Question(
        _ACTIONS.format(space=""),
        (
            (
                "Charlie went to the kitchen. Charlie got a bottle. Charlie moved to the balcony. "
                "Where is the bottle?",
                "The bottle is in the balcony.",
            ),
            (
                "Alan moved to the garage. Alan got a screw driver. Alan moved to the kitchen. "
                "Where is the screw driver?",
                "The screw driver is in the kitchen.",
            ),
        ),
        "Always return your answer in the following format: The \u2019item\u2019 is in "
        f"\u2019location\u2019.{_NOTHING_ELSE}",
        _ROOMS,
    ),
    "qa3": Question(
        _ACTIONS.format(space=" "),
        (
            (
                "John journeyed to the bedroom. Mary grabbed the apple. Mary went back to the "
                "bathroom. Daniel journeyed to the bedroom. Daniel moved to the garden. Mary "
                "travelled to the kitchen. Where was the apple before the kitchen?",
                "Before the kitchen the apple was in the bathroom.",
            ),
            (
                "John went back to the bedroom. John went back to the garden. John went back to "
                "the kitchen. Sandra took the football. Sandra travelled to the garden. Sandra "
                "journeyed to the bedroom. Where was the football before the bedroom?",
                "Before the bedroom the football was in the garden.",
            ),
        ),
        "Always return your answer in the following format: Before the $location_1$ the $item$ "
        f"was in the $location_2$.{_NOTHING_ELSE}",
        _ROOMS,
    ),
    "qa4": Question(
        _ABOUT.format(what="different people, their location and actions,"),
        (
            (
                "The hallway is south of the kitchen. The bedroom is north of the kitchen. What is "
                "the kitchen south of?",
                "bedroom",
            ),
            (
                "The garden is west of the bedroom. The bedroom is west of the kitchen. What is "
                "west of the bedroom?",
                "garden",
            ),
        ),
        _ONE_LOCATION,
        _ROOMS,
    ),
    "qa5": Question(
        _ABOUT.format(what="locations and their relations"),
        (
            (
                "Mary picked up the apple there. Mary gave the apple to Fred. Mary moved to the "
                "bedroom. Bill took the milk there. Who did Mary give the apple to?",
                "Fred",
            ),
            (
                "Jeff took the football there. Jeff passed the football to Fred. Jeff got the milk "
                "there. Bill travelled to the bedroom. Who gave the football?",
                "Jeff",
            ),
            (
                "Fred picked up the apple there. Fred handed the apple to Bill. Bill journeyed to "
                "the bedroom. Jeff went back to the garden. What did Fred give to Bill?",
                "apple",
            ),
        ),
        f"{_ONE_WORD}.{_NOTHING_ELSE}{_NO_REASONS}",
        ("Bill", "Fred", "Jeff", "Mary", "apple", "football", "milk"),
    ),
    "qa6": Question(
        _PEOPLE,
        (
            (
                "John travelled to the hallway. John travelled to the garden. Is John in the "
                "garden?",
                "yes",
            ),
            (
                "Mary went to the office. Daniel journeyed to the hallway. Mary went to the "
                "bedroom. Sandra went to the garden. Is Mary in the office?",
                "no",
            ),
        ),
        f"{_ONE_WORD} - $yes$ or $no$.{_NOTHING_ELSE}{_NO_REASONS}",
        ("no", "yes"),
        end="\n",
    ),
    "qa7": Question(
        _CARRIED,
        (
            (
                "Daniel went to the bedroom. Daniel got the apple there. How many objects is "
                "Daniel carrying?",
                "one",
            ),
            (
                "Mary grabbed the apple there. Mary gave the apple to John. How many objects is "
                "Mary carrying?",
                "none",
            ),
            (
                "Sandra travelled to the hallway. Sandra picked up the milk there. Sandra took the "
                "apple there. Mary travelled to the garden. How many objects is Sandra carrying?",
                "two",
            ),
        ),
        f"{_ONE_WORD} - $none$ or $number_of_objects$.{_NOTHING_ELSE}{_NO_REASONS}",
        ("none", "one", "three", "two"),
        end="\n",
    ),
    "qa8": Question(
        _CARRIED,
        (
            (
                "Sandra travelled to the garden. Mary grabbed the milk there. What is Mary "
                "carrying?",
                "milk",
            ),
            (
                "Mary travelled to the kitchen. Sandra travelled to the office. John travelled to "
                "the office. Sandra discarded the milk there. What is Sandra carrying?",
                "nothing",
            ),
            (
                "Daniel grabbed the apple there. Mary went to the office. Daniel moved to the "
                "garden. Daniel grabbed the milk there. Mary went to the kitchen. What is Daniel "
                "carrying?",
                "apple,milk",
            ),
        ),
        "Your answer should contain only one or two words: $nothing$ or $object$ or $object_1$, "
        f"$object_2$. Do not write anything else.{_NO_REASONS}",
        ("apple", "football", "milk", "nothing"),
        end="\n",
    ),
    "qa9": Question(
        _PEOPLE,
        (
            (
                "John is not in the bathroom. Sandra is not in the bedroom. Is John in the "
                "bathroom?",
                "no",
            ),
            (
                "Mary journeyed to the kitchen. John is in the bedroom. Sandra is not in the "
                "garden. Is Mary in the kitchen?",
                "yes",
            ),
        ),
        _YES_OR_NO,
        ("no", "yes"),
        end="\n",
    ),
    "qa10": Question(
        _PEOPLE,
        (
            (
                "Bill is in the kitchen. Julie is either in the school or the cinema. Is Bill in "
                "the bedroom?",
                "no",
            ),
            (
                "Fred is in the bedroom. Mary is either in the school or the cinema. Is Mary in "
                "the school?",
                "maybe",
            ),
            (
                "Fred is either in the kitchen or the park. Bill moved to the cinema. Is Bill in "
                "the cinema?",
                "yes",
            ),
        ),
        f"{_ONE_WORD} - $yes$ or $no$ or $maybe$. Do not write anything else.{_NO_REASONS}",
        ("maybe", "no", "yes"),
        end=_STRAY,
    ),
    "qa11": Question(
        _PEOPLE,
        (
            (
                "Daniel journeyed to the hallway. After that he journeyed to the garden. Where is "
                "Daniel?",
                "garden",
            ),
            (
                "Mary moved to the office. Afterwards she journeyed to the kitchen. Daniel went to "
                "the hallway. Then he journeyed to the garden. Where is Mary?",
                "kitchen",
            ),
            (
                "Sandra moved to the kitchen. After that she went back to the hallway. Sandra "
                "moved to the bedroom. Then she went to the hallway. Mary moved to the bedroom. "
                "Afterwards she travelled to the bathroom. Where is Sandra?",
                "hallway",
            ),
        ),
        _ONE_LOCATION + _NO_REASONS,
        _ROOMS,
        end=_STRAY,
    ),
    "qa12": Question(
        _PEOPLE,
        (
            (
                "Mary and Daniel travelled to the bathroom. John and Daniel travelled to the "
                "office. Where is Daniel?",
                "office",
            ),
            (
                "Sandra and Mary went back to the office. Daniel and Sandra went to the bedroom. "
                "Sandra and Mary travelled to the hallway. John and Mary went to the kitchen. "
                "Where is Mary?",
                "kitchen",
            ),
            (
                "Daniel and Sandra went back to the hallway. Daniel and John moved to the office. "
                "Daniel and John moved to the garden. Daniel and Mary went back to the bathroom. "
                "Daniel and John went back to the kitchen. Daniel and Sandra went to the bathroom. "
                "Where is John?",
                "kitchen",
            ),
        ),
        _ONE_LOCATION + _NO_REASONS,
        _ROOMS,
        end=_STRAY,
    ),
    "qa13": Question(
        _PEOPLE,
        (
            (
                "Mary and Daniel travelled to the bathroom. Then they journeyed to the hallway. "
                "Where is Daniel?",
                "hallway",
            ),
            (
                "Daniel and Sandra travelled to the kitchen. After that they journeyed to the "
                "hallway. Mary and Daniel travelled to the bedroom. After that they travelled to "
                "the hallway. Where is Sandra?",
                "hallway",
            ),
            (
                "John and Mary moved to the bathroom. Then they travelled to the office. John and "
                "Mary went to the kitchen. Afterwards they went to the bedroom. John and Sandra "
                "moved to the bathroom. Following that they went back to the kitchen. Where is "
                "Mary?",
                "bedroom",
            ),
        ),
        _ONE_LOCATION + _NO_REASONS,
        _ROOMS,
        end=_STRAY,
    ),
    "qa14": Question(
        _PEOPLE,
        (
            (
                "Bill went back to the cinema yesterday. Julie went to the school this morning. "
                "Fred went to the park yesterday. Yesterday Julie went to the office. Where was "
                "Julie before the school?",
                "office",
            ),
            (
                "This morning Fred went to the kitchen. Fred journeyed to the bedroom yesterday. "
                "Mary travelled to the bedroom this morning. Yesterday Mary went to the cinema. "
                "Where was Mary before the bedroom?",
                "cinema",
            ),
            (
                "Yesterday Julie went back to the park. Julie went to the bedroom this morning. "
                "Bill journeyed to the cinema yesterday. This morning Bill went back to the park. "
                "This evening Julie went to the school. This afternoon Julie went back to the "
                "park. Where was Julie before the bedroom?",
                "park",
            ),
        ),
        _ONE_LOCATION + _NO_REASONS,
        ("bedroom", "cinema", "kitchen", "office", "park", "school"),
        end=_STRAY,
    ),
    "qa15": Question(
        _ANIMALS.format(what="relations"),
        (
            (
                "Mice are afraid of wolves. Gertrude is a mouse. Cats are afraid of sheep. Winona "
                "is a mouse. Sheep are afraid of wolves. Emily is a mouse. Jessica is a wolf. What "
                "is gertrude afraid of?",
                "wolf",
            ),
            (
                "Mice are afraid of wolves. Gertrude is a mouse. Cats are afraid of sheep. Winona "
                "is a mouse. Sheep are afraid of wolves. Emily is a mouse. Jessica is a wolf. What "
                "is jessica afraid of?",
                "cat",
            ),
            (
                "Mice are afraid of cats. Wolves are afraid of sheep. Emily is a wolf. Cats are "
                "afraid of sheep. Gertrude is a wolf. Sheep are afraid of cats. Winona is a wolf. "
                "What is emily afraid of?",
                "sheep",
            ),
        ),
        f"{_ONE_WORD} - an animal species.{_NOTHING_ELSE}{_NO_REASONS}",
        ("cat", "mouse", "sheep", "wolf"),
        end=_STRAY,
    ),
    "qa16": Question(
        _ANIMALS.format(what="colors"),
        (
            (
                "Lily is a frog. Bernhard is a frog. Bernhard is green. Brian is a lion. Brian is "
                "white. Julius is a swan. Julius is green. Lily is green. Greg is a swan. What "
                "color is Greg?",
                "green",
            ),
            (
                "Julius is a lion. Lily is a rhino. Bernhard is a swan. Lily is white. Bernhard is "
                "green. Greg is a rhino. Greg is gray. Julius is white. Brian is a lion. What "
                "color is Brian?",
                "white",
            ),
            (
                "Brian is a rhino. Julius is a lion. Bernhard is a lion. Greg is a swan. Brian is "
                "gray. Greg is white. Lily is a rhino. Bernhard is yellow. Lily is gray. What "
                "color is Julius?",
                "yellow",
            ),
        ),
        f"{_ONE_WORD} - a color.{_NOTHING_ELSE}{_NO_REASONS}",
        ("gray", "green", "white", "yellow"),
        end=_STRAY,
    ),
    "qa17": Question(
        _ABOUT.format(what="different figures, their location and colors,"),
        (
            (
                "The triangle is above the pink rectangle. The blue square is to the left of the "
                "triangle. Is the pink rectangle to the right of the blue square?",
                "yes",
            ),
            (
                "The red sphere is to the left of the yellow square. The red sphere is below the "
                "pink rectangle. Is the pink rectangle to the left of the yellow square?",
                "yes",
            ),
            (
                "The red sphere is above the pink rectangle. The red sphere is to the right of the "
                "red square. Is the pink rectangle above the red square?",
                "no",
            ),
        ),
        _YES_OR_NO,
        ("no", "yes"),
        last_separator="",
    ),
    "qa18": Question(
        _ABOUT.format(what="different objects and their sizes,"),
        (
            (
                "The box of chocolates fits inside the chest. The box is bigger than the chest. "
                "The box is bigger than the suitcase. The suitcase fits inside the box. The "
                "container is bigger than the box of chocolates. Does the box fit in the box of "
                "chocolates?",
                "no",
            ),
            (
                "The suitcase is bigger than the container. The container fits inside the box. The "
                "chest is bigger than the chocolate.The suitcase fits inside the box. The chest "
                "fits inside the box. Does the chocolate fit in the box?",
                "yes",
            ),
            (
                "The chocolate fits inside the box of chocolates. The suitcase fits inside the "
                "box. The chocolate fits inside the box. The box is bigger than the box of "
                "chocolates. The suitcase is bigger than the box of chocolates. Is the chocolate "
                "bigger than the box?",
                "no",
            ),
        ),
        _YES_OR_NO,
        ("no", "yes"),
        last_separator="",
    ),
    "qa19": Question(
        _ABOUT.format(what="different places and their locations,"),
        (
            (
                "The office is east of the hallway. The kitchen is north of the office. The garden "
                "is west of the bedroom. The office is west of the garden. The bathroom is north "
                "of the garden. How do you go from the kitchen to the garden?",
                "s,e",
            ),
            (
                "The bedroom is west of the hallway. The office is east of the garden. The garden "
                "is north of the kitchen. The kitchen is north of the bathroom. The hallway is "
                "west of the garden. How do you go from the kitchen to the hallway?",
                "n,w",
            ),
            (
                "The bedroom is south of the hallway. The bathroom is east of the office. The "
                "kitchen is west of the garden. The garden is south of the office. The office is "
                "south of the bedroom. How do you go from the garden to the bedroom?",
                "n,n",
            ),
        ),
        "Your answer should contain only two letters, separated by a comma - ordinal directions. "
        f"You can choose the letters from $n$, $s$, $e$ and $w$.{_NOTHING_ELSE}",
        ("e,e", "e,n", "e,s", "n,e", "n,n", "n,w", "s,e", "s,s", "s,w", "w,n", "w,s", "w,w"),
        end="\n",
    ),
    "qa20": Question(
        _ABOUT.format(what="people, their locations and condition") + _LATEST,
        (
            ("Sumit is tired. Where will sumit go?", "bedroom"),
            (
                "Yann is hungry. Yann journeyed to the kitchen. Why did yann go to the kitchen?",
                "hungry",
            ),
            (
                "Antoine is thirsty. Yann is tired. Yann went back to the bedroom. Yann picked up "
                "the pajamas there.Jason is thirsty. Antoine went back to the kitchen. Why did "
                "antoine go to the kitchen?",
                "thirsty",
            ),
        ),
        f"{_ONE_WORD} - a person condition or a place.{_NOTHING_ELSE}{_NO_REASONS}",
        ("bedroom", "bored", "garden", "hungry", "kitchen", "thirsty", "tired"),
        end=_STRAY,
    ),
}
"""Wording and labels by task; the tasks beyond `qa10` serve the replay of recorded cases."""

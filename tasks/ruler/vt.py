"""RULER's variable tracking: a chain of assignments spread over lines of noise."""

import itertools
from collections.abc import Callable
from functools import partial

from ..generation import Doc, Recipe, SampleRng, dataset
from ..tokenization import RepeatedLine
from .niah import NOISE, line_step

MAX_GEN_TOKS = 30
NUM_SAMPLES = 500
NUM_HOPS = 4
EXAMPLE_TOKENS = 500

_LETTERS = tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ")


@dataset("ruler_vt", max_gen_toks=MAX_GEN_TOKS, num_samples=NUM_SAMPLES, step=line_step)
def vt(recipe: Recipe) -> Callable[[int], Doc]:
    """Makes the dataset of one variable tracking task: one chain of four hops, one example."""
    noise = RepeatedLine(recipe.tokenizer, f"{NOISE}\n", max_tokens=recipe.length)
    return partial(build_doc, recipe, noise)


def build_doc(recipe: Recipe, noise: RepeatedLine, index: int) -> Doc:
    """Makes the document at `index`: a worked example, then a chain in the most noise that fits.

    Args:
        recipe: The task.
        noise: The noise line as the recipe's tokenizer counts it.
        index: Position of the document in the task.

    Raises:
        UnsupportedError: Not even one noise line fits.
    """
    rng = recipe.rng(index)
    example_chain, chain = _Chain(rng, num_letters=3), _Chain(rng, num_letters=5)
    example = _build_example(recipe, noise, example_chain)
    answer_prefix = render_answer_prefix(chain.value, len(chain.names))

    def near_text(lines: list[str]) -> str:
        return example + render_prompt("\n".join(lines), chain.value)

    def num_tokens(num_lines: int) -> int:
        near, skipped = chain.near_lines(noise, num_lines)
        near_tokens = recipe.tokenizer.num_tokens(near_text(near) + answer_prefix)
        return near_tokens + noise.tokens * skipped

    num_lines, total_tokens = recipe.largest_fitting(num_tokens, smallest=1)
    before, skipped = noise.split(chain.num_before(num_lines)[0])
    text_before, _, _ = near_text([NOISE] * before + chain.lines).partition(
        f"VAR {chain.names[0]} ="
    )
    return Doc(
        index=index,
        prompt=near_text(chain.all_lines(num_lines)),
        answer_prefix=answer_prefix,
        references=chain.names,
        num_tokens=total_tokens,
        depth_tokens=recipe.tokenizer.num_tokens(f"{text_before}VAR") + noise.tokens * skipped,
        num_units=num_lines,
        length=recipe.length,
        seed=recipe.seed,
        tokenizer=recipe.tokenizer.fingerprint,
    )


def render_chain(names: list[str], value: str) -> list[str]:
    """Writes the assignments: the value to the first name, each name to the next."""
    hops = [f"VAR {name} = VAR {source} " for source, name in itertools.pairwise(names)]
    return [f"VAR {names[0]} = {value}", *hops]


def render_prompt(context: str, value: str) -> str:
    """Writes a prompt that asks for the names in `context` that are assigned `value`."""
    return (
        "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n"
        f"{context}\n"
        f"Question: Find all variables that are assigned the value {value} in the text above."
    )


def render_answer_prefix(value: str, num_names: int) -> str:
    """Writes the start of the answer, which follows the prompt directly."""
    return (
        " Answer: According to the chain(s) of variable assignment in the text above, "
        f"{num_names} variables are assigned the value {value}, they are: "
    )


def render_example(context: str, names: list[str], value: str) -> str:
    """Writes the worked example that comes before the prompt."""
    prompt = render_prompt(context, value) + render_answer_prefix(value, len(names))
    return f"{prompt} {' '.join(names)}\n\n"


class _Chain:
    """Names, their value, and where each assignment stands in noise of any size."""

    def __init__(self, rng: SampleRng, num_letters: int) -> None:
        self._places = sorted(rng.fraction() for _ in range(NUM_HOPS + 1))
        self.value = str(rng.integer(10000, 99999))
        self.names: list[str] = []
        while len(self.names) <= NUM_HOPS:
            name = "".join(rng.choice(_LETTERS) for _ in range(num_letters))
            if name not in self.names:
                self.names.append(name)
        self.lines = render_chain(self.names, self.value)

    def num_before(self, num_lines: int) -> list[int]:
        return [int(place * num_lines) for place in self._places]

    def all_lines(self, num_lines: int) -> list[str]:
        lines, _ = self._spread(num_lines, None)
        return lines

    def near_lines(self, noise: RepeatedLine, num_lines: int) -> tuple[list[str], int]:
        return self._spread(num_lines, noise)

    def _spread(self, num_lines: int, noise: RepeatedLine | None) -> tuple[list[str], int]:
        ends = [0, *self.num_before(num_lines), num_lines]
        spread: list[str] = []
        all_skipped = 0
        for i, (start, end) in enumerate(itertools.pairwise(ends)):
            copies, skipped = noise.split(end - start) if noise else (end - start, 0)
            spread += [NOISE] * copies + self.lines[i : i + 1]
            all_skipped += skipped
        return spread, all_skipped


def _build_example(recipe: Recipe, noise: RepeatedLine, chain: _Chain) -> str:
    def render(num_lines: int) -> str:
        return render_example("\n".join(chain.all_lines(num_lines)), chain.names, chain.value)

    limit = EXAMPLE_TOKENS if recipe.length >= 1024 else recipe.length // 4
    room = limit - recipe.tokenizer.num_tokens(render(1))
    return render(max(0, 1 + room // max(1, noise.tokens)))

from random import Random

import pytest
import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.functional import one_hot

from patheval.zoo import CHECKPOINTS, probes
from patheval.zoo.tokenizer import TOKENIZER_NAME


def _oracle(ids: Tensor) -> Tensor:
    return one_hot(ids.roll(-1, dims=1), 600)


@pytest.mark.parametrize("length", probes.LENGTHS)
@pytest.mark.parametrize("kind", ["phonebook", "needle"])
def test_prompts_fit_their_length(kind: str, length: int) -> None:
    tokenizer = Tokenizer.from_file(str(CHECKPOINTS / "rope" / TOKENIZER_NAME))
    for ids, num_answer in probes.prompts(kind, tokenizer, length, 8):
        assert 0.85 * length < len(ids) <= length
        assert num_answer >= 8


def test_phonebook_asks_for_an_entry_of_the_book() -> None:
    prompt = probes.phonebook(Random(1), 20)
    name = prompt.text.splitlines()[-1]
    assert f"{name}{prompt.answer}\n" in prompt.text


def test_exact_match_counts_whole_answers(tokenizer: Tokenizer) -> None:
    samples = list(probes.prompts("needle", tokenizer, 256, 6))
    device = torch.device("cpu")
    assert probes.exact_match(_oracle, samples, batch_size=4, seq_len=256, device=device) == 1.0

    def last_digit_wrong(ids: Tensor) -> Tensor:
        spoiled = ids.clone()
        spoiled[0, len(samples[0][0]) - 1] = 5
        return _oracle(spoiled)

    score = probes.exact_match(
        last_digit_wrong, samples[:4], batch_size=4, seq_len=256, device=device
    )
    assert score == 0.75

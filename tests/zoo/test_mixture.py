from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from patheval.zoo import mixture, recipes
from patheval.zoo import tokenizer as zoo_tokenizer
from patheval.zoo.documents.corpus import Corpus

_SEQ_LEN = 512
_BATCH_SIZE = 32


@pytest.fixture
def maker(corpus: Corpus, tokenizer: Tokenizer, tmp_path: Path) -> mixture.ShardMaker:
    recipe = replace(
        recipes.find("rope", 1),
        seq_len=_SEQ_LEN,
        num_steps=mixture.SEQUENCES_PER_SHARD // _BATCH_SIZE + 1,
        data_seed="test",
        shares=dict.fromkeys(mixture.KINDS, 1.0),
    )
    return mixture.ShardMaker(corpus, tokenizer, recipe, tmp_path)


def test_sequence_depends_on_its_index_alone(maker: mixture.ShardMaker) -> None:
    first = maker.sequence(7)
    maker.sequence(8)
    np.testing.assert_array_equal(first, maker.sequence(7))
    assert not np.array_equal(first, maker.sequence(8))


def test_sequence_is_full_and_begins_with_bos(maker: mixture.ShardMaker) -> None:
    for index in range(20):
        tokens = maker.sequence(index)
        assert tokens.shape == (_SEQ_LEN,)
        assert tokens[0] == zoo_tokenizer.BOS_ID


def test_batches_are_the_sequences_in_order(maker: mixture.ShardMaker) -> None:
    maker.write_all(num_processes=2)
    num_steps = maker.recipe.num_steps
    batches = list(
        mixture.read_batches(
            maker.folder, batch_size=_BATCH_SIZE, first_step=num_steps - 2, num_steps=num_steps
        )
    )
    assert len(batches) == 2
    np.testing.assert_array_equal(batches[0][0], maker.sequence((num_steps - 2) * _BATCH_SIZE))
    np.testing.assert_array_equal(batches[1][-1], maker.sequence(maker.recipe.num_sequences - 1))


def test_longest_document_grows_to_the_whole_sequence() -> None:
    lengths = [mixture.longest_document(step / 100, 0.2, 2048) for step in range(101)]
    assert lengths == sorted(lengths)
    assert lengths[0] == 256
    assert lengths[20] == lengths[100] == 2048

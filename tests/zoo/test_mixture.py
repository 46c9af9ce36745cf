from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from patheval.zoo import mixture
from patheval.zoo import tokenizer as zoo_tokenizer
from patheval.zoo.documents.corpus import Corpus

_SEQ_LEN = 512


@pytest.fixture
def maker(corpus: Corpus, tokenizer: Tokenizer, tmp_path: Path) -> mixture.ShardMaker:
    return mixture.ShardMaker(
        corpus=corpus,
        tokenizer=tokenizer,
        seed="test",
        seq_len=_SEQ_LEN,
        num_sequences=mixture.SEQUENCES_PER_SHARD + 32,
        folder=tmp_path,
    )


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
    last_step = maker.num_sequences // 32
    batches = list(
        mixture.read_batches(maker.folder, batch_size=32, first_step=7, num_steps=last_step)
    )
    assert len(batches) == 2
    np.testing.assert_array_equal(batches[0][0], maker.sequence(7 * 32))
    np.testing.assert_array_equal(batches[1][31], maker.sequence(maker.num_sequences - 1))


def test_longest_document_grows_to_the_whole_sequence() -> None:
    lengths = [mixture.longest_document(step / 100, 2048) for step in range(101)]
    assert lengths == sorted(lengths)
    assert lengths[0] == 256
    assert lengths[20] == lengths[100] == 2048

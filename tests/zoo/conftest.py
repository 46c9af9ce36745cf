"""A small corpus and a tokenizer trained on it."""

import pytest
from tokenizers import Tokenizer

from patheval.zoo import mixture
from patheval.zoo import tokenizer as zoo_tokenizer
from patheval.zoo.documents.corpus import Corpus

VOCAB_SIZE = 600


@pytest.fixture(scope="session")
def corpus() -> Corpus:
    code = "\n".join(f"def double_{i}(x):\n    return x + x  # twice {i}\n" for i in range(200))
    prose = " ".join(f"The boat of day {i} left at noon and came back late." for i in range(200))
    return Corpus([code], [prose])


@pytest.fixture(scope="session")
def tokenizer(corpus: Corpus) -> Tokenizer:
    shares = dict.fromkeys(mixture.KINDS, 1.0)
    texts = mixture.sample_texts(corpus, shares, "test", count=300, num_chars=400)
    return zoo_tokenizer.train(texts, VOCAB_SIZE)

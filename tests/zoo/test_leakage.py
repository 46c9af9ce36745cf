from random import Random

import pytest

from patheval.zoo import leakage, mixture, probes
from patheval.zoo.documents.corpus import Corpus

_SYNTHETIC = ("books", "needles", "facts", "chains", "stories", "counting")


@pytest.mark.parametrize("kind", _SYNTHETIC)
def test_documents_have_no_test_format(kind: str, corpus: Corpus) -> None:
    for seed in range(300):
        text = mixture.KINDS[kind].write(Random(f"leak/{seed}"), 1500, corpus)
        assert not leakage.test_formats_in(text)
        assert not leakage.has_test_number(text)


def test_formats_of_the_tests_are_recognised() -> None:
    book = probes.phonebook(Random(0), 5).text
    haystack = probes.needle(Random(0), 5).text
    assert leakage.test_formats_in(book) == {"phonebook"}
    assert {"ruler_niah", "ruler_noise"} <= leakage.test_formats_in(haystack)
    assert leakage.has_test_number(book)
    assert leakage.has_test_number(haystack)


def test_numbers_of_other_lengths_pass() -> None:
    assert not leakage.has_test_number("12 123456 12345678 123456789 12345678901 a1234567")

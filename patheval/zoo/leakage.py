"""What the benchmarks' own samples look like, so that training text can be kept clear of them."""

import re

_TEST_FORMATS = {
    "phonebook": r"^[A-Z][A-Za-z'-]+ [A-Z][A-Za-z'-]+: \d{10}$",
    "ruler_niah": r"special magic \w+ for",
    "ruler_noise": r"The grass is green\. The sky is blue\.",
    "ruler_vt": r"^VAR [A-Z]{3,5} = ",
    "ruler_cwe": r"most common words in the above list",
    "ruler_fwe": r"frequency of each coded word",
    "babilong": r"\b(?:John|Mary|Daniel|Sandra|Fred|Bill|Jeff) (?:went|moved|travelled|journeyed) ",
    "babilong_answer": r"The most recent location of ",
    "flip_flop": r"(?:[wri] ?[01] ?){16}",
}
_PATTERN = re.compile(
    "|".join(f"(?P<{name}>{pattern})" for name, pattern in _TEST_FORMATS.items()), re.MULTILINE
)
_TEST_NUMBER = re.compile(r"\b(?:\d{7}|\d{10})\b")


def test_formats_in(text: str) -> set[str]:
    """The benchmarks whose sample format occurs in ``text``."""
    return {match.lastgroup for match in _PATTERN.finditer(text) if match.lastgroup}


def has_test_number(text: str) -> bool:
    """Whether a number of 7 or 10 digits, as RULER and PhoneBook ask for, occurs in ``text``."""
    return _TEST_NUMBER.search(text) is not None

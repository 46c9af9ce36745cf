import pytest

from patheval.errors import PrerequisiteError
from patheval.tasks import texts


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("Ada came. Ben left.", ["Ada came.", "Ben left."]),
        ('"Why?" she said. "No!" He left.', ['"Why?" she said.', '"No!"', "He left."]),
        ("Mr. Holm met Dr. A. Lee on Feb. 3 there.", ["Mr. Holm met Dr. A. Lee on Feb. 3 there."]),
        ("It cost 3.5 crowns. 12 men came.", ["It cost 3.5 crowns.", "12 men came."]),
        (
            "It ended (at last.) \u201cGood.\u201d And then?",
            ["It ended (at last.)", "\u201cGood.\u201d", "And then?"],
        ),
        ("it was e.g. This. and that", ["it was e.g. This. and that"]),
        ("one", ["one"]),
        ("", []),
    ],
)
def test_sentences(text, sentences):
    words = text.split()
    starts = texts.sentence_starts(words)
    ends = [*starts[1:], len(words)]
    assert [" ".join(words[a:b]) for a, b in zip(starts, ends, strict=False)] == sentences


def test_plays_lose_their_markup(few_plays):
    [play] = texts.plays()
    assert play.name == "vale"
    assert play.content.startswith("ADA\nVale 0 lies on the river Arn")
    assert texts.texts_sha256([play]) == texts.texts_sha256(texts.plays())
    assert texts.texts_sha256([play]) != texts.texts_sha256([play, play])


def test_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setattr(texts, "find_spec", lambda name: None)
    texts.plays.cache_clear()
    with pytest.raises(PrerequisiteError, match=r"pip install 'patheval\[offline\]'"):
        texts.plays()


def test_library_code_holds_no_tests():
    names = [text.name for text in texts.library_code()]
    assert "json/decoder.py" in names
    assert names == sorted(names)
    assert not any("test" in name.split("/")[:-1] for name in names)

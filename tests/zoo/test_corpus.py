import sysconfig
from pathlib import Path
from random import Random

import pytest

from patheval.zoo.documents import corpus as corpus_module
from patheval.zoo.documents.corpus import Corpus, is_held_out, load_installed


def test_a_tenth_of_the_files_is_held_out() -> None:
    share = sum(is_held_out(f"package/module_{i}.py") for i in range(5000)) / 5000
    assert 0.08 < share < 0.12


def test_excerpt_begins_at_a_line(corpus: Corpus) -> None:
    for seed in range(50):
        excerpt = corpus.excerpt(Random(seed), corpus.code, 100)
        position = corpus.code[0].index(excerpt)
        assert len(excerpt) <= 100
        assert position == 0 or corpus.code[0][position - 1] == "\n"


def test_sentences_fill_the_room(corpus: Corpus) -> None:
    assert 300 <= len(" ".join(corpus.sentences(Random(0), 400))) <= 500


def test_installed_texts_are_read_without_held_out_and_test_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prose = "Words that say something about a package. " * 20
    files = {
        "lib/module.py": "x = 1\n" * 100,
        "lib/leaky.py": "# One of the special magic numbers for a-b is: 1.\n" * 20,
        "lib/site-packages/other.py": "y = 2\n" * 100,
        "site/thing/README.md": prose,
        "site/thing/code.py": f'"""{prose[1:]}"""\n',
        "site/names/first.txt": prose + "names",
        "site/numbers.txt": "1234 " * 200,
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    roots = {"stdlib": str(tmp_path / "lib"), "purelib": str(tmp_path / "site")}
    monkeypatch.setattr(sysconfig, "get_path", roots.__getitem__)
    monkeypatch.setattr(corpus_module, "is_held_out", lambda _: False)
    loaded = load_installed()
    assert loaded.code == [files["lib/module.py"]]
    assert loaded.prose == [prose, prose[1:]]
    monkeypatch.setattr(corpus_module, "is_held_out", lambda path: path.endswith("README.md"))
    assert load_installed().prose == [prose[1:]]

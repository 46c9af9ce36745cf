import json
import shutil

import pytest

from patheval.errors import PrerequisiteError
from patheval.tasks.ruler.niah import NOISE
from patheval.tasks.tokenization import PieceCounter, RepeatedLine, load_tokenizer


def test_special_tokens_count(tokenizer_folders):
    with_bos = load_tokenizer({"tokenizer": tokenizer_folders["chars-bos"]})
    without = load_tokenizer({"tokenizer": tokenizer_folders["chars"]})
    assert without.num_tokens("ten chars.") == 10
    assert with_bos.num_tokens("ten chars.") == 11


def test_fingerprint_follows_content_and_not_path(tokenizer_folders, tmp_path):
    copy = shutil.copytree(tokenizer_folders["bpe-2k"], tmp_path / "copy")
    fingerprints = {
        folder: load_tokenizer({"tokenizer": folder}).fingerprint
        for folder in [*tokenizer_folders.values(), str(copy)]
    }
    assert fingerprints[str(copy)] == fingerprints[tokenizer_folders["bpe-2k"]]
    assert len(set(fingerprints.values())) == len(tokenizer_folders)


def test_tokenizer_argument_wins_over_pretrained(tokenizer_folders):
    chars, bpe = tokenizer_folders["chars"], tokenizer_folders["bpe-2k"]
    tokenizer = load_tokenizer({"tokenizer": chars, "pretrained": bpe})
    assert tokenizer is load_tokenizer({"pretrained": chars, "revision": None})
    assert tokenizer is not load_tokenizer({"pretrained": bpe, "tokenizer": ""})


def test_revision_of_the_model_is_not_applied_to_another_tokenizer(tokenizer_folders):
    chars, bpe = tokenizer_folders["chars"], tokenizer_folders["bpe-2k"]
    other = load_tokenizer({"tokenizer": chars, "pretrained": bpe, "revision": 7})
    assert other is load_tokenizer({"tokenizer": chars})


@pytest.mark.parametrize("metadata", [{}, {"tokenizer": None}, {"pretrained": 3}])
def test_missing_tokenizer_names_the_flag(metadata):
    with pytest.raises(PrerequisiteError, match="--model_args pretrained=MODEL or tokenizer="):
        load_tokenizer(metadata)


def test_unreadable_tokenizer_is_named(tmp_path):
    missing = str(tmp_path / "missing")
    with pytest.raises(PrerequisiteError, match=f"there is no folder {missing}; "):
        load_tokenizer({"pretrained": missing})


def test_missing_folder_comes_with_the_nearest(tmp_path, monkeypatch):
    (tmp_path / "checkpoint").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for given in ("./chekpoint", "../nowhere/", "~/chekpoint"):
        with pytest.raises(PrerequisiteError, match="there is no folder ") as error:
            load_tokenizer({"pretrained": given})
        assert ("did you mean" in str(error.value)) == ("chekpoint" in given)
    with pytest.raises(PrerequisiteError, match=r"from chekpoint \(did you mean checkpoint\?\)"):
        load_tokenizer({"pretrained": "chekpoint"})


def test_folder_without_tokenizer_files_is_named(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(PrerequisiteError, match=f"{tmp_path} .*put tokenizer.json"):
        load_tokenizer({"pretrained": str(tmp_path)})


@pytest.mark.parametrize("kind", ["bpe-2k", "chars-bos"])
def test_equal_lines_are_counted_and_not_encoded(tokenizer_folders, kind):
    tokenizer = load_tokenizer({"tokenizer": tokenizer_folders[kind]})
    line = RepeatedLine(tokenizer, f"{NOISE}\n", max_tokens=2000)
    encoded, counted = line.split(50)
    assert encoded + counted == 50
    assert encoded < 10
    tokens = tokenizer.num_tokens(f"{NOISE}\n" * encoded) + line.tokens * counted
    assert tokens == tokenizer.num_tokens(f"{NOISE}\n" * 50)


def test_lines_that_merge_are_all_encoded(tokenizer_folders):
    tokenizer = load_tokenizer({"tokenizer": tokenizer_folders["two-lines"]})
    assert tokenizer.num_tokens(f"{NOISE}\n" * 50) == 25
    assert RepeatedLine(tokenizer, f"{NOISE}\n", max_tokens=2000).split(50) == (50, 0)


@pytest.mark.parametrize("kind", ["bpe-2k", "bpe-2k-bos", "chars-bos"])
def test_counts_of_pieces_add_up(tokenizer_folders, kind):
    tokenizer = load_tokenizer({"tokenizer": tokenizer_folders[kind]})
    counter = PieceCounter(tokenizer, "One")
    words = [" grass", " is", " green.", " 1234567", " grass"]
    assert counter.adds_up(words)
    assert counter.tokens_each(words) == counter.tokens_each_once(words)
    whole = tokenizer.num_tokens("One" + "".join(words))
    assert whole == tokenizer.num_tokens("One") + sum(counter.tokens_each(words))


def test_pieces_that_merge_do_not_add_up(tokenizer_folders):
    counter = PieceCounter(load_tokenizer({"tokenizer": tokenizer_folders["two-lines"]}), "\n")
    assert not counter.adds_up([f"{NOISE}\n"] * 4)


def test_vocabulary_tells_where_tokens_join(tokenizer_folders):
    bpe = load_tokenizer({"tokenizer": tokenizer_folders["bpe-2k"]})
    chars = load_tokenizer({"tokenizer": tokenizer_folders["chars"]})
    assert bpe.joins("[a-z]", "[a-z]")
    assert not bpe.joins("[a-z]", "[0-9]")
    assert not chars.joins("[a-z]", "[a-z]")

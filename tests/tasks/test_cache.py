"""Samples on disk: the right ones, whole ones, whoever writes and whoever dies."""

import gzip
import os
import signal
import subprocess
import sys
import time

import pytest

from patheval.errors import PrerequisiteError
from patheval.tasks import cache
from patheval.tasks.cache import SampleCache
from patheval.tasks.generation import LazyDocs
from patheval.tasks.phonebook.generate import phonebook


@pytest.fixture
def cached(tmp_path, monkeypatch):
    monkeypatch.setenv("PATHEVAL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def files_in(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_stored_documents_are_those_that_were_built(cached, bpe_folder, monkeypatch):
    first = list(phonebook(target_length=512, tokenizer=bpe_folder, num_samples=4)["test"])
    assert [path.name for path in files_in(cached)] == [f"{i}.json.gz" for i in range(4)]
    monkeypatch.setattr("patheval.tasks.phonebook.generate.build_doc", lambda *_: 1 / 0)
    assert list(phonebook(target_length=512, tokenizer=bpe_folder, num_samples=4)["test"]) == first


def test_only_documents_that_are_read_are_stored(cached, bpe_folder):
    docs = phonebook(target_length=512, tokenizer=bpe_folder)["test"]
    assert (docs.is_stored(7), docs[7]["index"], docs.is_stored(7)) == (False, 7, True)
    assert len(files_in(cached)) == 1


def test_key_holds_all_that_documents_depend_on(cached, bpe_folder, english_folder):
    settings = [
        {"target_length": 512, "tokenizer": bpe_folder},
        {"target_length": 513, "tokenizer": bpe_folder},
        {"target_length": 512, "tokenizer": bpe_folder, "data_seed": 1},
        {"target_length": 512, "tokenizer": english_folder},
        {"target_length": 512, "tokenizer": bpe_folder, "add_bos_token": False},
    ]
    for count, setting in enumerate(settings, 1):
        for num_samples in (2, 3):
            assert phonebook(num_samples=num_samples, **setting)["test"][0]
        assert len({path.parent for path in files_in(cached)}) == count


def test_another_code_is_another_key(cached, tmp_path, monkeypatch):
    keys = {SampleCache.of("task", 512, made_by=phonebook)._folder}
    monkeypatch.setattr(cache, "_code_digest", lambda folder: "other code")
    keys.add(SampleCache.of("task", 512, made_by=phonebook)._folder)
    monkeypatch.setattr(cache, "version", lambda package: "other words")
    keys.add(SampleCache.of("task", 512, made_by=phonebook)._folder)
    assert len(keys) == 3


@pytest.mark.parametrize(
    "damage", [b"", b"\x1f\x8b", b"no gzip", gzip.compress(b"{"), gzip.compress(b"[1]"), None]
)
def test_damaged_file_is_built_again(cached, bpe_folder, damage):
    make = lambda: phonebook(target_length=512, tokenizer=bpe_folder)["test"]  # noqa: E731
    doc = make()[0]
    [file] = files_in(cached)
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2] if damage is None else damage)
    assert make()[0] == doc
    assert file.read_bytes() == content


def test_cache_can_be_off(monkeypatch):
    monkeypatch.setenv("PATHEVAL_CACHE", "off")
    assert SampleCache.of("task", made_by=phonebook) is None


def test_folder_is_the_user_s_unless_one_is_given(monkeypatch, tmp_path):
    monkeypatch.delenv("PATHEVAL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.cache_folder() == tmp_path / "patheval"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.cache_folder().parts[-2:] == (".cache", "patheval")


def test_folder_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    store = SampleCache(tmp_path / "file" / "task")
    with pytest.raises(PrerequisiteError, match=r"set PATHEVAL_CACHE to a folder .* or to 'off'"):
        store.store(0, {"index": 0})


_WRITER = """
import sys
from pathlib import Path
from patheval.tasks.cache import SampleCache
store = SampleCache(Path(sys.argv[1]))
sample = {"prompt": "The sky is blue. " * 200_000}
while True:
    for index in range(3):
        store.store(index, sample)
"""


def test_killed_writers_leave_whole_files_only(tmp_path):
    folder = tmp_path / "task"
    writers = [subprocess.Popen([sys.executable, "-c", _WRITER, str(folder)]) for _ in range(2)]
    store = SampleCache(folder)
    deadline = time.monotonic() + 60
    while not store.holds(2) and time.monotonic() < deadline:
        time.sleep(0.01)
    for _ in range(20):
        for index in range(3):
            assert store.load(index) == {"prompt": "The sky is blue. " * 200_000}
    for writer in writers:
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
    for index in range(3):
        assert store.load(index) == {"prompt": "The sky is blue. " * 200_000}


def test_documents_made_for_the_disk_are_not_kept_in_memory(cached):
    built = []
    docs = LazyDocs(3, lambda index: built.append(index) or {"index": index}, None)
    assert docs.make(1) == docs.make(1) == {"index": 1}
    assert built == [1, 1]

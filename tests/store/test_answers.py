"""The database of answers: byte for byte, for one model only, and never silently nothing."""

import shutil
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from patheval.errors import PrerequisiteError
from patheval.store import AnswerStore, answers, request_key
from patheval.store.identity import fingerprint

FACTS = {"checkpoint": "abc", "max_length": 8192, "engine": {"block_size": 256}}


def test_answers_come_back_byte_for_byte(tmp_path: Path) -> None:
    store = AnswerStore(tmp_path / "deep" / "folder", FACTS)
    logprobs = np.array([-1 / 3, -1e-300, -np.inf, -0.0])
    is_greedy = np.array([True, False, True, False])
    texts = {b"1": ("", 0), b"2": ("a\0b\r\n\ufffd é 𝄞 ", 7), b"3": ("'; DROP TABLE texts;", 2)}
    store.add_scores([(b"k", (logprobs, is_greedy))])
    store.add_texts(texts.items())
    store.close()
    store = AnswerStore(tmp_path / "deep" / "folder", dict(reversed(FACTS.items())))
    got = store.scores([b"k", b"absent"])
    assert got.keys() == {b"k"}
    assert got[b"k"][0].tobytes() == logprobs.tobytes()
    assert got[b"k"][1].tolist() == is_greedy.tolist()
    assert store.texts([*texts, b"absent"]) == texts
    assert store.texts([b"k"]) == {}


def test_what_is_stored_is_never_replaced(tmp_path: Path) -> None:
    store = AnswerStore(tmp_path, FACTS)
    store.add_texts([(b"1", ("first", 1))])
    store.add_texts([(b"1", ("second", 1)), (b"2", ("other", 1))])
    assert store.texts([b"1", b"2"]) == {b"1": ("first", 1), b"2": ("other", 1)}


def test_a_transaction_that_fails_stores_nothing(tmp_path: Path) -> None:
    store = AnswerStore(tmp_path, FACTS)

    def rows() -> object:
        yield b"1", ("text", 1)
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        store.add_texts(rows())
    assert store.texts([b"1"]) == {}
    store.add_texts([(b"1", ("text", 1))])
    assert store.texts([b"1"]) == {b"1": ("text", 1)}


@pytest.mark.parametrize(
    "other",
    [
        FACTS | {"checkpoint": "abd"},
        FACTS | {"max_length": 4096},
        FACTS | {"engine": {"block_size": 128}},
        {"checkpoint": "abc"},
    ],
)
def test_other_facts_are_another_file(tmp_path: Path, other: dict[str, object]) -> None:
    AnswerStore(tmp_path, FACTS).add_texts([(b"1", ("text", 1))])
    assert AnswerStore(tmp_path, other).texts([b"1"]) == {}
    assert len(list(tmp_path.glob("*.sqlite3"))) == 2


def test_a_renamed_file_of_another_model_is_refused(tmp_path: Path) -> None:
    store = AnswerStore(tmp_path, FACTS)
    store.close()
    other = FACTS | {"max_length": 1}
    store.path.rename(tmp_path / f"{fingerprint(other)[:32]}.sqlite3")
    with pytest.raises(PrerequisiteError, match="max_length: 8192 is not 1"):
        AnswerStore(tmp_path, other)


def test_damaged_and_unwritable_stores_say_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / f"{fingerprint(FACTS)[:32]}.sqlite3"
    path.write_bytes(b"not a database" * 100)
    with pytest.raises(PrerequisiteError, match=r"cannot be opened \(file is not a database\)"):
        AnswerStore(tmp_path, FACTS)
    (tmp_path / "file").write_text("")
    with pytest.raises(PrerequisiteError, match="resume=off"):
        AnswerStore(tmp_path / "file", FACTS)


@pytest.mark.parametrize("content", [b"answer to find", np.full(4, -0.625).tobytes()])
def test_an_answer_that_was_damaged_on_the_disk_is_not_served(
    tmp_path: Path, content: bytes
) -> None:
    store = AnswerStore(tmp_path, FACTS)
    store.add_texts([(b"1", ("answer to find", 1))])
    store.add_scores([(b"1", (np.full(4, -0.625), np.ones(4, dtype=bool)))])
    store.close()  # writes the log into the file
    damaged = bytearray(store.path.read_bytes())
    damaged[damaged.index(content) + 6] ^= 1
    store.path.write_bytes(damaged)
    store = AnswerStore(tmp_path, FACTS)
    with pytest.raises(PrerequisiteError, match=r"not the one that was written.*delete it"):
        store.texts([b"1"]) and store.scores([b"1"])


def test_a_file_that_another_process_holds_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "_LOCK_TIMEOUT_S", 0.1)
    store = AnswerStore(tmp_path, FACTS)
    other = sqlite3.connect(store.path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    for use in (
        lambda: store.add_texts([(b"1", ("text", 1))]),
        lambda: AnswerStore(tmp_path, FACTS),
    ):
        with pytest.raises(PrerequisiteError, match="another process has held it"):
            use()
    other.execute("ROLLBACK")
    store.add_texts([(b"1", ("text", 1))])
    assert store.texts([b"1"]) == {b"1": ("text", 1)}


@pytest.mark.parametrize("what", ["file", "folder"])
def test_what_comes_after_a_store_was_deleted_is_in_a_new_one(
    what: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "store"
    store = AnswerStore(folder, FACTS)
    store.add_texts([(b"1", ("text", 1))])
    if what == "folder":
        shutil.rmtree(folder)
    else:
        store.path.unlink()  # the write-ahead log stays
    store.add_texts([(b"2", ("text", 1))])
    store.add_texts([(b"3", ("text", 1))])
    assert caplog.text.count("was deleted while it was in use") == 1
    assert set(AnswerStore(folder, FACTS).texts([b"1", b"2", b"3"])) == {b"2", b"3"}


def test_a_store_that_another_run_made_anew_is_shared_again(tmp_path: Path) -> None:
    store = AnswerStore(tmp_path, FACTS)
    store.add_texts([(b"1", ("text", 1))])
    store.path.unlink()
    other = AnswerStore(tmp_path, FACTS)
    other.add_texts([(b"2", ("text", 1))])
    store.add_texts([(b"3", ("text", 1))])
    other.add_texts([(b"4", ("text", 1))])
    for one in (store, other, AnswerStore(tmp_path, FACTS)):
        assert set(one.texts([b"1", b"2", b"3", b"4"])) == {b"2", b"3", b"4"}


def test_a_store_may_be_used_from_one_thread_after_another(tmp_path: Path) -> None:
    store = AnswerStore(tmp_path, FACTS)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(store.add_texts, [(b"1", ("text", 1))]).result()
    assert store.texts([b"1"]) == {b"1": ("text", 1)}


def test_a_full_disk_is_an_error_and_keeps_what_was_stored(tmp_path: Path) -> None:
    store = AnswerStore(tmp_path, FACTS)
    store.add_texts([(b"1", ("text", 1))])
    pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
    store._connection.execute(f"PRAGMA max_page_count = {pages}")
    for length in (10**3, 10**6):  # SQLite ends the transaction itself where its cache overflows
        with pytest.raises(PrerequisiteError, match=r"full\); make room.*resume=FOLDER on another"):
            store.add_texts([(b"2", ("long " * length, 1))])
    assert AnswerStore(tmp_path, FACTS).texts([b"1", b"2"]) == {b"1": ("text", 1)}


def test_many_runs_may_start_a_store_at_once(tmp_path: Path) -> None:
    num_runs, num_stores = 4, 100
    barrier = threading.Barrier(num_runs)

    def start(_: int) -> list[str]:
        errors = []
        for store in range(num_stores):
            barrier.wait()
            try:
                AnswerStore(tmp_path, {**FACTS, "store": store}).close()
            except PrerequisiteError as error:
                errors.append(str(error))
        return errors

    with ThreadPoolExecutor(num_runs) as pool:
        assert list(pool.map(start, range(num_runs))) == [[]] * num_runs


def test_many_writers_at_once(tmp_path: Path) -> None:
    errors: list[BaseException] = []

    def write(writer: int) -> None:
        try:
            store = AnswerStore(tmp_path, FACTS)
            for i in range(50):
                store.add_texts([(f"{writer} {i}".encode(), (str(i), i)), (b"all", ("same", 1))])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    keys = [f"{writer} {i}".encode() for writer in range(6) for i in range(50)]
    assert len(AnswerStore(tmp_path, FACTS).texts([*keys, b"all"])) == 301


def test_the_file_is_sqlite_in_wal_mode(tmp_path: Path) -> None:
    store = AnswerStore(tmp_path, FACTS)
    connection = sqlite3.connect(store.path)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_request_keys_tell_requests_apart() -> None:
    def ids(*numbers: int) -> np.ndarray:
        return np.array(numbers, dtype=np.uint32)

    keys = [
        request_key("score", ids(1, 2), ids(3)),
        request_key("score", ids(1), ids(2, 3)),
        request_key("score", ids(1, 2, 3)),
        request_key("generate", ids(1, 2), ids(3)),
        request_key("score", ids(1, 2), ids(259)),
        request_key("score", ids(1, 2), ids(3), repeat=1),
        request_key("score", ids(1, 2), ids(3), until=["1"]),
        request_key("score", ids(1, 2), ids(3), until=[1]),
        request_key("score", ids(1, 2), ids(3), temperature=1),
        request_key("score", ids(1, 2), ids(3), temperature=True),
    ]
    assert len(set(keys)) == len(keys)
    assert request_key("score", ids(1).astype(np.int64)) == request_key("score", ids(1))

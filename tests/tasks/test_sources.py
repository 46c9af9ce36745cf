"""Sources in a data folder and on the hub; nothing here reaches a network."""

import hashlib
import os

import pytest
from datasets import Dataset

from patheval.errors import PrerequisiteError, UnsupportedError
from patheval.tasks import sources
from patheval.tasks.ruler import documents, essay, haystack
from patheval.tasks.sources import SourceFile, SourceRows

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONTENT = b"Ada came.\n"
FILE = SourceFile(
    name="Ada's book",
    folder="ada/books",
    path="book.txt",
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    revision=COMMIT,
)
ROWS = SourceRows(
    name="Ada's rows", repository="ada/rows", revision=COMMIT, split="test", files="test.parquet"
)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "ada" / "books").mkdir(parents=True)
    return tmp_path


def test_file_of_the_data_folder_is_checked(folder):
    path = folder / "ada" / "books" / "book.txt"
    path.write_bytes(CONTENT)
    assert FILE.fetch({"data_dir": str(folder)}) == (path, FILE.sha256)


def test_data_folder_can_come_from_the_environment(folder, monkeypatch):
    (folder / "ada" / "books" / "book.txt").write_bytes(CONTENT)
    monkeypatch.setenv("PATHEVAL_DATA", str(folder))
    assert FILE.fetch({}).sha256 == FILE.sha256


def test_missing_file_names_the_command_that_fetches_it(folder):
    with pytest.raises(PrerequisiteError) as error:
        FILE.fetch({"data_dir": str(folder)})
    assert str(error.value) == (
        f"Ada's book is missing: there is no {folder}/ada/books/book.txt; run `hf download "
        f"ada/books book.txt --repo-type dataset --revision {COMMIT} "
        f"--local-dir {folder}/ada/books`"
    )


def test_missing_file_from_elsewhere_names_the_command_that_fetches_it(folder, monkeypatch):
    place = f"{folder}/ruler/squad.json"
    with pytest.raises(PrerequisiteError, match="curl -L --create-dirs -o ") as error:
        documents.RULER_SQUAD.fetch({"data_dir": str(folder)})
    assert f"-o {place} {documents.RULER_SQUAD.url}`" in str(error.value)
    monkeypatch.delenv("PATHEVAL_DATA", raising=False)
    with pytest.raises(PrerequisiteError, match="`export PATHEVAL_DATA=FOLDER; curl -L"):
        documents.RULER_SQUAD.fetch({})


def test_missing_folder_is_named(tmp_path):
    with pytest.raises(PrerequisiteError, match=f"{tmp_path}/none does not exist; create it"):
        FILE.fetch({"data_dir": str(tmp_path / "none")})


def test_file_that_the_hub_does_not_give_names_the_command(monkeypatch):
    monkeypatch.delenv("PATHEVAL_DATA", raising=False)
    with pytest.raises(PrerequisiteError) as error:
        FILE.fetch({})
    command = f"hf download ada/books book.txt --repo-type dataset --revision {COMMIT}"
    assert f"run `{command}`" in str(error.value)


def test_other_content_is_refused_unless_it_is_wanted(folder):
    path = folder / "ada" / "books" / "book.txt"
    path.write_bytes(b"Ben came.\n")
    digest = hashlib.sha256(b"Ben came.\n").hexdigest()
    with pytest.raises(UnsupportedError, match=f"is not Ada's book: its SHA-256 is {digest} ins"):
        FILE.fetch({"data_dir": str(folder)})
    assert FILE.fetch({"data_dir": str(folder), "own_data": True}) == (path, digest)
    with pytest.raises(UnsupportedError, match="own_data is 'yes' and must be true or false"):
        FILE.fetch({"data_dir": str(folder), "own_data": "yes"})


def test_file_that_changes_is_read_again(folder):
    path = folder / "ada" / "books" / "book.txt"
    path.write_bytes(b"Ben came.\n")
    first = FILE.fetch({"data_dir": str(folder), "own_data": True})
    path.write_bytes(b"Ben left.\n")
    os.utime(path, ns=(1, 1))
    assert FILE.fetch({"data_dir": str(folder), "own_data": True}).sha256 != first.sha256


def test_rows_of_the_data_folder_are_checked(tmp_path):
    (tmp_path / "ada" / "rows").mkdir(parents=True)
    rows = [{"name": "Ada", "number": 1}, {"name": "Ben", "number": 2}]
    Dataset.from_list(rows).to_parquet(tmp_path / "ada" / "rows" / "test.parquet")
    metadata = {"data_dir": str(tmp_path)}
    loaded = ROWS.load(metadata)
    assert list(loaded.rows) == rows
    assert loaded.sha256 == sources.rows_sha256(rows) != sources.rows_sha256(rows[::-1])
    pinned = SourceRows(**(vars(ROWS) | {"sha256": loaded.sha256}))
    assert pinned.load(metadata).sha256 == loaded.sha256
    other = SourceRows(**(vars(ROWS) | {"sha256": "0" * 64}))
    with pytest.raises(UnsupportedError, match="is not Ada's rows: the SHA-256 of its rows"):
        other.load(metadata)


def test_missing_rows_name_the_command_that_fetches_them(tmp_path, monkeypatch):
    command = f"hf download ada/rows test.parquet --repo-type dataset --revision {COMMIT}"
    with pytest.raises(PrerequisiteError) as error:
        ROWS.load({"data_dir": str(tmp_path)})
    assert f"run `{command} --local-dir {tmp_path}/ada/rows`" in str(error.value)
    monkeypatch.delenv("PATHEVAL_DATA", raising=False)
    with pytest.raises(PrerequisiteError) as error:
        ROWS.load({})
    assert f"run `{command}`, or copy it to PATHEVAL_DATA/ada/rows" in str(error.value)


def test_ruler_s_sources_are_pinned():
    hub = (haystack.ESSAYS, documents.SQUAD, documents.HOTPOTQA)
    assert all(len(source.revision) == 40 for source in hub)
    others = (haystack.RULER_ESSAYS, documents.RULER_SQUAD, documents.RULER_HOTPOTQA)
    assert all(len(source.sha256) == 64 for source in (*hub, *others))


def test_ruler_s_own_essays_of_other_content_can_be_removed(data_folder):
    path = f"{data_folder}/ruler/PaulGrahamEssays.json"
    with pytest.raises(UnsupportedError, match=f"; run `rm {path}`, or use the file as it is"):
        haystack.essays({"data_dir": data_folder})


def test_task_without_its_source_fails_when_it_is_made(bpe_folder, tmp_path):
    with pytest.raises(PrerequisiteError, match="hf download baber/paul_graham_essays"):
        essay.niah_single_2(target_length=1024, tokenizer=bpe_folder, data_dir=str(tmp_path))


@pytest.mark.parametrize("from_command_line", [True, False])
def test_missing_source_ends_a_run_before_a_model_is_loaded(
    bpe_folder, tmp_path, run_python, from_command_line
):
    call = (
        """from lm_eval.__main__ import cli_evaluate
import sys
sys.argv = ["lm_eval", "run", "--model", "never", "--model_args", "tokenizer=FOLDER",
            "--tasks", "path_ruler_qa_1_4k", "--metadata", '{"data_dir": "DATA"}']
cli_evaluate()"""
        if from_command_line
        else """from lm_eval import simple_evaluate
simple_evaluate(model="never", model_args="tokenizer=FOLDER", tasks=["path_ruler_qa_1_4k"],
                metadata={"data_dir": "DATA"})"""
    )
    lines = call.replace("FOLDER", bpe_folder).replace("DATA", str(tmp_path)).splitlines()
    code = f"""
import lm_eval.api.registry
from patheval.errors import PrerequisiteError
def get_model(name):
    raise SystemExit("a model was loaded")
lm_eval.api.registry.get_model = get_model
try:
    {chr(10).join("    " + line for line in lines).strip()}
except PrerequisiteError as error:
    print(error)
"""
    assert "run `hf download rajpurkar/squad_v2 " in run_python(code).splitlines()[-1]


def test_essays_of_the_hub_are_read_from_parquet(tmp_path):
    place = tmp_path / "baber" / "paul_graham_essays"
    place.mkdir(parents=True)
    Dataset.from_list([{"text": "Ada  came."}, {"text": "Ben\nleft."}]).to_parquet(
        place / "essays.parquet"
    )
    loaded = haystack.essays({"data_dir": str(tmp_path), "own_data": True})
    assert list(loaded.data.one_copy) == ["Ada", "came.", "Ben", "left."]

"""Makes the documents of samples files anew, whose prompts stand in no file."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from patheval._autoload import task_folder
from patheval.errors import PathEvalError, ResultsError
from patheval.samplefile import date_of, is_generated, task_of

# Facts of a document under the names that tasks read in their metadata.
_METADATA_OF = {"length": "length", "seed": "data_seed", "preset": "preset"}
# Of the definition that was run, which is not the installed one's.
_DEFINITION = ("version", "config_source")


class Rebuilder:
    """Makes the documents of one samples file anew.

    What the task depends on is read from the results file beside it, and from the documents.

    Args:
        path: The samples file.
        task: The task; by default the one in the file's name.
        tokenizer: Folder, `zoo:NAME` or Hugging Face id; by default that of the run.
        include_path: Further folder with task definitions.
    """

    def __init__(
        self,
        path: Path,
        task: str | None = None,
        tokenizer: str | None = None,
        include_path: str | None = None,
    ) -> None:
        self._path = path
        self._task = task or task_of(path)
        self._folders = [task_folder(), *([include_path] if include_path else [])]
        self._metadata = _recorded_metadata(path, self._task)
        if tokenizer is not None:
            self._metadata["tokenizer"] = tokenizer
        self._docs: dict[str, Any] = {}

    def __call__(self, sample: Mapping[str, Any]) -> Mapping[str, Any]:
        """Makes the document of a sample.

        Raises:
            ResultsError: The task is not known, the tokenizer or a source is missing, or the
                document is not one of patheval's.
        """
        doc = sample["doc"]
        if not is_generated(doc):
            raise ResultsError(f"document {sample['doc_id']} of {self._path} is no generated one")
        facts = {new: doc[name] for name, new in _METADATA_OF.items() if name in doc}
        key = json.dumps(facts, sort_keys=True)
        try:
            if key not in self._docs:
                self._docs[key] = self._load(facts)
            rebuilt: Mapping[str, Any] = self._docs[key][doc["index"]]
        except PathEvalError as error:
            raise self._failure(str(error)) from error
        except (OSError, IndexError, KeyError, ValueError) as error:
            raise self._failure(f"{type(error).__name__}: {error}") from error
        if rebuilt.get("tokenizer") != doc["tokenizer"]:
            raise self._failure(
                f"the tokenizer's fingerprint is {rebuilt.get('tokenizer')} and was "
                f"{doc['tokenizer']}"
            )
        return rebuilt

    def _load(self, facts: Mapping[str, object]) -> Any:
        from lm_eval.tasks import TaskManager

        manager = TaskManager(
            include_path=self._folders,
            include_defaults=False,
            metadata={**self._metadata, **facts},
        )
        logger = logging.getLogger("lm_eval.api.task")
        level = logger.level
        logger.setLevel(logging.ERROR)  # Of metadata that can be given it need not tell.
        try:
            (task,) = manager.load([str(self._task)])["tasks"].values()
        finally:
            logger.setLevel(level)
        return task.eval_docs

    def _failure(self, reason: str) -> ResultsError:
        return ResultsError(
            f"the prompts of {self._path.name} cannot be made anew ({' '.join(reason.split())}); "
            "pass --tokenizer PLACE if the run's tokenizer has moved, and --task or --include_path "
            "for a task of your own"
        )


def _recorded_metadata(path: Path, task: str | None) -> dict[str, Any]:
    for results in sorted(path.parent.glob(f"*_{date_of(path)}.json")):
        try:
            recorded = json.loads(results.read_text(encoding="utf-8"))["configs"][task]["metadata"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        return {name: value for name, value in recorded.items() if name not in _DEFINITION}
    return {}

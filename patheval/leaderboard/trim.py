"""Results small enough to commit: samples without prompts, which pair models all the same."""

import gzip
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from patheval.errors import ResultsError
from patheval.samplefile import read_samples, task_of

_DOC_FIELDS = ("index", "num_tokens", "depth_tokens", "length", "seed", "tokenizer")
_ANSWER_CHARACTERS = 200
# What follows the driver's version in PyTorch's description of a machine.
_ENVIRONMENT_END = re.compile(r"\n(?:cuDNN version|HIP runtime version|CPU):")


def trim_results(source: Path, target: Path) -> tuple[int, int]:
    """Copies results files, and of each samples file what a board needs of it, gzipped.

    Kept of a sample: its hashes, scores, lengths and the start of the answer. Left out: the prompt,
    the document's text and the raw responses, which the hashes still identify; and of a results
    file what it tells of the machine beside software and GPU.

    Args:
        source: Folder that lm-eval wrote to.
        target: Where the copies go; may be made, must not lie in `source`.

    Returns:
        Bytes of all files before and after.

    Raises:
        ResultsError: A file is damaged, or there is none.
    """
    if target.resolve().is_relative_to(source.resolve()):
        raise ResultsError(f"{target} lies in {source}; name a folder outside it")
    results = sorted(source.rglob("*results_*.json"))
    samples = sorted(path for path in source.rglob("samples_*.jsonl*") if task_of(path))
    if not results:
        raise ResultsError(f"no results file lies in {source}; name a folder that lm-eval wrote to")
    after = 0
    for path in [*results, *samples]:
        copy = target / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".json":
            copy.write_bytes(_utf8(_trimmed_results(path)))
        else:
            lines = [
                json.dumps(_trimmed(record), ensure_ascii=False, separators=(",", ":")) + "\n"
                for record in read_samples(path)
            ]
            copy = copy.with_name(f"{copy.name.removesuffix('.gz')}.gz")
            copy.write_bytes(gzip.compress(_utf8("".join(lines)), mtime=0))
        after += copy.stat().st_size
    return sum(path.stat().st_size for path in [*results, *samples]), after


def _trimmed_results(path: Path) -> str:
    """The text of a results file without the machine's libraries and paths of task files."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        data.get("results")
    except (AttributeError, ValueError) as error:
        raise ResultsError(
            f"{path} is no results file ({type(error).__name__}: {error}); leave it out"
        ) from error
    if isinstance(description := data.get("pretty_env_info"), str):
        data["pretty_env_info"] = _ENVIRONMENT_END.split(description)[0]
    configs = data.get("configs")
    for config in configs.values() if isinstance(configs, dict) else ():
        metadata = config.get("metadata") if isinstance(config, dict) else None
        if isinstance(metadata, dict):
            metadata.pop("config_source", None)
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n"


def _utf8(text: str) -> bytes:
    """JSON as bytes; half of a surrogate pair, which UTF-8 lacks, stays JSON's escape."""
    return text.encode(errors="backslashreplace")


def _trimmed(record: Mapping[str, Any]) -> dict[str, Any]:
    doc = record["doc"] if isinstance(record["doc"], dict) else {}
    answers = record.get("filtered_resps") or []
    kept = ("doc_id", "target", "filter", "metrics", "prompt_hash", "target_hash")
    return {
        **{name: record[name] for name in kept if name in record},
        "doc": {name: doc[name] for name in _DOC_FIELDS if name in doc},
        "arguments": {},
        "resps": [],
        "filtered_resps": [
            answer[:_ANSWER_CHARACTERS] for answer in answers if isinstance(answer, str)
        ],
        **{name: record[name] for name in record.get("metrics", ())},
    }

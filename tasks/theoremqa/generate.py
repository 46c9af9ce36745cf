"""TheoremQA's questions."""

from typing import Any

from ..generation import num_samples_of, refuse_misspelt
from ..sources import SourceRows

QUESTIONS = SourceRows(
    name="TheoremQA",
    repository="TIGER-Lab/TheoremQA",
    revision="a340b1782960a712843aae3ed25f1e013cc008a5",
    split="test",
    columns=("Question", "Answer", "Answer_type"),
)


def theoremqa(**metadata: Any) -> dict[str, Any]:
    """Makes the dataset of all questions; pictures, which few have, are left out.

    Args:
        **metadata: The task's metadata; says where the data are. `num_samples` takes the first so
            many, all unless given.

    Raises:
        PrerequisiteError: The data set is missing.
        UnsupportedError: The data set has other content, or a setting makes no sense.
    """
    refuse_misspelt(metadata)
    rows, sha256 = QUESTIONS.load(metadata)
    rows = rows.select(range(min(num_samples_of(metadata, len(rows)), len(rows))))
    return {"test": rows.add_column("source_sha256", [sha256] * len(rows))}

"""lm-eval's own tasks as the paper's tables count them."""

from collections.abc import Mapping, Sequence
from typing import Any

from lm_eval.api.metrics import mean
from lm_eval.api.task import ConfigurableTask


class ScoredTask(ConfigurableTask):
    """A task of lm-eval whose one accuracy that a table prints is also called `score`.

    Tasks of one table count by different accuracies; under a common name they have a mean.

    Args:
        config: The task's YAML file; `table_score` in its metadata names the accuracy.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config={key: config[key] for key in config if key != "class"})
        self._aggregation_list["score"] = mean
        self._higher_is_better["score"] = True

    def process_results(self, doc: Any, results: Sequence[Any]) -> dict[str, Any]:
        """Scores a document as lm-eval does, and repeats the table's accuracy as `score`."""
        scores: dict[str, Any] = super().process_results(doc, results)
        return {**scores, "score": scores[self.config.metadata["table_score"]]}

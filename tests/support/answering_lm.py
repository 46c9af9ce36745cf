"""A language model for tests: it answers with functions of the request's text."""

from lm_eval import evaluator
from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager

from patheval._autoload import task_folder


class AnsweringLM(LM):
    """Answers requests with `generate(prompt)`, `score(context, continuation)` or `roll(text)`."""

    def __init__(self, *, generate=None, score=None):
        super().__init__()
        self._generate = generate
        self._score = score
        self.requests = []

    def generate_until(self, requests, disable_tqdm=False):
        self.requests += requests
        return [self._generate(request.args[0]) for request in requests]

    def loglikelihood(self, requests, disable_tqdm=False):
        self.requests += requests
        return [self._score(*request.args) for request in requests]

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        raise NotImplementedError


def manager(**metadata):
    return TaskManager(include_path=task_folder(), include_defaults=False, metadata=metadata)


def evaluate(task, lm, *, limit=3, **metadata):
    """Runs one task, without lm-eval's slow record of the environment, and returns the results."""
    tasks = manager(**metadata).load([task])
    return evaluator.evaluate(lm, tasks, limit=limit, bootstrap_iters=1000)

"""What `--model path` and `--model path-ref` share: all but running the model."""

import inspect
import json
import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from types import FrameType
from typing import Any, ClassVar

import numpy as np
from lm_eval.api.instance import Instance
from lm_eval.api.model import CacheHook, TemplateLM
from lm_eval.models.utils import (
    handle_stop_sequences,
    normalize_gen_kwargs,
    postprocess_generated_text,
)
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from numpy.typing import NDArray

import patheval
from patheval._cpu_environment import installed_version
from patheval.checkpoint.reader import CONFIG_NAME, GENERATION_CONFIG_NAME, open_checkpoint
from patheval.checkpoint.tokenizer import check_tokenizer
from patheval.errors import PrerequisiteError, RequestError, UnsupportedError
from patheval.store import code_digest, numeric_variables, tokenizer_digest
from patheval.tokenization import TokenCodec, load_tokenizer
from patheval.zoo import resolve

from ._answering import Answering, Generation
from ._arguments import choice, flag, integer
from ._frozen_heap import frozen_heap
from ._jobs import Tokens, tokens
from ._lengths import DEFAULT_MAX_LENGTH, OVERLENGTH_CHOICES, FittedPrompts, fit_prompts

IntArgument = int | float | str

# Texts that the tokenizer gets at once: bounds the Python integers that exist at a time.
_TEXTS_PER_BATCH = 1024

_logger = logging.getLogger(__name__)


class CheckpointLM(Answering, TemplateLM):
    """A checkpoint behind lm-eval's interface; subclasses run the model.

    Args:
        pretrained: Checkpoint folder, `zoo:NAME` or Hugging Face id.
        revision: Branch, tag or commit of a Hugging Face id.
        tokenizer: Folder or Hugging Face id; by default the checkpoint's.
        tokenizer_revision: Branch, tag or commit of the tokenizer's Hugging Face id.
        trust_remote_code: Let transformers run code that comes with the tokenizer.
        max_length: Limit of prompt and continuation together, in tokens; 8192 by default, for every
            attention kind and whatever the checkpoint's config states.
        max_model_len: Another name of max_length.
        max_gen_toks: Tokens to generate where a task states none.
        overlength: `error`, `skip` or `truncate`: what happens to prompts over the limit.
        add_bos_token: Whether prompts begin with BOS; by default as the tokenizer does it.
        prefix_token_id: What an empty context is replaced by; by default BOS, or EOS without BOS.
        think_end_token: Only the generated text after the last such string is scored.
        enable_thinking: Passed to the chat template.
        chat_template_args: Further variables for the chat template.
        resume: Folder in which answers are kept, so that a run that was killed goes on where it
            stopped; `off` keeps none. By default `$PATHEVAL_RESUME`, or patheval's cache.

    Raises:
        CheckpointError: The checkpoint or its tokenizer is damaged or inconsistent.
        UnsupportedError: An argument or the checkpoint's kind is not supported.
        PrerequisiteError: The checkpoint or the tokenizer cannot be had.
    """

    # What reads and checks a value of `--model_args`, by its name.
    _READERS: ClassVar[dict[str, Callable[[str, object], Any]]] = {
        "max_length": partial(integer, minimum=2),
        "max_model_len": partial(integer, minimum=2),
        "max_gen_toks": partial(integer, minimum=1),
        "overlength": partial(choice, choices=OVERLENGTH_CHOICES),
        "trust_remote_code": flag,
        "add_bos_token": flag,
        "enable_thinking": flag,
        "prefix_token_id": partial(integer, minimum=0),
    }

    def __init__(
        self,
        pretrained: str | None = None,
        *,
        revision: str | None = None,
        tokenizer: str | None = None,
        tokenizer_revision: str | None = None,
        trust_remote_code: bool | str = False,
        max_length: IntArgument | None = None,
        max_model_len: IntArgument | None = None,
        max_gen_toks: IntArgument = 256,
        overlength: str = "error",
        add_bos_token: bool | str | None = None,
        prefix_token_id: IntArgument | None = None,
        think_end_token: str | None = None,
        enable_thinking: bool | str | None = None,
        chat_template_args: dict[str, Any] | None = None,
        resume: str | bool | None = None,
    ) -> None:
        Answering.__init__(self, resume)
        TemplateLM.__init__(self)
        if not pretrained:
            raise PrerequisiteError(
                "no checkpoint is named; pass --model_args pretrained=FOLDER, zoo:NAME or a "
                "Hugging Face id"
            )
        if max_length is not None and max_model_len is not None:
            raise UnsupportedError(
                f"max_length={max_length} and max_model_len={max_model_len} are two names of one "
                "limit; pass max_length alone"
            )
        limit = max_model_len if max_length is None else max_length
        self._max_length = self._read("max_length", DEFAULT_MAX_LENGTH if limit is None else limit)
        self._max_gen_toks = self._read("max_gen_toks", max_gen_toks)
        self._overlength = self._read("overlength", overlength)
        self._think_end_token = think_end_token
        self._chat_template_args = dict(chat_template_args or {})
        if enable_thinking is not None:
            self._chat_template_args["enable_thinking"] = self._read(
                "enable_thinking", enable_thinking
            )

        # All that is known of the model is read before it is loaded, as its key must be.
        self._variables = numeric_variables()
        self._checkpoint = open_checkpoint(resolve(pretrained), revision)
        folder = self._checkpoint.path
        self._configs = {
            name: json.loads((folder / name).read_text(encoding="utf-8"))
            for name in (CONFIG_NAME, GENERATION_CONFIG_NAME)
            if (folder / name).is_file()
        }
        # Reads every weight, so that NaN is found before an engine is started.
        self._fingerprint = self._checkpoint.fingerprint()
        vocab_size = self._checkpoint.config.vocab_size
        self._tokenizer_source = resolve(tokenizer) if tokenizer else str(self._checkpoint.path)
        self._trust_remote_code = self._read("trust_remote_code", trust_remote_code)
        self.tokenizer = load_tokenizer(
            self._tokenizer_source,
            tokenizer_revision,
            trust_remote_code=self._trust_remote_code,
        )
        check_tokenizer(self.tokenizer, vocab_size, self._tokenizer_source)
        prefix = None
        if prefix_token_id is not None:
            prefix = self._read("prefix_token_id", prefix_token_id)
            if prefix >= vocab_size:
                raise UnsupportedError(
                    f"prefix_token_id is {prefix} but vocab_size is {vocab_size}; "
                    "pass an id below it"
                )
        self._codec = TokenCodec(
            self.tokenizer,
            add_bos_token=None
            if add_bos_token is None
            else self._read("add_bos_token", add_bos_token),
            prefix_token_id=prefix,
        )
        self._num_truncated = self._num_skipped = 0
        self._num_empty_prompts = self._num_empty_generations = 0

    @classmethod
    def check_arguments(cls, arguments: Mapping[str, Any]) -> None:
        """Checks as much of `--model_args` as no checkpoint and no engine is needed for.

        Args:
            arguments: Names and values, as lm-eval passes them.

        Raises:
            UnsupportedError: A name is not known, or its value is refused.
            PrerequisiteError: What knows the names is not installed.
        """
        for name, value in arguments.items():
            if name in cls._READERS and value is not None:
                cls._read(name, value)

    @classmethod
    def _read(cls, name: str, value: object) -> Any:
        return cls._READERS[name](name, value)

    @property
    def eot_token_id(self) -> int:
        """Id of the tokenizer's EOS token.

        Raises:
            PrerequisiteError: The tokenizer has none.
        """
        if self.tokenizer.eos_token_id is None:
            raise PrerequisiteError(
                f"the tokenizer {self.tokenizer.name_or_path} has no EOS token; set eos_token in "
                "its tokenizer_config.json"
            )
        return int(self.tokenizer.eos_token_id)

    @property
    def prefix_token_id(self) -> int:
        """Id that an empty context is replaced by."""
        return self._codec.prefix_token_id

    @property
    def max_length(self) -> int:
        """Limit of prompt and continuation together, in tokens."""
        return self._max_length

    @property
    def max_gen_toks(self) -> int:
        """Tokens to generate where a task states none."""
        return self._max_gen_toks

    @property
    def tokenizer_name(self) -> str:
        """Name of the tokenizer, for lm-eval's request cache."""
        return str(self.tokenizer.name_or_path).replace("/", "__")

    def set_cache_hook(self, cache_hook: CacheHook) -> None:
        """Refuses lm-eval's response cache, whose keys do not tell one checkpoint from another.

        Raises:
            UnsupportedError: Always.
        """
        raise UnsupportedError(
            "--use_cache would serve one checkpoint's answers for another; run without it: "
            "patheval keeps answers itself (resume= in --model_args)"
        )

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **kwargs: Any
    ) -> list[int]:
        """Encodes one text; see `TokenCodec.encode`."""
        return self._codec.encode([string], add_special_tokens=add_special_tokens)[0]

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Renders a conversation; see `TokenCodec.apply_chat_template`."""
        return self._codec.apply_chat_template(
            chat_history,
            add_generation_prompt=add_generation_prompt,
            **self._chat_template_args,
        )

    @frozen_heap()
    def loglikelihood(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Scores continuations.

        Args:
            requests: Instances whose `args` are (context, continuation).
            disable_tqdm: Show no progress.

        Returns:
            Natural-log probability of each continuation and whether greedy decoding gives it;
            (-inf, False) for a skipped request.

        Raises:
            RequestError: A prompt does not fit in `max_length`; see `_lengths.fit_prompts`.
        """
        _refuse_request_cache()
        pairs = [request.args for request in requests]
        self._num_empty_prompts += sum(not context for context, _ in pairs)
        encoded = self._encode_pairs(pairs)
        return self._loglikelihood_tokens(
            [(pair, *token_ids) for pair, token_ids in zip(pairs, encoded, strict=True)],
            disable_tqdm=disable_tqdm,
        )

    def _loglikelihood_tokens(
        self,
        requests: Sequence[tuple[tuple[str, str] | None, list[int] | Tokens, list[int] | Tokens]],
        disable_tqdm: bool = False,
        **kwargs: Any,
    ) -> list[tuple[float, bool]]:
        continuations = [tokens(continuation) for _, _, continuation in requests]
        fitted = self._fit(
            [tokens(context) for _, context, _ in requests], [len(own) for own in continuations]
        )
        # Nothing to score is certain, as for an empty text; the model is not asked.
        results = [
            (0.0, True) if kept is not None else (-float("inf"), False) for kept in fitted.contexts
        ]
        asked = {
            index: (context, continuation)
            for index, (context, continuation) in enumerate(
                zip(fitted.contexts, continuations, strict=True)
            )
            if context is not None and len(continuation)
        }
        scores = self._score(list(asked.values()), "loglikelihood", disable_tqdm)
        for index, own in zip(asked, scores, strict=True):
            results[index] = float(own.logprobs.sum()), bool(own.is_greedy.all())
        return results

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """Scores whole texts in disjoint windows of `max_length` tokens.

        Args:
            requests: Instances whose `args` are (text,).
            disable_tqdm: Show no progress.

        Returns:
            Natural-log probability of each text; 0 for an empty one.
        """
        _refuse_request_cache()
        texts = [request.args[0] for request in requests]
        self._num_empty_prompts += sum(not text for text in texts)
        nlls = self.token_nlls(texts, disable_tqdm=disable_tqdm)
        return [-float(own.sum()) if len(own) else 0.0 for own in nlls]

    @frozen_heap()
    def token_nlls(
        self, texts: Sequence[str], *, disable_tqdm: bool = False
    ) -> list[NDArray[np.float64]]:
        """Scores every token of whole texts, in disjoint windows of `max_length` tokens.

        The first token is scored behind `prefix_token_id`, the first of each later window behind
        the token before it, and the last window begins early enough to be full.

        Args:
            texts: The texts.
            disable_tqdm: Show no progress.

        Returns:
            For each text [n], the negative natural-log probabilities of its n tokens.
        """
        windows: list[list[tuple[Tokens, Tokens]]] = []
        for token_ids in self._encode(texts):
            own = [
                make_disjoint_window(window)
                for window in get_rolling_token_windows(
                    token_list=token_ids.tolist(),
                    prefix_token=self.prefix_token_id,
                    max_seq_len=self.max_length - 1,
                    context_len=1,
                )
            ]
            windows.append([(tokens(context), tokens(rest)) for context, rest in own])
        scores = iter(
            self._score(
                [pair for own in windows for pair in own], "loglikelihood_rolling", disable_tqdm
            )
        )
        return [
            -np.concatenate([np.zeros(0), *(next(scores).logprobs for _ in own)]) for own in windows
        ]

    @frozen_heap()
    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Generates until a stop string, EOS or the token budget.

        Args:
            requests: Instances whose `args` are (context, generation settings).
            disable_tqdm: Show no progress.

        Returns:
            The generated texts, without the stop string; "" for a skipped request.

        Raises:
            RequestError: A prompt does not fit in `max_length`, or a setting that the model cannot
                follow.
        """
        _refuse_request_cache()
        settings = [self._generation_settings(request.args[1]) for request in requests]
        self._num_empty_prompts += sum(not request.args[0] for request in requests)
        contexts = [
            token_ids if len(token_ids) else tokens([self.prefix_token_id])
            for token_ids in self._encode([request.args[0] for request in requests])
        ]
        fitted = self._fit(contexts, [max_gen_toks for max_gen_toks, _, _ in settings])
        asked = {
            index: Generation(context, *settings[index])
            for index, context in enumerate(fitted.contexts)
            if context is not None
        }
        texts = ["" for _ in requests]
        answers = self._generate(list(asked.values()), self._think_end_token, disable_tqdm)
        for index, answer in zip(asked, answers, strict=True):
            until = settings[index][1]
            texts[index] = postprocess_generated_text(answer.text, until, self._think_end_token)
            self._num_empty_generations += not texts[index].strip()
        return texts

    def _identity(self) -> dict[str, object]:
        """All that answers depend on, besides the requests."""
        return {
            "checkpoint": self._fingerprint,
            "config": self._configs,
            "attention": self._checkpoint.config.attention,
            "tokenizer": tokenizer_digest(self.tokenizer),
            "dtype": self._model_dtype,
            "max_length": self._max_length,
            "overlength": self._overlength,
            "versions": {
                "patheval": patheval.__version__,
                "code": code_digest(),
                **{
                    name: installed_version(name)
                    for name in ("torch", "transformers", "tokenizers", "triton")
                },
            },
            "variables": self._variables,
            "engine": self._engine_facts(),
        }

    def _encode(self, texts: Sequence[str]) -> list[Tokens]:
        """Encode texts, each distinct one once."""
        distinct = list(dict.fromkeys(texts))
        _check_texts(distinct)
        encoded: dict[str, Tokens] = {}
        for start in range(0, len(distinct), _TEXTS_PER_BATCH):
            batch = distinct[start : start + _TEXTS_PER_BATCH]
            encoded.update(zip(batch, map(tokens, self._codec.encode(batch)), strict=True))
        return [encoded[text] for text in texts]

    def _encode_pairs(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[Tokens, Tokens]]:
        """Encode contexts and continuations, each distinct context and each whole once."""
        distinct = sorted(set(pairs))  # so that the pairs of a context are in one batch
        _check_texts(dict.fromkeys(text for pair in distinct for text in pair))
        encoded: dict[tuple[str, str], tuple[Tokens, Tokens]] = {}
        start = 0
        while start < len(distinct):
            stop = min(start + _TEXTS_PER_BATCH, len(distinct))
            while stop < len(distinct) and distinct[stop][0] == distinct[stop - 1][0]:
                stop += 1
            batch = distinct[start:stop]
            arrays: dict[str, Tokens] = {}
            for pair, (context, rest) in zip(batch, self._codec.encode_pairs(batch), strict=True):
                if pair[0] not in arrays:
                    arrays[pair[0]] = tokens(context)
                encoded[pair] = arrays[pair[0]], tokens(rest)
            start = stop
        return [encoded[pair] for pair in pairs]

    def get_model_info(self) -> dict[str, object]:
        """Describes the model and the run for lm-eval's results file."""
        return {
            "attention": self._checkpoint.config.attention,
            "model_dtype": self._model_dtype,
            "checkpoint_sha256": self._fingerprint,
            "patheval_version": patheval.__version__,
            "lm_eval_version": version("lm_eval"),
            "torch_version": installed_version("torch"),
            "transformers_version": installed_version("transformers"),
            "max_length": self._max_length,
            "max_position_embeddings": self._checkpoint.config.max_position_embeddings,
            "overlength": self._overlength,
            "add_bos_token": self._codec.add_bos_token,
            "prefix_token_id": self.prefix_token_id,
            "num_prompts_overlength": self._num_truncated + self._num_skipped,
            "num_prompts_truncated": self._num_truncated,
            "num_prompts_skipped": self._num_skipped,
            "num_prompts_empty": self._num_empty_prompts,
            "num_generations_empty": self._num_empty_generations,
            "num_prompts": sum(record.num_requests for record in self._phases.values()),
            "num_answers_resumed": sum(record.num_resumed for record in self._phases.values()),
            "wall_seconds": sum(record.wall_seconds for record in self._phases.values()),
            "phases": {phase: record.as_dict() for phase, record in self._phases.items()},
            **self._engine_facts(),
        }

    def _fit(self, contexts: list[Tokens], budgets: list[int]) -> FittedPrompts[Tokens]:
        fitted = fit_prompts(
            contexts, budgets, max_length=self._max_length, overlength=self._overlength
        )
        self._num_truncated += fitted.num_truncated
        self._num_skipped += fitted.num_skipped
        if fitted.num_truncated or fitted.num_skipped:
            _logger.warning(
                "max_length=%d: %d of %d prompts cut on the left, %d skipped and counted as wrong",
                self._max_length,
                fitted.num_truncated,
                len(contexts),
                fitted.num_skipped,
            )
        return fitted

    def _generation_settings(
        self, gen_kwargs: dict[str, Any]
    ) -> tuple[int, list[str], dict[str, Any]]:
        """Split lm-eval's settings into budget, stop strings and the rest."""
        try:
            settings = dict(normalize_gen_kwargs(gen_kwargs, self._max_gen_toks))
            stops = handle_stop_sequences(settings.pop("until"), eos=self.tokenizer.eos_token)
        except (TypeError, ValueError) as error:
            raise RequestError(
                f"the generation settings {gen_kwargs} cannot be read ({error}); correct "
                "--gen_kwargs or the task's generation_kwargs"
            ) from error
        until = [stop for stop in stops if stop]
        if not all(isinstance(stop, str) for stop in until):
            raise RequestError(f"until is {stops!r}; make it a list of strings")
        if settings.pop("n", 1) != 1:
            raise RequestError("n is not 1, but lm-eval scores one answer; use the task's repeats")
        max_gen_toks = settings.pop("max_gen_toks")
        if max_gen_toks < 1:
            raise RequestError(
                f"max_gen_toks is {max_gen_toks}; give at least 1 in --gen_kwargs or the task's "
                "generation_kwargs"
            )
        is_greedy = not settings.pop("do_sample") or settings.get("temperature") == 0
        if is_greedy:
            settings = {
                key: value for key, value in settings.items() if key not in _IDLE_WHEN_GREEDY
            }
        return max_gen_toks, until, settings


def _check_texts(texts: Iterable[str]) -> None:
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(
                f"a prompt of {len(text)} characters holds {text[error.start]!r}, half of a "
                "character, which no tokenizer can read; correct the task's data"
            ) from error


def _refuse_request_cache() -> None:
    """Refuses lm-eval's cache of requests, of which lm-eval does not tell models.

    Raises:
        UnsupportedError: The `evaluate` that asks uses the cache, whose keys hold neither a
            tokenizer nor a task's length: the prompts may be another run's.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        is_evaluate = frame.f_code.co_name == "evaluate"
        if is_evaluate and frame.f_globals.get("__name__") == "lm_eval.evaluator":
            if frame.f_locals.get("cache_requests"):
                raise UnsupportedError(
                    "--cache_requests may serve prompts of another length or tokenizer; run "
                    "without it"
                )
            return
        frame = frame.f_back


# Settings that say nothing when decoding is greedy.
_IDLE_WHEN_GREEDY = ("temperature", "top_p", "top_k", "min_p", "seed")
# Names that `--model_args` may hold for every adapter.
ARGUMENTS = frozenset(inspect.signature(CheckpointLM.__init__).parameters) - {"self", "pretrained"}

"""What `--model path` and `--model path-ref` share: all but running the model."""

import inspect
import itertools
import logging
import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from lm_eval.api.instance import Instance
from lm_eval.api.model import CacheHook, TemplateLM
from lm_eval.models.utils import (
    handle_stop_sequences,
    normalize_gen_kwargs,
    postprocess_generated_text,
)
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

import patheval
from patheval.checkpoint.reader import open_checkpoint
from patheval.checkpoint.tokenizer import check_tokenizer
from patheval.errors import PrerequisiteError, RequestError, UnsupportedError
from patheval.tokenization import TokenCodec, load_tokenizer
from patheval.zoo import resolve

from ._arguments import choice, flag, integer
from ._lengths import DEFAULT_MAX_LENGTH, OVERLENGTH_CHOICES, FittedPrompts, fit_prompts

IntArgument = int | float | str
_Result = TypeVar("_Result")

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Generation:
    """One prompt to continue.

    Attributes:
        prompt: token ids, at least one.
        max_gen_toks: most tokens to generate.
        until: stop strings, EOS among them.
        sampling: lm-eval's other settings; empty for greedy decoding.
    """

    prompt: list[int]
    max_gen_toks: int
    until: list[str]
    sampling: dict[str, Any]


class CheckpointLM(TemplateLM):
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

    Raises:
        CheckpointError: The checkpoint or its tokenizer is damaged or inconsistent.
        UnsupportedError: An argument or the checkpoint's kind is not supported.
        PrerequisiteError: The checkpoint or the tokenizer cannot be had.
    """

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
    ) -> None:
        super().__init__()
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
        self._max_length = integer(
            "max_length", DEFAULT_MAX_LENGTH if limit is None else limit, minimum=2
        )
        self._max_gen_toks = integer("max_gen_toks", max_gen_toks, minimum=1)
        self._overlength = choice("overlength", overlength, OVERLENGTH_CHOICES)
        self._think_end_token = think_end_token
        self._chat_template_args = dict(chat_template_args or {})
        if enable_thinking is not None:
            self._chat_template_args["enable_thinking"] = flag("enable_thinking", enable_thinking)

        self._checkpoint = open_checkpoint(resolve(pretrained), revision)
        # Reads every weight, so that NaN is found before an engine is started.
        self._fingerprint = self._checkpoint.fingerprint()
        vocab_size = self._checkpoint.config.vocab_size
        self._tokenizer_source = resolve(tokenizer) if tokenizer else str(self._checkpoint.path)
        self._trust_remote_code = flag("trust_remote_code", trust_remote_code)
        self.tokenizer = load_tokenizer(
            self._tokenizer_source,
            tokenizer_revision,
            trust_remote_code=self._trust_remote_code,
        )
        check_tokenizer(self.tokenizer, vocab_size, self._tokenizer_source)
        prefix = None
        if prefix_token_id is not None:
            prefix = integer("prefix_token_id", prefix_token_id, minimum=0)
            if prefix >= vocab_size:
                raise UnsupportedError(
                    f"prefix_token_id is {prefix} but vocab_size is {vocab_size}; "
                    "pass an id below it"
                )
        self._codec = TokenCodec(
            self.tokenizer,
            add_bos_token=None if add_bos_token is None else flag("add_bos_token", add_bos_token),
            prefix_token_id=prefix,
        )
        self._num_truncated = self._num_skipped = self._num_empty = 0

    @property
    @abstractmethod
    def _model_dtype(self) -> str:
        """Dtype that the model computes in."""

    @abstractmethod
    def _score(
        self, requests: Sequence[tuple[list[int], list[int]]]
    ) -> Iterator[tuple[int, tuple[float, bool]]]:
        """Scores continuations behind contexts, both of at least one token.

        Yields:
            In any order, the request's index with the natural-log probability of its continuation
            and whether greedy decoding gives it.
        """

    @abstractmethod
    def _generate(self, requests: Sequence[Generation]) -> Iterator[tuple[int, str]]:
        """Continues prompts.

        Yields:
            In any order, the request's index with the text, at most up to and with a stop string.
        """

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
            "--use_cache would serve one checkpoint's answers for another; run without it"
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
        pairs = [request.args for request in requests]
        encoded = self._codec.encode_pairs(pairs)
        return self._loglikelihood_tokens(
            [(pair, *token_ids) for pair, token_ids in zip(pairs, encoded, strict=True)],
            disable_tqdm=disable_tqdm,
        )

    def _loglikelihood_tokens(
        self,
        requests: list[tuple[tuple[str, str] | None, list[int], list[int]]],
        disable_tqdm: bool = False,
        **kwargs: Any,
    ) -> list[tuple[float, bool]]:
        fitted = self._fit(
            [context for _, context, _ in requests],
            [len(continuation) for _, _, continuation in requests],
        )
        # Nothing to score is certain, as for an empty text; the model is not asked.
        results = [
            (0.0, True) if kept is not None else (-float("inf"), False) for kept in fitted.contexts
        ]
        asked = [
            index
            for index, (context, (_, _, continuation)) in enumerate(
                zip(fitted.contexts, requests, strict=True)
            )
            if context is not None and continuation
        ]
        scores = self._score([(fitted.contexts[i] or [], requests[i][2]) for i in asked])
        for index, result in self._progress(scores, asked, "loglikelihood", disable_tqdm):
            if math.isnan(result[0]):
                raise self._not_a_number(len(fitted.contexts[index] or []))
            results[index] = result
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
        windows = [
            [
                (None, *make_disjoint_window(window))
                for window in get_rolling_token_windows(
                    token_list=token_ids,
                    prefix_token=self.prefix_token_id,
                    max_seq_len=self.max_length - 1,
                    context_len=1,
                )
            ]
            for token_ids in self._codec.encode(request.args[0] for request in requests)
        ]
        scores = iter(
            self._loglikelihood_tokens(list(itertools.chain(*windows)), disable_tqdm=disable_tqdm)
        )
        return [sum((next(scores)[0] for _ in own), start=0.0) for own in windows]

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
        settings = [self._generation_settings(request.args[1]) for request in requests]
        contexts = [
            token_ids or [self.prefix_token_id]
            for token_ids in self._codec.encode(request.args[0] for request in requests)
        ]
        fitted = self._fit(contexts, [max_gen_toks for max_gen_toks, _, _ in settings])
        texts = ["" for _ in requests]
        asked = [index for index, context in enumerate(fitted.contexts) if context is not None]
        generations = [Generation(fitted.contexts[i] or [], *settings[i]) for i in asked]
        generated = self._generate(generations)
        for index, text in self._progress(generated, asked, "generate_until", disable_tqdm):
            until = settings[index][1]
            texts[index] = postprocess_generated_text(text, until, self._think_end_token)
            self._num_empty += not texts[index].strip()
        return texts

    def get_model_info(self) -> dict[str, object]:
        """Describes the model and the run for lm-eval's results file."""
        return {
            "attention": self._checkpoint.config.attention,
            "model_dtype": self._model_dtype,
            "checkpoint_sha256": self._fingerprint,
            "patheval_version": patheval.__version__,
            "max_length": self._max_length,
            "max_position_embeddings": self._checkpoint.config.max_position_embeddings,
            "overlength": self._overlength,
            "add_bos_token": self._codec.add_bos_token,
            "prefix_token_id": self.prefix_token_id,
            "num_prompts_truncated": self._num_truncated,
            "num_prompts_skipped": self._num_skipped,
            "num_generations_empty": self._num_empty,
        }

    def _not_a_number(self, num_tokens: int) -> RequestError:
        return RequestError(
            f"the model gives NaN for a prompt of {num_tokens} tokens in {self._model_dtype}; "
            "pass dtype=float32"
        )

    @staticmethod
    def _progress(
        results: Iterable[tuple[int, _Result]], asked: list[int], phase: str, disable: bool
    ) -> Iterator[tuple[int, _Result]]:
        """Yield results under the numbers that the requests had before some were left out."""
        for index, result in tqdm(results, total=len(asked), desc=phase, disable=disable):
            yield asked[index], result

    def _fit(self, contexts: list[list[int]], budgets: list[int]) -> FittedPrompts:
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
        max_gen_toks = integer("max_gen_toks", settings.pop("max_gen_toks"), minimum=1)
        is_greedy = not settings.pop("do_sample") or settings.get("temperature") == 0
        if is_greedy:
            settings = {
                key: value for key, value in settings.items() if key not in _IDLE_WHEN_GREEDY
            }
        return max_gen_toks, until, settings


# Settings that say nothing when decoding is greedy.
_IDLE_WHEN_GREEDY = ("temperature", "top_p", "top_k", "min_p", "seed")
# Names that `--model_args` may hold for every adapter.
ARGUMENTS = frozenset(inspect.signature(CheckpointLM.__init__).parameters) - {"self", "pretrained"}

"""Replay of LongBench's recorded cases."""

from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from patheval.errors import PrerequisiteError
from patheval.golden.case import Case, Check
from patheval.tokenization import TokenCodec

from ..tokenization import PromptTokenizer
from .generate import BUCKETS, bucket_of
from .scoring import score
from .sets import SETS


def replay(case: Case) -> Iterator[Check]:
    """Compares scores, prompts, and prompts whose middle is cut out."""
    kind, name = case["kind"], case["task"]
    if kind == "single":
        got = score(name, case["prediction"], case["references"], case["all_classes"])
        yield Check("score", case["expected_score"], got)
    elif kind == "dataset_mean":
        yield Check("score", case["expected_score"], _percent(_scores(case)))
    elif kind == "buckets":
        scores = list(zip(case["lengths"], _scores(case), strict=True))
        in_bucket = {b: [s for n, s in scores if bucket_of(n) == b] for b in BUCKETS}
        yield Check("score", case["expected_score"], {b: _percent(in_bucket[b]) for b in BUCKETS})
    elif kind == "rendered":
        yield Check("prompt", case["prompt"], SETS[name].render_prompt(case["record"]))
        yield Check("budget", case["max_new_tokens"], SETS[name].max_gen_toks)
        yield Check("chat", case["chat_wrapper_skipped"], not SETS[name].chat)
    elif kind == "middle_truncation":
        tokenizer = _mistral_tokenizer()
        prompt = SETS[name].render_prompt(case["record"])
        cut = tokenizer.cut_middle(prompt, case["max_length"])
        yield Check("tokens before", case["tokens_before_with_bos"], tokenizer.num_tokens(prompt))
        yield Check("prompt", case["prompt"], cut)
        yield Check(
            "tokens after", case["tokens_after_reencode_with_bos"], tokenizer.num_tokens(cut)
        )


def _scores(case: Case) -> list[float]:
    pairs = zip(case["prediction"], case["references"], strict=True)
    return [
        score(case["task"], answer, references, case["all_classes"]) for answer, references in pairs
    ]


def _percent(scores: list[float]) -> float | None:
    return round(100 * sum(scores) / len(scores), 2) if scores else None


class _SentencePiece:
    """The tokenizer that the cases were recorded with, with the methods that a codec calls.

    Args:
        model: A SentencePiece model.
    """

    bos_token, bos_token_id, eos_token_id = "<s>", 1, 2

    def __init__(self, model: Path) -> None:
        from sentencepiece import SentencePieceProcessor

        self._processor = SentencePieceProcessor(str(model))

    def __call__(
        self, texts: list[str], *, add_special_tokens: bool, **kwargs: object
    ) -> dict[str, list[list[int]]]:
        bos = [self.bos_token_id] if add_special_tokens else []
        return {"input_ids": [bos + self._processor.encode(text) for text in texts]}

    def decode(self, token_ids: list[int], **kwargs: object) -> str:
        return str(self._processor.decode([i for i in token_ids if i > self.eos_token_id]))


@cache
def _mistral_tokenizer() -> PromptTokenizer:
    """Read the tokenizer of Mistral 7B v0.1 from the package mistral-common."""
    spec = find_spec("mistral_common")
    if spec is None or spec.origin is None or find_spec("sentencepiece") is None:
        raise PrerequisiteError(
            "cutting prompts is recorded with Mistral's tokenizer, for which a package is missing; "
            "run `pip install mistral-common sentencepiece`"
        )
    model = Path(spec.origin).parent / "data" / "tokenizer.model.v1"
    return PromptTokenizer(TokenCodec(cast(Any, _SentencePiece(model))))

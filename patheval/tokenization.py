"""Text to token ids and back, alike for every adapter and task."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerBase

from patheval import json_tokenizer
from patheval.checkpoint.config import STOCK_MODEL_TYPES
from patheval.checkpoint.folders import local, nearest
from patheval.errors import PrerequisiteError, RequestError, UnsupportedError
from patheval.zoo import resolve

# As many prompt tokens as vLLM's detokenizer starts from.
_NUM_TOKENS_BEFORE_TEXT = 5


_PROBE = "The sky is blue. "


def load_tokenizer(
    source: str | Path, revision: str | None = None, *, trust_remote_code: bool = False
) -> PreTrainedTokenizerBase:
    """Loads a tokenizer, without transformers' guess from a model type that it does not know.

    Args:
        source: Folder, `zoo:NAME` or Hugging Face id.
        revision: Branch, tag or commit of a Hugging Face id.
        trust_remote_code: Let transformers run code that comes with the tokenizer.

    Raises:
        CheckpointError: `zoo:NAME` names no shipped checkpoint.
        PrerequisiteError: There is no tokenizer that transformers can load, or it is empty.
    """
    source = local(resolve(str(source)))
    options: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
    config_path = Path(source) / "config.json"
    if config_path.is_file():
        model_type = json.loads(config_path.read_text(encoding="utf-8")).get("model_type")
        if model_type not in STOCK_MODEL_TYPES:
            options["config"] = PreTrainedConfig()
    json_tokenizer.register()
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, **options)
    except (OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        hint = "" if Path(source).exists() else nearest(Path(source))
        raise PrerequisiteError(
            f"no tokenizer could be loaded from {source}{hint} ({reason}); put tokenizer.json "
            "and tokenizer_config.json there, or pass tokenizer=FOLDER_OR_ID in --model_args"
        ) from error
    # transformers makes an empty tokenizer from a folder that holds no more than a config.json.
    if not tokenizer(_PROBE, add_special_tokens=False)["input_ids"]:
        raise PrerequisiteError(
            f"the tokenizer of {source} has no tokens for English text; put tokenizer.json and "
            "tokenizer_config.json there, or pass tokenizer=FOLDER_OR_ID in --model_args"
        )
    return tokenizer


class TokenCodec:
    """A tokenizer with one rule for BOS.

    A text that begins with the BOS token's own text, as chat templates write it, gets no special
    tokens. Any other text gets BOS if `add_bos_token` is true, none if it is false, and by default
    whatever special tokens the tokenizer itself adds.

    Args:
        tokenizer: The tokenizer.
        add_bos_token: The rule's switch; None for the tokenizer's own habit.
        prefix_token_id: What an empty context is replaced by; by default BOS, or EOS without BOS.

    Raises:
        UnsupportedError: `add_bos_token` is true but the tokenizer has no BOS token; or the
            tokenizer has neither BOS nor EOS and no `prefix_token_id` is given.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        add_bos_token: bool | None = None,
        prefix_token_id: int | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.add_bos_token = add_bos_token
        if add_bos_token and tokenizer.bos_token_id is None:
            raise UnsupportedError(
                "add_bos_token is True but the tokenizer has no BOS token; pass "
                "add_bos_token=False or a tokenizer that has one"
            )
        candidates = (prefix_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id)
        prefix = next((token_id for token_id in candidates if token_id is not None), None)
        if prefix is None:
            raise UnsupportedError(
                "the tokenizer has neither a BOS nor an EOS token to stand for an empty context; "
                "pass prefix_token_id=ID in --model_args"
            )
        self.prefix_token_id: int = prefix
        self._unknown_id = _unknown_id(tokenizer)

    def encode(
        self, texts: Iterable[str], *, add_special_tokens: bool | None = None
    ) -> list[list[int]]:
        """Encodes texts in one call of the tokenizer.

        Args:
            texts: Texts; an empty one has no tokens.
            add_special_tokens: False encodes the bare text; None or True follows the BOS rule.

        Raises:
            RequestError: More than half of a text's tokens stand for what the tokenizer lacks.
        """
        texts = list(texts)
        bos = self.tokenizer.bos_token
        wants_special = [
            add_special_tokens is not False
            and text != ""
            and not (bos is not None and text.startswith(bos))
            for text in texts
        ]
        encoded: list[list[int]] = [[] for _ in texts]
        for special in (False, True):
            indices = [i for i, wanted in enumerate(wants_special) if wanted is special]
            batch = self._encode_batch([texts[i] for i in indices], special)
            for i, token_ids in zip(indices, batch, strict=True):
                self._check_known(texts[i], token_ids)
                encoded[i] = token_ids
        return encoded

    def encode_pairs(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[list[int], list[int]]]:
        """Splits each tokenised context + continuation where the tokenised context ends.

        Spaces at a context's end belong to the continuation. A context without tokens
        becomes `prefix_token_id`. Each distinct context is tokenised once.

        Args:
            pairs: Contexts and continuations.

        Returns:
            Token ids of context (at least one) and continuation.
        """
        moved = []
        for context, continuation in pairs:
            stripped = context.rstrip()
            moved.append((stripped, context[len(stripped) :] + continuation))
        contexts = list(dict.fromkeys(context for context, _ in moved if context))
        # In one call, whose texts the tokenizer shares out among the processor's cores.
        encoded = self.encode([*contexts, *(context + rest for context, rest in moved if context)])
        context_ids = dict(zip(contexts, encoded, strict=False))
        wholes = iter(encoded[len(contexts) :])
        bare = iter(
            self.encode(
                (context + rest for context, rest in moved if not context_ids.get(context)),
                add_special_tokens=False,
            )
        )
        result = []
        for context, _ in moved:
            whole = next(wholes) if context else []
            prompt = context_ids.get(context)
            if prompt:
                result.append((prompt, whole[len(prompt) :]))
            else:
                rest_ids = next(bare)
                has_prefix = rest_ids[:1] == [self.prefix_token_id]
                result.append(([self.prefix_token_id], rest_ids[1:] if has_prefix else rest_ids))
        return result

    def decode_after(self, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> str:
        """Decodes generated tokens as they read behind their prompt, special tokens included.

        Args:
            prompt_ids: The prompt; its last tokens decide on leading spaces.
            token_ids: The generated tokens.
        """
        before = list(prompt_ids[-_NUM_TOKENS_BEFORE_TEXT:])
        return self._decode([*before, *token_ids]).removeprefix(self._decode(before))

    def apply_chat_template(
        self,
        chat_history: list[dict[str, str]],
        *,
        add_generation_prompt: bool,
        **template_args: Any,
    ) -> str:
        """Renders a conversation with the tokenizer's template.

        Args:
            chat_history: Messages with the keys `role` and `content`.
            add_generation_prompt: Open the assistant's next message; otherwise leave the last
                message open to be continued.
            **template_args: Further variables of the template.

        Raises:
            PrerequisiteError: The tokenizer has no chat template.
        """
        if self.tokenizer.chat_template is None:
            raise PrerequisiteError(
                f"the tokenizer {self.tokenizer.name_or_path} has no chat template; run without "
                "--apply_chat_template or pass tokenizer=FOLDER_OR_ID of one that has"
            )
        return str(
            self.tokenizer.apply_chat_template(
                chat_history,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=not add_generation_prompt,
                **template_args,
            )
        )

    def _check_known(self, text: str, token_ids: list[int]) -> None:
        count = token_ids.count(self._unknown_id) if self._unknown_id is not None else 0
        if 2 * count > len(token_ids):
            raise RequestError(
                f"the tokenizer {self.tokenizer.name_or_path} has no tokens for {count} of the "
                f"{len(token_ids)} in {text[:40]!r}; choose tasks that the model was made for, or "
                "pass tokenizer=FOLDER_OR_ID of one that can write them"
            )

    def _encode_batch(self, texts: list[str], special: bool) -> list[list[int]]:
        if not texts:
            return []
        batch: list[list[int]] = self.tokenizer(
            texts,
            add_special_tokens=special and self.add_bos_token is None,
            return_attention_mask=False,
        )["input_ids"]
        if special and self.add_bos_token:
            return [[self.tokenizer.bos_token_id, *token_ids] for token_ids in batch]
        return batch

    def _decode(self, token_ids: list[int]) -> str:
        options: dict[str, Any] = {
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
            "clean_up_tokenization_spaces": False,
        }
        return str(self.tokenizer.decode(token_ids, **options))


def _unknown_id(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Id of the token that stands for all that a tokenizer lacks, also where it does not say so."""
    unknown = getattr(tokenizer, "unk_token_id", None)
    if unknown is not None:
        return int(unknown)
    model = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
    token = getattr(model, "unk_token", None)
    return None if token is None else int(tokenizer.convert_tokens_to_ids(token))

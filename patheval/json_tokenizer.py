r"""The tokenizer of zhixuan-lin/forgetting-transformer's checkpoints: GPT-2's, over JSON.

A text is written as a JSON string without its quotes, all ASCII, before it is split into tokens:
a newline becomes `\n`, a quote `\"`, and é `\u00e9`. transformers does not know the class, and
would split the text itself into tokens that the models never saw.
"""

import json
import re
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedTokenizer

_ESCAPE = re.compile(r'\\(?:u([0-9a-fA-F]{4})|(["\\/bfnrt]))')
_LETTERS = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
# An escape that is not whole yet.
_HALF_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?\Z")
_UNKNOWN = "\ufffd"


def escape(text: str) -> str:
    """Writes a text as a JSON string without its quotes."""
    return json.dumps(text)[1:-1]


def unescape(text: str) -> str:
    """Undoes `escape`; what is no escape stays, and U+FFFD stands for a half one at the end."""
    end, parts = 0, []
    for match in _ESCAPE.finditer(text):
        parts += [text[end : match.start()], _meaning(match)]
        end = match.end()
    rest = text[end:]
    whole = _HALF_ESCAPE.sub("", rest)
    joined = "".join([*parts, whole])
    is_half = whole != rest or _is_high(joined[-1:])
    if is_half and _is_high(joined[-1:]):
        joined = joined[:-1]
    # Two surrogates are one character; one alone is none.
    joined = joined.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return joined + _UNKNOWN if is_half else joined


def _is_high(character: str) -> bool:
    """Whether it is a surrogate that waits for its other half."""
    return "\ud800" <= character < "\udc00"


def _meaning(match: re.Match[str]) -> str:
    code, letter = match.groups()
    return chr(int(code, 16)) if code else _LETTERS.get(letter, letter)


class JSONGPT2Tokenizer(PreTrainedTokenizer):
    """GPT-2's tokenizer over JSON strings.

    Args:
        vocab_file: `vocab.json`.
        merges_file: `merges.txt`.
        add_bos_token: Whether texts begin with BOS.
        **kwargs: Further settings of tokenizer_config.json.
    """

    vocab_files_names = {"vocab_file": "vocab.json", "merges_file": "merges.txt"}  # noqa: RUF012
    model_input_names = ["input_ids", "attention_mask"]  # noqa: RUF012

    def __init__(
        self,
        vocab_file: str,
        merges_file: str,
        add_bos_token: bool = True,
        **kwargs: Any,
    ) -> None:
        self._pieces = Tokenizer(models.BPE.from_file(vocab_file, merges_file))
        self._pieces.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self._pieces.decoder = decoders.ByteLevel()
        self._files = Path(vocab_file), Path(merges_file)
        special = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")
        pattern = "bos" if add_bos_token else "none"
        super().__init__(
            add_bos_token=add_bos_token,
            **{**special, **kwargs, "special_tokens_pattern": pattern},
        )

    @property
    def vocab_size(self) -> int:
        """Tokens of `vocab.json`."""
        return int(self._pieces.get_vocab_size())

    def get_vocab(self) -> dict[str, int]:
        """The id of every token, added tokens included."""
        return {**self._pieces.get_vocab(), **self.added_tokens_encoder}

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        """The text of tokens; U+FFFD where the last of them begin what later ones complete."""
        return unescape(self._pieces.decoder.decode(tokens))

    def save_vocabulary(
        self, save_directory: str, filename_prefix: str | None = None
    ) -> tuple[str, ...]:
        """Copies the two files."""
        written = []
        for path, name in zip(self._files, self.vocab_files_names.values(), strict=True):
            target = Path(save_directory) / "-".join(filter(None, (filename_prefix, name)))
            target.write_bytes(path.read_bytes())
            written.append(str(target))
        return tuple(written)

    def _tokenize(self, text: str, **_: Any) -> list[str]:
        return list(self._pieces.encode(escape(text)).tokens)

    def _convert_token_to_id(self, token: str) -> int | None:
        return self._pieces.token_to_id(token)

    def _convert_id_to_token(self, index: int) -> str | None:
        return self._pieces.id_to_token(index)


class _JSONGPT2Config(PreTrainedConfig):
    """Of no model: transformers finds a tokenizer's class through that of a config."""

    model_type = "json_gpt2"


def register() -> None:
    """Makes `AutoTokenizer` know the class by its name; repeated calls change nothing."""
    AutoTokenizer.register(_JSONGPT2Config, slow_tokenizer_class=JSONGPT2Tokenizer, exist_ok=True)

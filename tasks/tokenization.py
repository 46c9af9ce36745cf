"""Tokenizers as the data generators use them: loading, exact token counts, identity."""

import hashlib
import itertools
import json
import re
import sys
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from typing import Any

from patheval import tokenization
from patheval.errors import PrerequisiteError, UnsupportedError
from patheval.tokenization import TokenCodec

SPACE = "[ \u0120\u2581]"  # As vocabularies of bytes and of SentencePiece write it.
NEWLINE = "[\n\u010a]"

_BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")
_PROBE = "Ann Lee: 6012345678\n\n  The sky is blue. naïve-café?"


class PromptTokenizer:
    """Counts the tokens of prompts exactly as the model under evaluation reads them.

    Args:
        codec: The model's own tokenizer and BOS rule.
    """

    def __init__(self, codec: TokenCodec) -> None:
        self._codec = codec

    def num_tokens(self, text: str) -> int:
        """Returns the tokens of `text`, with every special token that the model gets."""
        return len(self._encode(text))

    def num_tokens_each(self, texts: Sequence[str]) -> list[int]:
        """Returns the tokens of each of many short texts, without special tokens."""
        backend = getattr(self._codec.tokenizer, "backend_tokenizer", None)
        if backend is None:
            return [len(ids) for ids in self._codec.encode(texts, add_special_tokens=False)]
        return list(map(len, backend.encode_batch_fast(texts, add_special_tokens=False)))

    def joins(self, left: str, right: str) -> bool:
        """Whether a token spans two neighbours; if none does, texts can be counted apart there.

        Args:
            left: Regular expression of the character on the left: ASCII, `SPACE` or `NEWLINE`.
            right: Regular expression of the character on the right, likewise.
        """
        pair = re.compile(left + right)
        return any(
            pair.search(token) and not _BYTE_TOKEN.fullmatch(token)
            for token in self._codec.tokenizer.get_vocab()
        )

    def cut_middle(self, text: str, max_tokens: int) -> str:
        """Cuts the middle out of a text of more than `max_tokens` tokens, special ones included.

        The first and the last half of `max_tokens` are decoded on their own and joined, as
        LongBench does it. Encoding the result again can give a token more or less.

        Args:
            text: The text.
            max_tokens: At least 2.
        """
        ids = self._encode(text)
        if len(ids) <= max_tokens:
            return text
        half = max_tokens // 2
        head, tail = (
            self._codec.tokenizer.decode(part, skip_special_tokens=True)
            for part in (ids[:half], ids[-half:])
        )
        return f"{head}{tail}"

    def clean_cuts(self, text: str, edges: Sequence[int]) -> list[tuple[int, int]]:
        """Finds places where a text can be cut so that its start keeps the tokens that it had.

        Each is the last such place before white space that leaves at most `edge` tokens in front.

        Args:
            text: The text.
            edges: Token counts, special tokens included, none above that of the text.

        Returns:
            For each edge the number of characters and of tokens in front of the cut.

        Raises:
            UnsupportedError: The tokenizer does not say where its tokens stand, or there is no such
                place within the last eighth before an edge.
        """
        if not self._codec.tokenizer.is_fast:
            raise UnsupportedError(
                f"the tokenizer {type(self._codec.tokenizer).__name__} does not say where its "
                "tokens stand; pass one with a tokenizer.json"
            )
        ids = self._encode(text)
        offsets = self._codec.tokenizer(
            text, add_special_tokens=False, return_offsets_mapping=True
        )["offset_mapping"]
        starts = [0] * (len(ids) - len(offsets)) + [start for start, _ in offsets]
        cuts = []
        for edge in edges:
            for place in range(min(edge, len(ids) - 1), edge - edge // 8 - 1, -1):
                end = len(text[: starts[place]].rstrip())
                if end == len(text) or not text[end].isspace():
                    continue
                front = self._encode(text[:end])
                if front and len(front) <= edge and front == ids[: len(front)]:
                    cuts.append((end, len(front)))
                    break
            else:
                raise UnsupportedError(
                    f"the tokenizer has no token that ends at a word's end in the tokens "
                    f"{edge - edge // 8} to {edge} of a text; pass one that splits text at spaces"
                )
        return cuts

    def reads_words(self, words: Sequence[str]) -> bool:
        """Whether each word between spaces has tokens of its own, unlike those of the others.

        True if the tokens of a text of such words are those of its words one after the other,
        whichever two words meet. False for words outside a small vocabulary, which read alike.
        """
        anchor = self._encode(words[0])
        extended = self._codec.encode(f"{words[0]} {word}" for word in words)
        ids = [tuple(text[len(anchor) :]) for text in extended]
        expected = [*anchor]
        for left, right in itertools.product(ids, repeat=2):
            expected += left + right
        text = " ".join([words[0], *itertools.chain(*itertools.product(words, repeat=2))])
        return all(ids) and len(set(ids)) == len(ids) and self._encode(text) == expected

    @cached_property
    def fingerprint(self) -> str:
        """Identity of the tokenizer: 16 hexadecimal digits over its vocabulary and behaviour.

        Hashes the ids of all tokens and the encoding of a fixed text, rather than a file or path:
        a moved copy keeps its fingerprint, and so does a copy saved by another library version.
        """
        content = [sorted(self._codec.tokenizer.get_vocab().items()), self._encode(_PROBE)]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]

    def _encode(self, text: str) -> list[int]:
        return self._codec.encode([text])[0]


class RepeatedLine:
    """A line that prompts repeat many times, counted without encoding every copy.

    Tokenization is local: deep inside a run of equal lines each copy costs the same. This is
    checked on runs up to the longest one that can occur; with a tokenizer for which it does not
    hold, every copy is encoded after all.

    Args:
        tokenizer: The model's tokenizer.
        line: The repeated text, with the newline that ends it.
        max_tokens: Tokens of the longest run that a prompt may hold.

    Attributes:
        tokens: Tokens that one more copy adds deep inside a run.
    """

    _WINDOW = 3

    def __init__(self, tokenizer: PromptTokenizer, line: str, max_tokens: int) -> None:
        shortest = tokenizer.num_tokens(line * self._WINDOW)
        self.tokens = tokenizer.num_tokens(line * (self._WINDOW + 1)) - shortest
        longest_run = max_tokens // max(self.tokens, 1)
        is_periodic = all(
            tokenizer.num_tokens(line * (self._WINDOW + more)) == shortest + more * self.tokens
            for more in (2, 3, longest_run)
        )
        self._window = self._WINDOW if is_periodic else sys.maxsize

    def split(self, copies: int) -> tuple[int, int]:
        """Splits a run into the copies to encode and those to count as `tokens` each."""
        encoded = min(copies, self._window)
        return encoded, copies - encoded


class PieceCounter:
    """Counts the tokens of a text's pieces one by one, each as it reads behind a fixed text.

    The counts of pieces add up to that of the text where no token spans two pieces, which
    `adds_up` tests on a text.

    Args:
        tokenizer: The model's tokenizer.
        anchor: What comes before a piece, up to where the tokenizer looks.
    """

    def __init__(self, tokenizer: PromptTokenizer, anchor: str) -> None:
        self._tokenizer = tokenizer
        self._anchor = anchor
        [self._anchor_tokens] = tokenizer.num_tokens_each([anchor])
        self._known: dict[str, int] = {}

    def tokens(self, piece: str) -> int:
        """Returns the tokens that `piece` adds, and remembers them."""
        return self.tokens_each([piece])[0]

    def tokens_each(self, pieces: Sequence[str]) -> list[int]:
        """Returns the tokens that each of `pieces` adds, and remembers them."""
        new = list(set(pieces).difference(self._known))
        if new:
            self._known.update(zip(new, self.tokens_each_once(new), strict=True))
        return [self._known[piece] for piece in pieces]

    def tokens_each_once(self, pieces: Sequence[str]) -> list[int]:
        """Returns the tokens that each of `pieces` adds, for pieces that do not occur again."""
        counts = self._tokenizer.num_tokens_each([self._anchor + piece for piece in pieces])
        return [count - self._anchor_tokens for count in counts]

    def adds_up(self, pieces: Sequence[str]) -> bool:
        """Whether the counts of `pieces` add up to that of the text which they make."""
        [whole] = self._tokenizer.num_tokens_each([self._anchor + "".join(pieces)])
        return whole == self._anchor_tokens + sum(self.tokens_each_once(pieces))


def load_tokenizer(metadata: Mapping[str, Any]) -> PromptTokenizer:
    """Loads the tokenizer of the model under evaluation.

    Args:
        metadata: Metadata of an lm-eval task, which holds all `--model_args`. `tokenizer` names
            the tokenizer, else `pretrained`; `tokenizer_revision`, `revision`,
            `trust_remote_code` and `add_bos_token` mean what they mean to the model.

    Raises:
        PrerequisiteError: No tokenizer is named, or the one named cannot be loaded or is empty.
    """
    name = metadata.get("tokenizer") or metadata.get("pretrained")
    if not isinstance(name, str):
        raise PrerequisiteError(
            f"the task sizes its prompts in tokens but the tokenizer is {name!r}; "
            "pass --model_args pretrained=MODEL or tokenizer=TOKENIZER"
        )
    revision = metadata.get("tokenizer_revision")
    if revision is None and not metadata.get("tokenizer"):
        revision = metadata.get("revision")
    return _load(
        name,
        None if revision is None else str(revision),
        bool(metadata.get("trust_remote_code", False)),
        metadata.get("add_bos_token"),
    )


@cache
def _load(
    name: str, revision: str | None, trust_remote_code: bool, add_bos_token: bool | None
) -> PromptTokenizer:
    tokenizer = tokenization.load_tokenizer(name, revision, trust_remote_code=trust_remote_code)
    return PromptTokenizer(TokenCodec(tokenizer, add_bos_token=add_bos_token))

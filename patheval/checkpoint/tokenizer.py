"""Agreement of a tokenizer with a checkpoint."""

from collections.abc import Mapping
from typing import Protocol

from patheval.errors import CheckpointError


class Vocabulary(Protocol):
    """The part of a tokenizer that the check needs; transformers' tokenizers have it."""

    def get_vocab(self) -> Mapping[str, int]:
        """Returns the id of every token, added tokens included."""


def check_tokenizer(tokenizer: Vocabulary, vocab_size: int, source: str) -> None:
    """Checks that the model has an embedding for every token.

    Args:
        tokenizer: The tokenizer to be used with the checkpoint.
        vocab_size: Rows of the checkpoint's embedding matrix.
        source: Where the tokenizer came from, for messages.

    Raises:
        CheckpointError: A token's id is `vocab_size` or larger.
    """
    token, largest_id = max(
        tokenizer.get_vocab().items(), key=lambda item: item[1], default=("", -1)
    )
    if largest_id >= vocab_size:
        raise CheckpointError(
            f"the tokenizer of {source} has the token {token!r} with id {largest_id} but "
            f"vocab_size in config.json is {vocab_size}; pass the tokenizer that the checkpoint "
            "was trained with"
        )

"""Answers of models, kept so that an interrupted run goes on where it stopped."""

from patheval.store.answers import AnswerStore, check_folder
from patheval.store.identity import (
    code_digest,
    default_folder,
    numeric_variables,
    request_key,
    tokenizer_digest,
)

__all__ = [
    "AnswerStore",
    "check_folder",
    "code_digest",
    "default_folder",
    "numeric_variables",
    "request_key",
    "tokenizer_digest",
]

"""The model of a command line, checked without a checkpoint or an engine."""

from typing import Any

import pytest

from patheval.errors import PathEvalError, UnsupportedError
from patheval.model_arguments import check_model


@pytest.mark.parametrize("name", ["path", "path-ref"])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"dtyp": "float32"},
            "dtyp='float32' in --model_args is not an argument; did you mean",
        ),
        ({"dtype": "int8"}, "dtype is 'int8'; pass one of auto"),
        ({"max_length": 1}, "max_length is 1; pass an integer of at least 2"),
        ({"overlength": "drop"}, "overlength is 'drop'; pass one of error, skip, truncate"),
        ({"add_bos_token": "maybe"}, "add_bos_token is 'maybe'; pass True or False"),
        ({"pretrained": "./none-such"}, r"there is no folder \./none-such"),
        ({"tokenizer": "none-such/"}, "there is no folder none-such/"),
    ],
)
def test_wrong_arguments_are_refused(name: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(PathEvalError, match=message):
        check_model(name, {"pretrained": "zoo:path", **arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"bloc_size": 256}, "did you mean block_size"),
        ({"load_format": "dummy"}, "load_format='dummy' would score something else"),
        ({"data_parallel_size": 0}, "data_parallel_size is 0"),
    ],
)
def test_vllms_arguments_are_known(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        check_model("path", arguments)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("path", {"pretrained": "owner/name", "dtype": "auto", "block_size": 256, "seed": "7"}),
        ("path-ref", {"dtype": "float64", "max_length": "4096", "add_bos_token": None}),
        ("dummy", {"anything": 1}),
    ],
)
def test_right_arguments_pass(name: str, arguments: dict[str, Any]) -> None:
    check_model(name, arguments)


def test_a_name_that_lm_eval_does_not_know_comes_with_the_nearest() -> None:
    with pytest.raises(UnsupportedError, match=r"--backend is 'paht', .*did you mean path or"):
        check_model("paht", {}, "--backend")

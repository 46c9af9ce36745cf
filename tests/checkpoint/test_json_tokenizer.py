"""The JSON-escaped GPT-2 tokenizer, in the folder layout of the public checkpoints."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from json_gpt2 import EOT, save_tokenizer
from project_fox import save_project_fox
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from patheval.json_tokenizer import JSONGPT2Tokenizer, escape, unescape
from patheval.model_adapters.path_ref import PathRefLM
from patheval.tokenization import TokenCodec, load_tokenizer

TEXT = 'Zoë said:\n\t"No \\n here" — 東京 😀, 1/2.'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tokenizer(tmp_path_factory.mktemp("json-gpt2"))


@pytest.mark.parametrize("trust_remote_code", [False, True])
def test_text_is_escaped_before_it_is_split(folder: Path, trust_remote_code: bool) -> None:
    tokenizer = load_tokenizer(folder, trust_remote_code=trust_remote_code)
    assert isinstance(tokenizer, JSONGPT2Tokenizer)
    plain = Tokenizer(models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    bos = plain.token_to_id(EOT)
    codec = TokenCodec(tokenizer)
    for text in (TEXT, "plain words", "\n", "a\\"):
        (ids,) = codec.encode([text])
        assert ids == [bos, *plain.encode(json.dumps(text)[1:-1]).ids]
        assert codec.decode_after([bos], ids[1:]) == text
    assert codec.encode([f"{EOT}x"]) == [[bos, *plain.encode("x").ids]]


def test_text_of_part_of_the_tokens_waits_for_the_rest(folder: Path) -> None:
    """vLLM shows no text that ends in U+FFFD, and compares stop strings with what it shows."""
    tokenizer = load_tokenizer(folder)
    tokens = tokenizer.tokenize(TEXT)
    for end in range(len(tokens) + 1):
        shown = tokenizer.convert_tokens_to_string(tokens[:end])
        assert TEXT.startswith(shown.removesuffix("\ufffd"))


@given(st.text())
def test_unescaping_undoes_escaping(text: str) -> None:
    assert unescape(escape(text)) == text
    assert escape(text).isascii()


@given(st.text(alphabet='\\u0dDeE89n"x/'))
def test_any_text_of_a_model_can_be_unescaped(text: str) -> None:
    unescape(text).encode("utf-8", "strict")


def test_checkpoint_with_its_tokenizer_answers(folder: Path, tmp_path: Path) -> None:
    checkpoint = save_project_fox(tmp_path / "fox-pro", "fox-pro")
    save_tokenizer(checkpoint)
    lm = PathRefLM.create_from_arg_obj({"pretrained": str(checkpoint)}, {"device": "cpu"})
    assert lm.tok_encode("é") == load_tokenizer(folder)("é")["input_ids"]

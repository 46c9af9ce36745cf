from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from patheval.zoo import CHECKPOINTS
from patheval.zoo import tokenizer as zoo_tokenizer

_SHIPPED = Tokenizer.from_file(str(CHECKPOINTS / "path" / "tokenizer.json"))


@given(st.text())
def test_any_text_comes_back(text: str) -> None:
    ids = _SHIPPED.encode(text, add_special_tokens=False).ids
    assert _SHIPPED.decode(ids, skip_special_tokens=False) == text


def test_digits_are_single_tokens(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode(" 4071", add_special_tokens=False).tokens[-4:] == list("4071")


def test_saved_files_load_and_add_bos(tokenizer: Tokenizer, tmp_path: Path) -> None:
    zoo_tokenizer.save(tokenizer, tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.bos_token_id == zoo_tokenizer.BOS_ID
    assert loaded.eos_token_id == zoo_tokenizer.EOS_ID
    ids = loaded("a line\n and 12 more")["input_ids"]
    assert ids == tokenizer.encode("a line\n and 12 more").ids
    assert ids[0] == zoo_tokenizer.BOS_ID
    assert loaded.decode(ids, skip_special_tokens=True) == "a line\n and 12 more"

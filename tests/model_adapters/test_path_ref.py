"""lm-eval's interface over the reference model, with a byte-level tokenizer."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from byte_tokenizer import BOS, CHAT_TEMPLATE, EOS, byte_tokenizer
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from patheval.checkpoint.reader import open_checkpoint
from patheval.errors import CheckpointError, PrerequisiteError, RequestError, UnsupportedError
from patheval.model_adapters.path_ref import PathRefLM
from patheval.reference_model import ReferenceModel
from patheval.tokenization import TokenCodec, load_tokenizer

CHECKPOINTS = Path(__file__).parents[1] / "checkpoints"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of path-fox-d64-gqa with a tokenizer."""
    folder = tmp_path_factory.mktemp("checkpoints") / "path-fox"
    shutil.copytree(CHECKPOINTS / "path-fox-d64-gqa", folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def lm(folder: Path) -> PathRefLM:
    return build(folder)


def build(folder: Path, **arguments: Any) -> PathRefLM:
    lm: PathRefLM = PathRefLM.create_from_arg_obj(
        {"pretrained": str(folder), **arguments},
        {"batch_size": 1, "max_batch_size": None, "device": "cpu"},
    )
    return lm


def requests(kind: str, *args: tuple[Any, ...]) -> list[Instance]:
    return [
        Instance(request_type=kind, doc={}, arguments=arguments, idx=i)
        for i, arguments in enumerate(args)
    ]


def logprobs_of(folder: Path, token_ids: list[int]) -> torch.Tensor:
    """Log-probabilities after each token, from the model itself."""
    model = ReferenceModel(open_checkpoint(folder))
    hidden, _ = model.prefill(token_ids)
    return torch.log_softmax(model.logits(hidden), dim=-1)


def test_loglikelihood_sums_the_continuation(lm: PathRefLM, folder: Path) -> None:
    context, continuation = [BOS, *lm.tok_encode("The cat")[1:]], lm.tok_encode(" sat")[1:]
    logprobs = logprobs_of(folder, context + continuation)
    rows = range(len(context) - 1, len(context) + len(continuation) - 1)
    expected = sum(
        float(logprobs[row, token]) for row, token in zip(rows, continuation, strict=True)
    )
    [(score, is_greedy)] = lm.loglikelihood(requests("loglikelihood", ("The cat", " sat")))
    assert score == pytest.approx(expected, abs=1e-4)
    assert not is_greedy


def test_greedy_continuation_is_recognised(lm: PathRefLM, folder: Path) -> None:
    context = lm.tok_encode("Once upon")
    greedy = [int(logprobs_of(folder, context)[-1].argmax())]
    greedy.append(int(logprobs_of(folder, context + greedy)[-1].argmax()))
    other = [greedy[0], greedy[1] ^ 1]
    scores = lm._loglikelihood_tokens([(None, context, greedy), (None, context, other)])
    assert [is_greedy for _, is_greedy in scores] == [True, False]
    assert scores[0][0] > scores[1][0]


def test_pairs_are_split_as_lm_eval_splits_them(lm: PathRefLM) -> None:
    pairs = [("The cat", " sat"), ("The cat ", "ate"), ("The cat", " a b"), ("x\n", "y"), ("q", "")]
    expected = [TemplateLM._encode_pair(lm, *pair) for pair in pairs]
    assert TokenCodec(lm.tokenizer).encode_pairs(pairs) == expected


@pytest.mark.parametrize("context", ["", "  "])
def test_empty_context_is_replaced_by_the_prefix(context: str) -> None:
    codec = TokenCodec(byte_tokenizer(adds_bos=False))
    [(prompt, continuation)] = codec.encode_pairs([(context, "ab")])
    assert prompt == [BOS]
    assert continuation == codec.encode([context + "ab"])[0]
    assert codec.encode_pairs([("", "<s>ab")]) == codec.encode_pairs([("", "ab")])


@pytest.mark.parametrize(
    ("adds_bos", "add_bos_token", "num_bos"),
    [
        (True, None, 1),
        (False, None, 0),
        (True, True, 1),
        (False, True, 1),
        (True, False, 0),
        (False, False, 0),
    ],
)
def test_bos_rule(adds_bos: bool, add_bos_token: bool | None, num_bos: int) -> None:
    codec = TokenCodec(byte_tokenizer(adds_bos=adds_bos), add_bos_token=add_bos_token)
    plain, written, empty = codec.encode(["ab", "<s>ab", ""])
    assert plain[: plain.index(plain[-1])].count(BOS) == num_bos
    assert written.count(BOS) == 1
    assert empty == []
    assert codec.encode(["ab"], add_special_tokens=False)[0].count(BOS) == 0


def test_rolling_loglikelihood_covers_every_token_once(folder: Path) -> None:
    text = "A text of some length."
    whole = build(folder, max_length=100)
    token_ids = whole.tok_encode(text)
    logprobs = logprobs_of(folder, [BOS, *token_ids])
    expected = sum(float(logprobs[i, token]) for i, token in enumerate(token_ids))
    request = requests("loglikelihood_rolling", (text,), ("",))
    assert whole.loglikelihood_rolling(request) == pytest.approx([expected, 0.0], abs=1e-4)
    windowed = build(folder, max_length=8).loglikelihood_rolling(request)
    assert windowed[0] < 0
    assert windowed[0] != pytest.approx(expected, abs=1e-4)


def test_generation_is_greedy_and_stops(lm: PathRefLM, folder: Path) -> None:
    token_ids = lm.tok_encode("Once upon")
    num_prompt = len(token_ids)
    for _ in range(12):
        token_ids.append(int(logprobs_of(folder, token_ids)[-1].argmax()))
    full = TokenCodec(lm.tokenizer).decode_after(token_ids[:num_prompt], token_ids[num_prompt:])
    settings = {"until": [], "max_gen_toks": 12}
    [text] = lm.generate_until(requests("generate_until", ("Once upon", settings)))
    assert text == full.split("</s>")[0]
    stop = full[3:5]
    assert len(stop) == 2
    [cut] = lm.generate_until(
        requests("generate_until", ("Once upon", {**settings, "until": [stop, "never"]}))
    )
    assert cut == full.split(stop)[0]


def test_generation_stops_at_eos(folder: Path, tmp_path: Path) -> None:
    greedy = int(logprobs_of(folder, byte_tokenizer()("Once upon")["input_ids"])[-1].argmax())
    other = tmp_path / "eos"
    shutil.copytree(folder, other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"eos_token_id": greedy}))
    settings = {"until": ["\n\n"], "max_gen_toks": 5}
    assert build(other).generate_until(requests("generate_until", ("Once upon", settings))) == [""]


def test_text_is_decoded_behind_its_prompt() -> None:
    codec = TokenCodec(byte_tokenizer(adds_bos=False))
    prompt, answer = codec.encode(["It is a b"])[0], codec.encode([" a c"])[0]
    assert codec.decode_after(prompt, answer) == " a c"
    assert codec.decode_after(prompt, [EOS]) == "</s>"


@pytest.mark.parametrize(
    ("settings", "fragment"),
    [
        ({"do_sample": True, "temperature": 0.7}, "temperature is 0.7"),
        ({"repetition_penalty": 1.2}, "repetition_penalty is 1.2"),
        ({"num_beams": 4}, "num_beams is 4"),
    ],
)
def test_settings_beyond_greedy_decoding(
    settings: dict[str, object], fragment: str, lm: PathRefLM
) -> None:
    with pytest.raises(RequestError, match=fragment):
        lm.generate_until(requests("generate_until", ("x", {"until": ["\n"], **settings})))


def test_neutral_generation_settings_are_accepted(lm: PathRefLM) -> None:
    neutral = {"do_sample": False, "temperature": 0.0, "top_p": 1.0, "num_beams": 1}
    texts = [
        lm.generate_until(
            requests("generate_until", ("x", {"until": ["\n"], "max_gen_toks": 3} | s))
        )
        for s in ({}, neutral)
    ]
    assert texts[0] == texts[1]


def test_overlong_prompts(folder: Path) -> None:
    long, short = "x" * 30, "y"
    scoring = requests("loglikelihood", (long, "ab"), (short, "ab"))
    generating = requests(
        "generate_until", (long, {"max_gen_toks": 4}), (short, {"max_gen_toks": 4})
    )
    with pytest.raises(RequestError, match=r"1 of 2 prompts .*pass max_length=33"):
        build(folder, max_length=16).loglikelihood(scoring)
    with pytest.raises(RequestError, match=r"1 of 2 prompts .*pass max_length=35"):
        build(folder, max_length=16).generate_until(generating)

    skipping = build(folder, max_length=16, overlength="skip")
    scores = skipping.loglikelihood(scoring)
    assert scores[0] == (-math.inf, False)
    assert math.isfinite(scores[1][0])
    assert skipping.generate_until(generating)[0] == ""
    assert skipping.get_model_info()["num_prompts_skipped"] == 2

    cutting = build(folder, max_length=16.0, overlength="truncate")
    assert math.isfinite(cutting.loglikelihood(scoring)[0][0])
    cut = cutting.loglikelihood(requests("loglikelihood", ("<s>" + "x" * 30, "ab")))
    assert cut[0] == pytest.approx(cutting.loglikelihood(scoring)[0])
    assert cutting.get_model_info()["num_prompts_truncated"] == 3


def test_chat_template(lm: PathRefLM) -> None:
    history = [{"role": "user", "content": "Hi"}]
    prompt = lm.apply_chat_template(history)
    assert prompt == "<s>[user]Hi[assistant]"
    assert lm.tok_encode(prompt).count(BOS) == 1
    open_ended = [*history, {"role": "assistant", "content": "Well"}]
    assert lm.apply_chat_template(open_ended, add_generation_prompt=False).endswith("Well")
    assert lm.chat_template(True) == CHAT_TEMPLATE
    bare = byte_tokenizer()
    bare.chat_template = None
    with pytest.raises(PrerequisiteError, match="no chat template"):
        TokenCodec(bare).apply_chat_template(history, add_generation_prompt=True)


def test_model_info_identifies_the_run(lm: PathRefLM, folder: Path) -> None:
    info = lm.get_model_info()
    assert info["attention"] == "path-fox"
    assert info["checkpoint_sha256"] == open_checkpoint(folder).fingerprint()
    assert (info["model_dtype"], info["max_length"]) == ("float32", 8192)
    json.dumps(info)


def test_dtype_and_device_arguments(folder: Path) -> None:
    assert build(folder, dtype="auto").get_model_info()["model_dtype"] == "bfloat16"
    if not torch.cuda.is_available():
        assert str(PathRefLM(str(folder), device="cuda:0").device) == "cpu"


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        ({"max_length": 0}, "max_length is 0"),
        ({"max_length": "8k"}, "max_length is '8k'"),
        ({"max_gen_toks": -1.0}, "max_gen_toks is -1.0"),
        ({"overlength": "left"}, "overlength is 'left'"),
        ({"dtype": "int8"}, "dtype is 'int8'"),
        ({"add_bos_token": 2}, "add_bos_token is 2"),
        ({"prefix_token_id": 512}, "prefix_token_id is 512 but vocab_size is 512"),
    ],
)
def test_arguments_are_checked(arguments: dict[str, Any], fragment: str, folder: Path) -> None:
    with pytest.raises(UnsupportedError, match=fragment):
        build(folder, **arguments)


def test_unknown_device(folder: Path) -> None:
    with pytest.raises(UnsupportedError, match="device is 'gpu'"):
        PathRefLM(str(folder), device="gpu")


def test_tokenizer_is_checked_and_may_be_given(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(PrerequisiteError, match="no tokenizer could be loaded"):
        build(CHECKPOINTS / "path-d64")
    assert build(CHECKPOINTS / "path-d64", tokenizer=str(folder)).eot_token_id == EOS
    byte_tokenizer(num_extra=300).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="'<extra299>' with id 559 but vocab_size"):
        build(CHECKPOINTS / "path-d64", tokenizer=str(tmp_path))


def test_tokenizer_json_alone_is_enough(folder: Path, tmp_path: Path) -> None:
    shutil.copy(folder / "tokenizer.json", tmp_path)
    assert load_tokenizer(tmp_path)("ab")["input_ids"] == byte_tokenizer()("ab")["input_ids"]


def test_tokenizers_without_bos_or_eos() -> None:
    bare = byte_tokenizer(adds_bos=False)
    bare.bos_token = None
    assert TokenCodec(bare).prefix_token_id == EOS
    with pytest.raises(UnsupportedError, match="add_bos_token is True"):
        TokenCodec(bare, add_bos_token=True)
    bare.eos_token = None
    with pytest.raises(UnsupportedError, match="prefix_token_id=ID"):
        TokenCodec(bare)
    assert TokenCodec(bare, prefix_token_id=7).prefix_token_id == 7


@pytest.mark.parametrize("says_so", [True, False])
def test_a_text_that_the_tokenizer_cannot_write_is_refused(says_so: bool) -> None:
    words = Tokenizer(models.WordLevel({"<unk>": 0, "<s>": 1, "a": 2}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    known = {"unk_token": "<unk>"} if says_so else {}
    codec = TokenCodec(PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>", **known))
    assert codec.encode(["a a b", ""]) == [[2, 2, 0], []]
    with pytest.raises(RequestError, match="no tokens for 2 of the 3 in 'a b c'"):
        codec.encode(["a b c"])

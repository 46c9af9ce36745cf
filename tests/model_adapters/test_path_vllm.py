"""`--model path` in a real engine against `--model path-ref`, and what it refuses before that."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from byte_tokenizer import byte_tokenizer
from lm_eval.api.instance import Instance
from lm_eval.api.model import CachingLM
from lm_eval.tasks import TaskManager
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from patheval.checkpoint.config import StockConfig
from patheval.checkpoint.reader import Checkpoint
from patheval.errors import CheckpointError, PathEvalError, RequestError, UnsupportedError
from patheval.model_adapters import path_vllm
from patheval.model_adapters.path_ref import PathRefLM
from patheval.model_adapters.path_vllm import PathLM

CHECKPOINTS = Path(__file__).parents[1] / "checkpoints"
TASKS = ["path_phonebook_1k", "path_ruler_niah_single_1_1k"]
MAX_LENGTH = 1024


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Copies of the test checkpoints with a tokenizer."""

    def make(name: str) -> Path:
        folder = tmp_path_factory.mktemp("checkpoints") / name
        shutil.copytree(CHECKPOINTS / name, folder)
        byte_tokenizer().save_pretrained(folder)
        return folder

    return make


def build(lm_class: type[Any], folder: Path, **arguments: Any) -> Any:
    """Builds an adapter as lm-eval's command line does."""
    return lm_class.create_from_arg_obj(
        {"pretrained": str(folder), "max_length": MAX_LENGTH, "dtype": "float32", **arguments},
        {"batch_size": 1, "max_batch_size": None, "device": "cuda:0"},
    )


@pytest.fixture(scope="module", params=["path-fox-d64-gqa", "rope-d64"])
def pair(request: pytest.FixtureRequest, folder_of: Callable[[str], Path]) -> Iterator[Any]:
    folder = folder_of(request.param)
    lm = build(PathLM, folder)
    yield lm, build(PathRefLM, folder)
    lm.close()


def instances(kind: str, *arguments: tuple[Any, ...]) -> list[Instance]:
    return [
        Instance(request_type=kind, doc={}, arguments=own, idx=i) for i, own in enumerate(arguments)
    ]


def task_prompts(folder: str, count: int) -> list[tuple[str, str]]:
    """Prompts of the first tasks with their true answers."""
    manager = TaskManager(
        include_defaults=False,
        include_path=str(Path(__file__).parents[2] / "tasks"),
        metadata={"pretrained": folder},
    )
    pairs = []
    for name in TASKS:
        (task,) = manager.load([name])["tasks"].values()
        for index in range(count):
            doc = task.eval_docs[index]
            answer = doc["references"][0] if "references" in doc else doc["answer"]
            pairs.append((task.doc_to_text(doc), f" {answer}"))
    return pairs


@pytest.mark.slow
def test_loglikelihoods_of_the_first_tasks_equal_the_reference(pair: Any) -> None:
    lm, reference = pair
    pairs = task_prompts(str(reference._checkpoint.path), 3)
    requests = instances("loglikelihood", *pairs)
    for got, want in zip(
        lm.loglikelihood(requests), reference.loglikelihood(requests), strict=True
    ):
        assert got[0] == pytest.approx(want[0], abs=1e-3)
        assert got[1] == want[1]


@pytest.mark.slow
def test_every_request_type_equals_the_reference(pair: Any) -> None:
    lm, reference = pair
    pairs = [("", "abc"), ("a b", " c"), ("Hello ", "world"), ("x" * 300, "yz"), ("q", "")]
    requests = instances("loglikelihood", *pairs)
    got, want = lm.loglikelihood(requests), reference.loglikelihood(requests)
    assert [x for x, _ in got] == pytest.approx([x for x, _ in want], abs=1e-3)
    assert [x for _, x in got] == [x for _, x in want]

    texts = instances("loglikelihood_rolling", ("",), ("short",), ("long text " * 250,))
    got, want = lm.loglikelihood_rolling(texts), reference.loglikelihood_rolling(texts)
    assert got == pytest.approx(want, abs=2e-2, rel=1e-5)

    generations = instances(
        "generate_until",
        ("Once", {"until": ["\n"], "max_gen_toks": 20, "do_sample": False}),
        ("upon " * 60, {"until": [], "max_gen_toks": 7, "temperature": 0.0}),
        ("", {"until": "e", "max_new_tokens": 16}),
    )
    # vLLM leaves out a character whose bytes are not complete at the end.
    got, want = lm.generate_until(generations), reference.generate_until(generations)
    assert [text.rstrip("\ufffd") for text in got] == [text.rstrip("\ufffd") for text in want]


@pytest.mark.slow
def test_choices_at_the_borders_of_blocks_equal_the_reference_also_a_second_time(pair: Any) -> None:
    lm, reference = pair
    # BOS comes first: contexts of 255, 256, 257, 511 and 512 tokens, blocks of 64.
    contexts = ["x" * n for n in (254, 255, 256, 510, 511)] + ["y" * 511]
    choices = ["A", "B", "AB", "AC", "ACCD", "A"]
    requests = instances(
        "loglikelihood", *[(context, choice) for context in contexts for choice in choices]
    )
    want = reference.loglikelihood(requests)
    # The second time, every row lies in a block that is cached.
    for got in (lm.loglikelihood(requests), lm.loglikelihood(list(reversed(requests)))[::-1]):
        assert [x for x, _ in got] == pytest.approx([x for x, _ in want], abs=1e-3)
        assert [x for _, x in got] == [x for _, x in want]


@pytest.mark.slow
def test_token_nlls_cover_every_token_of_every_window_once(pair: Any) -> None:
    lm, reference = pair
    texts = ["ab" * 1500, "", "z", "q" * (MAX_LENGTH - 1), "q" * MAX_LENGTH]
    got, want = lm.token_nlls(texts), reference.token_nlls(texts)
    for text, own, other in zip(texts, got, want, strict=True):
        assert len(own) == len(lm.tok_encode(text))
        assert own == pytest.approx(other, abs=2e-3)
    rolling = lm.loglikelihood_rolling(instances("loglikelihood_rolling", *[(t,) for t in texts]))
    assert rolling == pytest.approx([-own.sum() for own in got])


@pytest.mark.slow
def test_each_distinct_text_is_tokenised_once(pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lm, _ = pair
    texts: list[str] = []
    encode = lm._codec._encode_batch
    monkeypatch.setattr(
        lm._codec, "_encode_batch", lambda own, special: texts.extend(own) or encode(own, special)
    )
    pairs = [(f"question {i % 700}", f" {choice}") for i in range(1400) for choice in "abc"]
    lm._encode_pairs(pairs)
    assert len(texts) == len(set(texts)) == 700 + 700 * 3
    texts.clear()
    lm._encode([context for context, _ in pairs])
    assert len(texts) == 700


@pytest.mark.slow
def test_a_prompt_may_fill_max_length_but_not_exceed_it(pair: Any) -> None:
    lm, reference = pair
    # One byte is one token; BOS and the continuation's two tokens fill the rest.
    full = instances("loglikelihood", ("x" * (MAX_LENGTH - 3), "yz"))
    assert lm.loglikelihood(full)[0][0] == pytest.approx(
        reference.loglikelihood(full)[0][0], abs=1e-3
    )
    longer = instances("loglikelihood", ("x" * (MAX_LENGTH - 2), "yz"))
    with pytest.raises(RequestError, match=f"pass max_length={MAX_LENGTH + 1}"):
        lm.loglikelihood(longer)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"top_p": 0, "do_sample": True, "temperature": 1.0}, "vLLM refuses"),
        ({"temperature": "hot"}, "cannot be read"),
        ({"max_gen_toks": "x"}, "cannot be read"),
        ({"max_gen_toks": 0}, "max_gen_toks is 0"),
        ({"until": [3]}, "list of strings"),
        ({"n": 2, "do_sample": True, "temperature": 1.0}, "n is not 1"),
        ({"output_kind": 0}, "hold output_kind, which patheval sets itself"),
        ({"logprobs": None}, "hold logprobs, which patheval sets itself"),
    ],
)
def test_generation_settings_that_make_no_sense(
    pair: Any, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(PathEvalError, match=message):
        pair[0].generate_until(instances("generate_until", ("Once", settings)))


@pytest.mark.slow
def test_empty_stop_strings_stop_nothing(pair: Any) -> None:
    requests = instances(
        "generate_until",
        ("Once", {"until": None, "max_gen_toks": 4}),
        ("Once", {"until": ["", None], "max_gen_toks": 4}),
    )
    assert len(set(pair[0].generate_until(requests))) == 1


def test_lm_evals_response_cache_is_refused(folder_of: Callable[[str], Path]) -> None:
    lm = build(PathRefLM, folder_of("path-d64"))
    with pytest.raises(UnsupportedError, match="--use_cache"):
        CachingLM(lm, str(lm._checkpoint.path / "cache.db"))


@pytest.mark.slow
@pytest.mark.parametrize("lm_class", [PathLM, PathRefLM])
@pytest.mark.parametrize("name", ["model.layers.1.mlp.down_proj.weight", "lm_head.weight"])
def test_nan_is_an_error_and_not_an_answer(
    name: str, lm_class: type[Any], folder_of: Callable[[str], Path]
) -> None:
    folder = folder_of("path-d64")
    tensors = load_file(folder / "model.safetensors")
    # Hidden states overflow in half precision, or only logits do, which are infinite then.
    tensors[name] *= 1e6 if "mlp" in name else 6e4 / tensors[name].abs().max()
    save_file(tensors, folder / "model.safetensors")
    lm = build(lm_class, folder, dtype="float16")
    with pytest.raises(RequestError, match="NaN"):
        lm.generate_until(instances("generate_until", ("Once", {"max_gen_toks": 4})))
    with pytest.raises(RequestError, match="NaN"):
        lm.loglikelihood(instances("loglikelihood", ("Once", " upon")))
    if lm_class is PathLM:
        lm.close()


def test_nan_of_a_float32_model_is_not_blamed_on_its_dtype(
    folder_of: Callable[[str], Path],
) -> None:
    folder = folder_of("path-d64")
    tensors = load_file(folder / "model.safetensors")
    for name in ("up_proj", "down_proj"):
        tensors[f"model.layers.1.mlp.{name}.weight"] *= 1e25
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(RequestError, match="in float32; its weights are beyond"):
        build(PathRefLM, folder).loglikelihood(instances("loglikelihood", ("Once", " upon")))


@pytest.mark.slow
def test_results_say_what_ran(pair: Any) -> None:
    lm, _ = pair
    info = lm.get_model_info()
    assert info["backend"] == "vllm"
    assert info["attention"] in ("path-fox", "rope")
    assert info["max_length"] == MAX_LENGTH
    assert info["model_dtype"] == "float32"
    assert info["kv_block_size"] == 64
    assert len(info["checkpoint_sha256"]) == 64
    assert info["kernel_impl"] and info["model_runner"] in ("V1", "V2")
    assert info["torch_version"] and info["vllm_version"] and info["transformers_version"]
    before = info["phases"].get("generate_until", {"num_requests": 0, "generated_tokens": 0})
    lm.generate_until(
        instances("generate_until", *[("One", {"until": [], "max_gen_toks": n}) for n in (3, 4)])
    )
    after = lm.get_model_info()["phases"]["generate_until"]
    assert after["num_requests"] - before["num_requests"] == 2
    assert after["generated_tokens"] - before["generated_tokens"] == 7
    assert after["wall_seconds"] > 0 and after["generated_tokens_per_second"] > 0
    json.dumps(info)


@pytest.mark.slow
@pytest.mark.parametrize("pair_of_tokens", [([10**6], [1]), ([1], [10**6])])
def test_a_token_beyond_the_vocabulary_is_refused(
    pair: Any, pair_of_tokens: tuple[list[int], list[int]]
) -> None:
    lm, _ = pair
    with pytest.raises(RequestError, match="has token 1000000, but the model has"):
        lm._loglikelihood_tokens([(None, *pair_of_tokens)])
    ((logprob, _),) = lm._loglikelihood_tokens([(None, [1], [2])])
    assert logprob < 0


@pytest.mark.parametrize(
    ("is_cuda", "capability", "gib", "has_room"),
    [(True, 90, 79, True), (True, 80, 79, False), (True, 90, 64, False), (False, 90, 79, False)],
)
def test_steps_are_long_where_a_card_has_room(
    is_cuda: bool, capability: int, gib: int, has_room: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform = SimpleNamespace(
        is_cuda=lambda: is_cuda,
        has_device_capability=lambda wanted: capability >= wanted,
        get_device_total_memory=lambda: gib << 30,
    )
    monkeypatch.setattr("vllm.platforms.current_platform", platform)
    assert path_vllm._has_room_for_long_steps() is has_room


@pytest.mark.slow
def test_answers_belong_to_the_engine_settings_that_change_numbers(
    pair: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm, _ = pair
    identity = json.dumps(lm._identity())
    assert identity == json.dumps(lm._identity())
    for name, value in (("block_size", 512), ("enforce_eager", False), ("attention_config", {})):
        monkeypatch.setattr(lm, "_engine_args", lm._engine_args | {name: value})
        assert json.dumps(lm._identity()) != identity, name
        monkeypatch.undo()
    # vLLM's engine has set this one; the first engine of another process would not find it.
    assert "VLLM_SSM_CONV_STATE_LAYOUT" in os.environ and "SSM_CONV" not in identity
    monkeypatch.setattr(lm, "_engine_args", lm._engine_args | {"max_num_seqs": 3})
    assert json.dumps(lm._identity()) == identity
    monkeypatch.setattr(lm, "_seed", 5)
    assert json.dumps(lm._identity()) != identity


def test_answers_belong_to_the_variables_that_change_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = path_vllm._vllm_variables()
    for name in ("VLLM_LOGGING_LEVEL", "VLLM_DIST_IDENT"):
        monkeypatch.setenv(name, "DEBUG")
    assert path_vllm._vllm_variables() == before
    monkeypatch.setenv("VLLM_FLOAT32_MATMUL_PRECISION", "medium")
    assert path_vllm._vllm_variables() != before


@pytest.mark.parametrize("name", ["ONEDNN_DEFAULT_FPMATH_MODE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"])
def test_answers_belong_to_the_variables_with_which_the_model_was_made(
    name: str, folder_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of("path-d64")
    plain = build(PathRefLM, folder)
    identity = plain._identity()
    monkeypatch.setenv(name, "1")
    assert build(PathRefLM, folder)._identity() != identity == plain._identity()


@pytest.mark.slow
@pytest.mark.parametrize("lm_class", [PathLM, PathRefLM])
@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
def test_a_checkpoint_that_is_written_while_it_is_loaded_is_refused(
    lm_class: type[Any],
    file: str,
    folder_of: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a training run does that saves to one folder again and again."""
    folder = folder_of("path-d64")
    fingerprint = Checkpoint.fingerprint

    def then_written(self: Checkpoint) -> str:
        value = fingerprint(self)
        content = (folder / file).read_bytes()
        (folder / "new").write_bytes(content)
        (folder / "new").replace(folder / file)
        return value

    monkeypatch.setattr(Checkpoint, "fingerprint", then_written)
    with pytest.raises(CheckpointError, match=f"{file} was changed while"):
        build(lm_class, folder)


@pytest.mark.slow
def test_rope_beyond_its_positions_equals_the_reference_and_is_recorded(
    folder_of: Callable[[str], Path],
) -> None:
    folder = folder_of("rope-d64")
    beyond = 4096 + 200
    lm = build(PathLM, folder, max_length=beyond)
    reference = build(PathRefLM, folder, max_length=beyond)
    requests = instances("loglikelihood", ("ab" * 2120, "yz" * 20))
    assert lm.loglikelihood(requests)[0][0] == pytest.approx(
        reference.loglikelihood(requests)[0][0], abs=5e-2
    )
    info = lm.get_model_info()
    assert (info["max_length"], info["max_position_embeddings"]) == (beyond, 4096)
    lm.close()


@pytest.mark.slow
@pytest.mark.parametrize("model_type", ["llama", "qwen2"])
def test_stock_checkpoints_are_rope_baselines(model_type: str, tmp_path: Path) -> None:
    config = AutoConfig.for_model(
        model_type,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=512,
        max_position_embeddings=256,
        bos_token_id=1,
        eos_token_id=2,
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).float().eval()
    for parameter in model.parameters():
        parameter.data.mul_(3)
    folder = tmp_path / model_type
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)

    lm = build(PathLM, folder, max_length=400)
    context, continuation = "ab" * 150, "yz"
    (result,) = lm.loglikelihood(instances("loglikelihood", (context, continuation)))
    token_ids = torch.tensor([lm.tok_encode(context + continuation)])
    with torch.no_grad():
        logprobs = torch.log_softmax(model(token_ids).logits[0].double(), dim=-1)
    last = logprobs[-3:-1].gather(1, token_ids[0, -2:, None])
    assert result[0] == pytest.approx(float(last.sum()), abs=1e-3)
    assert lm.get_model_info()["attention"] == "rope"
    lm.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"data_parallel_size": 0}, "data_parallel_size is 0"),
        ({"worker_extension_cls": "a.B"}, "worker_extension_cls='a.B'"),
        ({"dtype": "float64"}, "dtype is 'float64'"),
        ({"max_model_len": 2048}, "two names of one limit"),
        ({"max_length": 0}, "max_length is 0"),
        ({"bloc_size": 256}, "did you mean block_size"),
        ({"tensor_parallel_size": "two"}, "tensor_parallel_size is 'two'"),
        ({"load_format": "dummy"}, "load_format='dummy' would score something else"),
        ({"logprobs_mode": "raw_logits"}, "logprobs_mode"),
        ({"hf_config_path": "/tmp"}, "hf_config_path"),
        ({"generation_config": "/tmp"}, "generation_config"),
        ({"model": "x"}, "model='x' in --model_args is not an argument"),
        ({"hf_overrides": {"num_heads": 4}}, "hf_overrides"),
        ({"pretrained": "zoo:none-such"}, "none-such"),
        ({"pretrained": "/none/such"}, "/none/such does not exist"),
    ],
)
def test_bad_arguments_are_refused_before_an_engine_starts(
    arguments: dict[str, Any], message: str, folder_of: Callable[[str], Path]
) -> None:
    folder = folder_of("path-d64")
    with pytest.raises(PathEvalError, match=message):
        build(PathLM, folder, **arguments)


@pytest.mark.parametrize("lm_class", [PathLM, PathRefLM])
def test_missing_and_unknown_names_are_refused_alike(
    lm_class: type[Any], folder_of: Callable[[str], Path]
) -> None:
    with pytest.raises(PathEvalError, match="pretrained=FOLDER"):
        lm_class.create_from_arg_obj({}, {"batch_size": 1})
    with pytest.raises(UnsupportedError, match="did you mean max_length"):
        build(lm_class, folder_of("path-d64"), max_lenght=512)


@pytest.mark.parametrize("rope_type", ["dynamic", "longrope"])
def test_rope_scaling_that_depends_on_the_length_is_not_extended(
    rope_type: str, folder_of: Callable[[str], Path]
) -> None:
    lm = PathLM.__new__(PathLM)
    lm._max_length = 9000

    config = StockConfig("rope", "llama", 512, "float32", 4096, rope_type)
    lm._checkpoint = SimpleNamespace(config=config)
    with pytest.raises(UnsupportedError, match=rope_type):
        lm._position_overrides(9001)

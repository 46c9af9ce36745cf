"""Whole evaluations under one store that differ in one thing each: none is served another's."""

import json
from pathlib import Path
from typing import Any

import pytest
from byte_tokenizer import byte_tokenizer
from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

CHECKPOINTS = Path(__file__).parents[1] / "checkpoints"
TASK = """
task: {output_type}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
fewshot_split: test
output_type: {output_type}
doc_to_text: "{prompt}"
doc_to_target: 1
doc_to_choice: ["red", "green", "blue"]
generation_kwargs: {{max_gen_toks: 4, until: ["x"]}}
metadata: {{version: {version}}}
"""
SWAPS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "task version": {"version": 2, "prompt": "{{q}}: "},
    "few-shot examples": {"num_fewshot": 1},
    "chat template": {"apply_chat_template": True},
    "system prompt": {"apply_chat_template": True, "system_instruction": "Be brief."},
    "attention": {"checkpoint": "rope-d64"},
    "gated attention": {"checkpoint": "fox-d64"},
    "dtype": {"dtype": "bfloat16"},
    "length": {"max_length": 40, "overlength": "truncate"},
}


OUTPUT_TYPES = ("multiple_choice", "generate_until")


def evaluate(folder: Path, resume: Path | str, swap: dict[str, Any]) -> Any:
    """The answers, how many of them the store gave, and how many prompts there were."""
    settings = {"version": 1, "prompt": "{{q}} is", "checkpoint": "path-d64", **swap}
    version, prompt = settings.pop("version"), settings.pop("prompt")
    tasks = folder / f"tasks {version}"
    tasks.mkdir(exist_ok=True)
    for output_type in OUTPUT_TYPES:
        text = TASK.format(
            output_type=output_type, data=folder / "docs.jsonl", prompt=prompt, version=version
        )
        (tasks / f"{output_type}.yaml").write_text(text)
    names = ("num_fewshot", "apply_chat_template", "system_instruction")
    options = {name: settings.pop(name) for name in names if name in settings}
    output = simple_evaluate(
        model="path-ref",
        model_args={
            "pretrained": str(CHECKPOINTS / settings.pop("checkpoint")),
            "tokenizer": str(folder / "tokenizer"),
            "resume": str(resume),
            "max_length": 400,
            **settings,
        },
        device="cpu",
        tasks=list(OUTPUT_TYPES),
        task_manager=TaskManager(include_path=str(tasks), include_defaults=False),
        bootstrap_iters=0,
        **options,
    )
    answers = [
        sample["resps"] for output_type in OUTPUT_TYPES for sample in output["samples"][output_type]
    ]
    return answers, output["config"]["num_answers_resumed"], output["config"]["num_prompts"]


@pytest.mark.slow
def test_no_evaluation_is_served_another_s_answers(tmp_path: Path) -> None:
    byte_tokenizer().save_pretrained(tmp_path / "tokenizer")
    docs = [{"q": f"{i} apples and {i * i} pears on a table"} for i in range(3)]
    (tmp_path / "docs.jsonl").write_text("".join(json.dumps(doc) + "\n" for doc in docs))
    store = tmp_path / "store"
    for name, swap in SWAPS.items():
        answers, num_resumed, num_prompts = evaluate(tmp_path, store, swap)
        assert num_resumed == 0 and num_prompts > 0, name
        assert answers == evaluate(tmp_path, "off", swap)[0], name
    _, num_resumed, num_prompts = evaluate(tmp_path, store, {})
    assert num_resumed == num_prompts

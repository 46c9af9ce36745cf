"""Results folders as lm-eval 0.4.13 writes them, made from scores instead of by models."""

import hashlib
import json
import math
import random
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Run:
    """One call of lm_eval; the fields are what tests vary."""

    model: str = "rope"
    scores: dict[str, list[float]] = field(
        default_factory=lambda: {"path_phonebook_1k": scores(60, 96)}
    )
    metric: str = "exact_match"
    time: str = "2026-05-01T10-00-00.000001"
    date: float = 1777629600.0
    model_type: str = "path"
    attention: str = "rope"
    sha256: str = ""
    version: int = 1
    seed: int = 0
    max_length: int = 8192
    num_tokens: int = 900
    limit: float | None = None
    originals: dict[str, int] = field(default_factory=dict)
    config: dict = field(default_factory=dict)
    top: dict = field(default_factory=dict)
    results: dict = field(default_factory=dict)
    log_samples: bool = True
    seconds: float = 100.0
    further: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    lower_is_better: set[str] = field(default_factory=set)

    def write(self, folder: Path) -> Path:
        target = folder / self.model.replace("/", "__").replace(":", "__")
        target.mkdir(parents=True, exist_ok=True)
        hashes = {}
        for task, values in self.scores.items():
            samples = [self._sample(task, i, value) for i, value in enumerate(values)]
            joined = "".join(s["doc_hash"] + s["prompt_hash"] + s["target_hash"] for s in samples)
            hashes[task] = _hash(joined)
            if self.log_samples:
                lines = [json.dumps(sample, ensure_ascii=False) for sample in samples]
                text = "".join(f"{line}\n" for line in lines)
                path = target / f"samples_{task}_{self.time}.jsonl"
                path.write_text(text, encoding="utf-8")
        path = target / f"results_{self.time}.json"
        content = self._content(hashes if self.log_samples else {})
        path.write_text(json.dumps(content, indent=2, ensure_ascii=False), encoding="utf-8")
        return path

    def _sample(self, task: str, index: int, value: float) -> dict:
        prompt = f"{task} prompt {index} of seed {self.seed}"
        depth = 10 + (index * 37) % (self.num_tokens - 20)
        doc = {
            "index": index,
            "prompt": prompt,
            "references": [str(index)],
            "num_tokens": self.num_tokens + index % 3,
            "depth_tokens": depth,
            "length": 1024,
            "seed": self.seed,
            "tokenizer": "0123456789abcdef",
        }
        return {
            "doc_id": index,
            "doc": doc,
            "target": f"['{index}']",
            "arguments": {"gen_args_0": {"arg_0": prompt, "arg_1": {"until": ["\n"]}}},
            "resps": [[f" {index}"]],
            "filtered_resps": [f" {index}" if value else " wrong"],
            "filter": "none",
            "metrics": [self.metric, "empty", *self.further.get(task, {})],
            "doc_hash": _hash(json.dumps(doc)),
            "prompt_hash": _hash(prompt),
            "target_hash": _hash(str(index)),
            self.metric: value,
            "empty": 0.0,
            **{name: values[index] for name, values in self.further.get(task, {}).items()},
        }

    def _content(self, hashes: dict[str, str]) -> dict:
        results, counts, configs = {}, {}, {}
        for task, values in self.scores.items():
            n = len(values)
            mean = sum(values) / n
            stderr = (sum((x - mean) ** 2 for x in values) / max(n - 1, 1) / n) ** 0.5
            results[task] = {
                "name": task,
                "alias": task,
                "sample_len": n,
                f"{self.metric},none": mean,
                f"{self.metric}_stderr,none": stderr if n > 1 else "N/A",
                "empty,none": 0.0,
                "empty_stderr,none": 0.0,
            } | self.results.get(task, {})
            counts[task] = {"original": self.originals.get(task, n), "effective": n}
            configs[task] = {
                "task": task,
                "output_type": "generate_until",
                "metric_list": [{"metric": self.metric}, {"metric": "empty"}],
                "generation_kwargs": {"max_gen_toks": 50, "until": ["\n"]},
                "metadata": {"version": self.version, "pretrained": self.model},
            }
        info = {
            "attention": self.attention,
            "model_dtype": "bfloat16",
            "checkpoint_sha256": self.sha256 or _hash(self.model),
            "patheval_version": "0.1.0",
            "vllm_version": "0.32.0",
            "platform": "NVIDIA H200",
            "max_position_embeddings": 2048 if self.attention == "rope" else None,
            "overlength": "error",
            "num_prompts_truncated": 0,
            "num_prompts_skipped": 0,
            "num_generations_empty": 0,
            "phases": {
                "generate_until": {
                    "prompt_tokens": 90_000,
                    "generated_tokens": 1_000,
                    "wall_seconds": 50.0,
                }
            },
            "peak_gpu_memory_bytes": 3 * 2**30,
        }
        return {
            "results": results,
            "group_subtasks": {},
            "configs": configs,
            "versions": dict.fromkeys(self.scores, self.version),
            "n-shot": dict.fromkeys(self.scores, 0),
            "higher_is_better": {
                task: {
                    metric: metric not in self.lower_is_better
                    for metric in (self.metric, *self.further.get(task, {}))
                }
                | {"empty": False}
                for task in self.scores
            },
            "n-samples": counts,
            "config": {
                "model": self.model_type,
                "model_args": {"pretrained": self.model},
                **(info if self.model_type.startswith("path") else {}),
                "limit": self.limit,
                **self.config,
            },
            "git_hash": "abc1234",
            "date": self.date,
            "pretty_env_info": "PyTorch version: 2.11.0+cu130\nIs debug build: False",
            "transformers_version": "5.17.0",
            "lm_eval_version": "0.4.13",
            "max_length": self.max_length,
            "task_hashes": hashes,
            "model_source": self.model_type,
            "model_name": self.model,
            "model_name_sanitized": self.model.replace("/", "__"),
            "chat_template_sha": None,
            "total_evaluation_time_seconds": str(self.seconds),
        } | self.top


def scores(right: int, n: int, seed: int = 0) -> list[float]:
    """So many ones among n, in an order of the seed's."""
    values = [1.0] * right + [0.0] * (n - right)
    random.Random(seed).shuffle(values)
    return values


def four_models(folder: Path) -> Path:
    """The paper's four models on RULER, PhoneBook and zero-shot tasks, with samples."""
    rates = {"rope": 0.45, "fox": 0.62, "path": 0.7, "path-fox": 0.85}
    for number, (model, rate) in enumerate(rates.items()):
        tasks = {}
        for step, label in enumerate(["512", "1k", "2k", "4k", "8k"]):
            fall = rate ** (0.2 + step / (3 if model == "path-fox" else 1.5))
            tasks[f"path_phonebook_{label}"] = scores(round(96 * fall), 96, number * 100 + step)
            for position, task in enumerate(["niah_single_1", "niah_multikey_2", "vt", "cwe"]):
                right = round(100 * fall ** (1 + position / 3))
                tasks[f"path_ruler_{task}_{label}"] = scores(right, 100, number * 100 + position)
        Run(model, tasks, attention=model, num_tokens=900).write(folder)
        zero_shot = {
            task: scores(round(200 * (0.4 + rate / 4)), 200, number)
            for task in ("piqa", "winogrande", "arc_easy")
        }
        Run(
            model, zero_shot, metric="acc", attention=model, time="2026-05-01T12-00-00.000001"
        ).write(folder)
    return folder


def perplexity_run(model: str, losses: dict[int, list[float]], length: str = "2k") -> Run:
    """A run of a perplexity task: by the end of each bucket, its loss in each text."""
    task = f"path_ppl_pg19_{length}"
    texts = list(zip(*losses.values(), strict=True))
    buckets = {f"nll_{end if end < 1024 else f'{end // 1024}k'}": end for end in losses}
    whole = [sum(text) / len(text) for text in texts]
    run = Run(model, {task: whole}, metric="nll", attention=model)
    extra = {"perplexity": whole} | {name: losses[end] for name, end in buckets.items()}
    run.further[task] = extra
    mean = sum(whole) / len(whole)
    run.results = {task: {"perplexity,none": math.exp(mean), "perplexity_stderr,none": "N/A"}}
    for name, end in buckets.items():
        run.results[task][f"{name},none"] = sum(losses[end]) / len(losses[end])
        run.results[task][f"{name}_stderr,none"] = 0.01
    run.lower_is_better = {"nll", "perplexity", *buckets}
    return run


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()

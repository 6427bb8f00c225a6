"""Measure quality and speed of SmolLM2-135M-Instruct with prompt lookup or a draft model.

    python -m benchmarks.real --output build/real                                      # `make real`: minutes
    python -m benchmarks.real --output build/study --data scitldr=FILE,rewrite=FILE --head-steps 160 \\
        --num-examples 200 --timed-prompts 24 --repeats 5 --report results/real/study.json

Finished parts are kept in the output folder, so an interrupted run continues there:

1. Quality and acceptance in two regimes: with the draft model of `--draft`, if it is given, and with prompt lookup on
   tasks that copy the prompt (`scitldr`, and `rewrite`: correct the spelling of a text). Measured with
   `hf_diversed.evaluation`, eager, batch size 8; bounds are clustered by prompt.
2. With `--head-steps`, two heads for each regime, a mixture head and a token-aware head, trained on its first task.
3. Speed: the methods in turns on the same prompts, eager and compiled, at batch sizes 1 and 8. Reports ms per round
   (prefill spread over the rounds), tokens per second of wall time and of CPU time, and peak memory (on a CPU, of the
   process since its start). Compile time is reported separately. Wall time varies on a shared machine; CPU time is
   comparable within a run.
"""

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase
from transformers.utils import logging

from benchmarks import packaged
from hf_diversed.cli.demo import TEXTS
from hf_diversed.cli.models import LOOKUP, load_pair
from hf_diversed.cli.training import call
from hf_diversed.evaluation import EvaluationSettings, evaluate
from hf_diversed.evaluation.calls import peak_memory
from hf_diversed.files import write_json
from hf_diversed.formatting import with_bounds
from hf_diversed.harness.compiled import default_compile_config
from hf_diversed.harness.decode import Decoder
from hf_diversed.harness.methods import Method, build_methods
from hf_diversed.harness.pair import Pair
from hf_diversed.harness.prompts import encode
from hf_diversed.harness.sampling import Sampling
from hf_diversed.method_names import DIVERSED, MethodName
from hf_diversed.provenance import data_digest, model_digest, provenance
from hf_diversed.tasks import PromptedTask, Task, get_task, load_records


METHODS = ("lossless", "lenience:0.3", "static:0.5")
COMPILED = ("target", "lossless", "lenience:0.3")
REGIMES = ("draft", LOOKUP)
COPYING = ("scitldr", "rewrite")  # tasks for prompt lookup
HEADS = {"mixture": (), "token-aware": ("--token-features", "true")}


def main() -> None:
    arguments = _arguments()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    if arguments.head_steps and not arguments.data:
        raise ValueError("--head-steps needs --data, for example --data scitldr=FILE.")
    if unknown := sorted({*arguments.regimes} - {*REGIMES}):
        raise ValueError(f"--regimes must be of {', '.join(REGIMES)}, got {', '.join(unknown)}.")
    arguments.output.mkdir(parents=True, exist_ok=True)
    records = [record for regime in regimes(arguments.draft, arguments) for record in study(*regime, arguments)]
    settings = {name: value for name, value in vars(arguments).items() if name not in ("output", "report", "data")}
    settings["data"] = {task: Path(path).name for task, path in arguments.data.items()}
    report = {"settings": settings, "records": records, "provenance": provenance(arguments.seed, "cpu")}
    write_json(arguments.report or arguments.output / "real.json", report)
    _show(records)


# Training


def trained_head(name: str, draft: str, task: str, folder: Path, arguments: argparse.Namespace) -> None:
    """Train one of `HEADS` and save it in a folder, unless the folder contains a head."""
    if (folder / "trainer_state.json").exists():
        return
    iterations = min(4, arguments.head_steps)
    steps = str(max(1, arguments.head_steps // iterations // 2) * iterations)
    examples = str(arguments.train_examples)
    call(
        [
            *("--target", packaged.resolve(arguments.target), "--draft", draft, "--dtype", arguments.dtype),
            *(*_training_data(task, arguments), *HEADS[name]),
            *("--max-steps", str(arguments.head_steps), "--num-iterations", str(iterations)),
            *("--eval-steps", steps, "--save-steps", steps, "--num-assistant-tokens", str(arguments.gamma)),
            *("--num-examples", examples, "--num-eval-examples", examples, "--reference-generations", "1"),
            *("--per-device-train-batch-size", "64", "--num-generations", "4", "--generation-batch-size", "16"),
            *("--per-device-eval-batch-size", "16", "--max-completion-length", str(arguments.max_new_tokens)),
            *("--temperature", str(arguments.temperature), "--seed", str(arguments.seed), "--resume", "true"),
            *("--use-cpu", "true", "--report-to", "none", "--output-dir", str(folder)),
        ],
    )


def _training_data(task: str, arguments: argparse.Namespace) -> list[str]:
    """Write a task's training records, which are all but the evaluated last ones, and return the arguments."""
    path = arguments.output / f"train-{task}.jsonl"
    with Path(arguments.data[task]).open(encoding="utf-8") as file:  # `splitlines` would also split inside texts
        rows = list(file)
    path.write_text("".join(rows[: -arguments.num_examples]), encoding="utf-8")
    return ["--task", task, "--data-file", str(path), "--chat", "true"]


# Regimes


def regimes(draft: str | None, arguments: argparse.Namespace) -> Iterator[tuple[str, str, list[str]]]:
    """Yield the name, draft and tasks of each regime."""
    if draft is not None and "draft" in arguments.regimes:
        yield "draft", draft, list(arguments.data)
    copying = [task for task in COPYING if task in arguments.data] or ([] if arguments.data else ["rewrite"])
    if copying and LOOKUP in arguments.regimes:
        yield LOOKUP, LOOKUP, copying


def study(regime: str, draft: str, tasks: list[str], arguments: argparse.Namespace) -> list[dict]:
    """Measure quality and speed of every method on every task of a regime."""
    folders = [arguments.output / regime / f"head-{name}" for name in arguments.heads if arguments.head_steps]
    for name, folder in zip(arguments.heads, folders):
        trained_head(name, draft, tasks[0], folder, arguments)
    pair = load_pair(packaged.resolve(arguments.target), draft, "cpu", chat=True, dtype=arguments.dtype)
    methods = build_methods([*arguments.methods, *(f"diversed:{folder}" for folder in folders)])
    records = []
    for name in tasks:
        task = get_task(name)
        prompted = PromptedTask(task, pair.tokenizer, chat=True)
        examples = _examples(task, pair.tokenizer, arguments)
        settings = EvaluationSettings(
            temperature=arguments.temperature,
            num_assistant_tokens=arguments.gamma,
            batch_size=8,
            max_new_tokens=arguments.max_new_tokens,
            samples_per_prompt=arguments.samples_per_prompt,
            seed=arguments.seed,
            add_special_tokens=False,
            split=Path(arguments.data[name]).name if name in arguments.data else "texts of the demo",
        )
        folder = arguments.output / regime / name
        quality = evaluate(pair, prompted, examples, build_methods(["target"]) + methods, settings, output=folder)
        texts = [prompted.prompt(example) for example in examples[: arguments.timed_prompts]]
        seconds = timed(
            pair,
            texts,
            methods,
            folder,
            sampling=Sampling(
                arguments.temperature, num_assistant_tokens=arguments.gamma, max_new_tokens=arguments.max_new_tokens
            ),
            batch_sizes=arguments.batch_sizes,
            repeats=arguments.repeats,
            backend=None if arguments.eager_only else arguments.backend,
            seed=arguments.seed,
        )
        records.append({"regime": regime, "task": name, "quality": quality, "seconds": seconds})
    return records


def _examples(task: Task, tokenizer: PreTrainedTokenizerBase, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the evaluated records: the last ones of the file whose answers fit `max_new_tokens`."""
    if task.name not in arguments.data:
        return [{"text": text} for text in TEXTS[: arguments.num_examples]]
    records = load_records(task, "test", data_file=arguments.data[task.name])[-arguments.num_examples :]
    if task.name == "rewrite":  # the answer is as long as the text
        limit = arguments.max_new_tokens
        records = [record for record in records if len(tokenizer(task.reference(record)).input_ids) <= limit]
    task.check_scoring()
    return records


# Speed


def timed(
    pair: Pair,
    prompts: Sequence[str],
    methods: list[Method],
    folder: Path,
    sampling: Sampling,
    batch_sizes: Sequence[int],
    repeats: int,
    backend: str | None = None,
    seed: int = 0,
) -> list[dict]:
    """Return the timings of all methods in turns, by batch size. Finished batch sizes with the same
    settings are read from the folder. With a backend, some methods are also compiled."""
    rows = encode(pair.tokenizer, prompts, add_special_tokens=False)
    timed_methods = [*build_methods(["target"]), Method("upstream", upstream=True), *methods]
    if backend is not None:
        config = default_compile_config(pair.target.device, backend)
        timed_methods += [
            Method(f"{method.label}, compiled", method.verifier, compile_config=config)
            for method in build_methods(COMPILED)
        ]
    records: list[dict] = []
    for size in batch_sizes:
        about = [rows, [(method.label, method.definition) for method in timed_methods], torch.get_num_threads()]
        about += [None if model is None else model_digest(model) for model in (pair.target, pair.draft)]
        digest = data_digest([*about, repr(sampling), repeats, seed, backend])
        path = folder / f"seconds-{size}-{digest}.json"
        if not path.exists():
            batches = [rows[start : start + size] for start in range(0, len(rows), size)]
            supported = [method for method in timed_methods if size == 1 or not method.upstream]
            turns = _turns(Decoder(pair, sampling), batches, supported, repeats, seed)
            write_json(path, {"batch_size": size, "methods": turns})
        records.append(json.loads(path.read_text()))
    return records


def _turns(
    decoder: Decoder, batches: list[list[list[int]]], methods: list[Method], repeats: int, seed: int
) -> dict[str, dict[str, Any]]:
    sums = {method.label: [_zeros() for _ in range(repeats)] for method in methods}
    longest = max(batches, key=lambda rows: max(map(len, rows)))
    warm_up = {method.label: _call(decoder, method, longest, 0) for method in methods}
    for turn in range(repeats):
        for number, batch in enumerate(batches):
            first = (turn + number) % len(methods)
            for method in methods[first:] + methods[:first]:
                call_seed = seed + turn * len(batches) + number
                call = _call(decoder, method, batch, call_seed)
                if call["compiling"]:  # a shape that was not in the warm-up; the call's CPU time includes compilation
                    call = _call(decoder, method, batch, call_seed)
                total = sums[method.label][turn]
                for name, value in call.items():
                    merge = max if name == "memory" else float.__add__
                    total[name] = merge(total[name], float(value))
    return {label: _rates(turns) | {"compiling": warm_up[label]["compiling"]} for label, turns in sums.items()}


def _zeros() -> dict[str, float]:
    return dict.fromkeys(("seconds", "cpu_seconds", "compiling", "tokens", "rounds", "memory"), 0.0)


def _call(decoder: Decoder, method: Method, batch: list[list[int]], seed: int) -> dict[str, float]:
    began = time.process_time()
    with peak_memory(decoder.pair.target.device) as peak:
        decoded = decoder(method, batch, seed)
    spent = time.process_time() - began
    compiling = 0.0 if decoded.stats is None else decoded.stats.compile.seconds
    rounds = max(map(len, decoded.tokens)) if method.is_plain else 0  # upstream does not report rounds
    if decoded.stats is not None:
        rounds = max(row.num_rounds for row in decoded.stats.per_row)
    return {
        "seconds": decoded.seconds - compiling,
        "cpu_seconds": spent,
        "compiling": compiling,
        "tokens": sum(map(len, decoded.tokens)),
        "rounds": rounds,
        "memory": peak.num_bytes or 0,
    }


def _rates(turns: list[dict[str, float]]) -> dict[str, Any]:
    """Return medians over the turns, and all turns for confidence bounds."""

    def over(above: str, below: str, factor: float = 1.0) -> float | None:
        return median(factor * turn[above] / turn[below] for turn in turns) if turns[0][below] else None

    return {
        "tokens_per_second": over("tokens", "seconds"),
        "tokens_per_cpu_second": over("tokens", "cpu_seconds"),
        "milliseconds_per_round": over("seconds", "rounds", 1e3),
        "cpu_milliseconds_per_round": over("cpu_seconds", "rounds", 1e3),
        "peak_memory_bytes": max(turn["memory"] for turn in turns),
        "turns": turns,
    }


# Output


def _show(records: list[dict]) -> None:
    for record in records:
        print(f"\n{record['regime']}, {record['task']} ({record['quality'][0]['metric']}; 95% bounds by prompt)")
        print(f"{'method':<28}{'accepted':>24}{'quality':>24}{'below the target':>24}{'tokens per round':>18}")
        for row in record["quality"]:
            bounds = "".join(
                f"{with_bounds(row, name):>24}" for name in ("acceptance_rate", "quality", "quality_drop")
            )
            efficiency = "-" if row["block_efficiency"] is None else f"{row['block_efficiency']:.2f}"
            print(f"{_short(row['method']):<28}{bounds}{efficiency:>18}")
        for part in record["seconds"]:
            print(
                f"batch {part['batch_size']:<22}{'tokens/s':>12}{'vs plain':>12}{'per CPU s':>12}{'ms per round':>14}"
            )
            for label, row in part["methods"].items():
                plain = part["methods"]["target, compiled" if label.endswith(", compiled") else "target"]
                gain = row["tokens_per_second"] / plain["tokens_per_second"]
                per_round = row["milliseconds_per_round"]
                words = "-" if per_round is None else f"{per_round:.1f}"
                print(
                    f"{_short(label):<28}{row['tokens_per_second']:>12.1f}{f'{gain:.2f}x':>12}"
                    f"{row['tokens_per_cpu_second']:>12.1f}{words:>14}"
                )


def _short(label: str) -> str:
    name = MethodName.parse(label)
    if name.name != DIVERSED or not name.parameters:
        return label
    return str(replace(name, parameters=Path(name.parameters).name))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)

    def files(text: str) -> dict[str, str]:
        return dict(part.split("=", 1) for part in text.split(",")) if text else {}

    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    add = parser.add_argument
    add("--output", type=Path, required=True, help="Folder for finished parts, which are not repeated.")
    add("--target", default="smollm2", help="A name in benchmarks.packaged, or a chat model of the Hub.")
    add("--data", type=files, default={}, help="task=FILE,...; heads are trained on the first.")
    add("--draft", help="Hub id or folder of a draft model.")
    add("--regimes", type=lambda text: text.split(","), default=list(REGIMES), help="draft, lookup, or both.")
    add("--head-steps", type=int, default=0, help="Updates of each head; 0 trains none.")
    add("--heads", type=lambda text: text.split(","), default=list(HEADS), help="mixture, token-aware, or both.")
    add("--train-examples", type=int, default=256, help="Training prompts of each head.")
    add("--num-examples", type=int, default=8)
    add("--samples-per-prompt", type=int, default=1)
    add("--max-new-tokens", type=int, default=64)
    add("--temperature", type=float, default=1.0)
    add("--gamma", type=int, default=5)
    add("--timed-prompts", type=int, default=4)
    add("--batch-sizes", type=numbers, default=[1, 8])
    add("--repeats", type=int, default=1)
    add("--dtype", default="float32", help="Dtype of the models.")
    add("--report", type=Path, help="JSON file of the results; OUTPUT/real.json by default.")
    add("--methods", type=lambda text: text.split(","), default=list(METHODS))
    add("--backend", default="inductor", help="Backend of torch.compile.")
    add("--eager-only", action="store_true")
    add("--threads", type=int)
    add("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()

"""Measure quality and speed of SmolLM2-135M-Instruct with prompt lookup.

    python -m benchmarks.real --output build/real                                      # `make real`: minutes
    python -m benchmarks.real --output build/study --data scitldr=FILE,rewrite=FILE --head-steps 160 \\
        --num-examples 200 --timed-prompts 24 --repeats 5 --report results/real/study.json

Finished parts are kept in the output folder, so an interrupted run continues there:

1. With `--head-steps`, a token-aware head, trained on the first task.
2. Quality and acceptance on tasks that copy the prompt (`scitldr`, and `rewrite`: correct the spelling of a text).
   Measured with `hf_diversed.evaluation`, batch size 8; bounds are clustered by prompt.
3. Speed: tokens per second of the methods in turns on the same prompts, at batch sizes 1 and 8.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.text import Text
from transformers import PreTrainedTokenizerBase
from transformers.utils import logging

from benchmarks import packaged
from benchmarks.head_training import DONE, claim
from hf_diversed.cli.demo import TEXTS
from hf_diversed.cli.models import LOOKUP, load_pair
from hf_diversed.cli.rendering import results_table
from hf_diversed.cli.terminal import console
from hf_diversed.cli.training import call
from hf_diversed.evaluation import EvaluationSettings, evaluate
from hf_diversed.files import write_json
from hf_diversed.harness.decode import Decoder
from hf_diversed.harness.methods import Method, build_methods
from hf_diversed.harness.pair import Pair
from hf_diversed.harness.prompts import encode
from hf_diversed.harness.sampling import Sampling
from hf_diversed.method_names import DIVERSED, MethodName
from hf_diversed.provenance import data_digest, provenance, weights_digest
from hf_diversed.tasks import PromptedTask, Task, get_task, load_records


METHODS = ("lossless", "lenience:0.3", "static:0.5")


def main() -> None:
    arguments = _arguments()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    if arguments.head_steps and not arguments.data:
        raise ValueError("--head-steps needs --data, for example --data scitldr=FILE.")
    arguments.output.mkdir(parents=True, exist_ok=True)
    records = study(list(arguments.data) or ["rewrite"], arguments)
    settings = {name: value for name, value in vars(arguments).items() if name not in ("output", "report", "data")}
    settings["data"] = {task: Path(path).name for task, path in arguments.data.items()}
    report = {"settings": settings, "records": records, "provenance": provenance(arguments.seed, "cpu")}
    write_json(arguments.report or arguments.output / "real.json", report)
    _show(records)


# Training


def trained_head(task: str, folder: Path, arguments: argparse.Namespace) -> None:
    """Train a token-aware head and save it in a folder, unless the folder contains it.

    Raises:
        ValueError: if the folder contains a head with other settings.
    """
    iterations = min(4, arguments.head_steps)
    steps = str(max(1, arguments.head_steps // iterations // 2) * iterations)
    examples = str(arguments.train_examples)
    data, digest = _training_data(task, arguments)
    settings = [
        *("--target", packaged.resolve(arguments.target), "--draft", LOOKUP, "--dtype", arguments.dtype),
        *(*data, "--token-features", "true"),
        *("--max-steps", str(arguments.head_steps), "--num-iterations", str(iterations)),
        *("--eval-steps", steps, "--save-steps", steps, "--num-assistant-tokens", str(arguments.gamma)),
        *("--num-examples", examples, "--num-eval-examples", examples, "--reference-generations", "1"),
        *("--per-device-train-batch-size", "64", "--num-generations", "4", "--generation-batch-size", "16"),
        *("--per-device-eval-batch-size", "16", "--max-completion-length", str(arguments.max_new_tokens)),
        *("--temperature", str(arguments.temperature), "--seed", str(arguments.seed), "--resume", "true"),
        *("--use-cpu", "true", "--report-to", "none", "--output-dir", str(folder)),
    ]
    claim(folder, {"arguments": settings, "data": digest})
    if not (folder / DONE).exists():
        call(settings)


def _training_data(task: str, arguments: argparse.Namespace) -> tuple[list[str], str]:
    """Write a task's training records, all but the evaluated last ones. Return the arguments and a digest."""
    path = arguments.output / f"train-{task}.jsonl"
    with Path(arguments.data[task]).open(encoding="utf-8") as file:  # `splitlines` would also split inside texts
        rows = [line for line in file if line.strip()]
    rows = rows[: -arguments.num_examples]
    path.write_text("".join(rows), encoding="utf-8")
    return ["--task", task, "--data-file", str(path), "--chat", "true"], data_digest(rows)


# Quality


def study(tasks: list[str], arguments: argparse.Namespace) -> list[dict]:
    """Measure quality and speed of every method on every task."""
    methods = list(arguments.methods)
    if arguments.head_steps:
        head = arguments.output / LOOKUP / "head-token-aware"
        trained_head(tasks[0], head, arguments)
        methods.append(f"{DIVERSED}:{head}")
    pair = load_pair(packaged.resolve(arguments.target), LOOKUP, "cpu", chat=True, dtype=arguments.dtype)
    built = build_methods(methods)
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
        folder = arguments.output / LOOKUP / name
        quality = evaluate(pair, prompted, examples, build_methods(["target"]) + built, settings, output=folder)
        texts = [prompted.prompt(example) for example in examples[: arguments.timed_prompts]]
        seconds = timed(
            pair,
            texts,
            built,
            folder,
            sampling=Sampling(
                arguments.temperature, num_assistant_tokens=arguments.gamma, max_new_tokens=arguments.max_new_tokens
            ),
            batch_sizes=arguments.batch_sizes,
            repeats=arguments.repeats,
            seed=arguments.seed,
        )
        records.append({"task": name, "quality": quality, "seconds": seconds})
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
    seed: int = 0,
    packed: bool = False,
) -> list[dict]:
    """Return the timings of all methods in turns, by batch size. Finished batch sizes with the same settings are read
    from the folder.

    Args:
        packed: whether the models' linear layers are packed, which `weights_digest` does not contain.
    """
    rows = encode(pair.tokenizer, prompts, add_special_tokens=False)
    timed_methods = [*build_methods(["target"]), Method("upstream", upstream=True), *methods]
    records: list[dict] = []
    for size in batch_sizes:
        about = [rows, [(method.label, method.definition) for method in timed_methods], torch.get_num_threads()]
        about += [None if model is None else weights_digest(model) for model in (pair.target, pair.draft)]
        digest = data_digest([*about, repr(sampling), repeats, seed, packed, str(pair.target.device)])
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
    found = {method.label: [{"seconds": [], "tokens": []} for _ in range(repeats)] for method in methods}
    longest = max(batches, key=lambda rows: max(map(len, rows)))
    for method in methods:
        decoder(method, longest, 0)  # warm-up
    for turn in range(repeats):
        for number, batch in enumerate(batches):
            first = (turn + number) % len(methods)
            for method in methods[first:] + methods[:first]:
                decoded = decoder(method, batch, seed + turn * len(batches) + number)
                found[method.label][turn]["seconds"].append(decoded.seconds)
                found[method.label][turn]["tokens"].append(sum(map(len, decoded.tokens)))
    return {
        label: {
            "tokens_per_second": median(sum(turn["tokens"]) / sum(turn["seconds"]) for turn in turns),
            "turns": turns,
        }
        for label, turns in found.items()
    }


# Output


def _show(records: list[dict]) -> None:
    for record in records:
        # The speeds are printed below, from the timed turns.
        rows = [row | {"method": _short(row["method"]), "tokens_per_second": None} for row in record["quality"]]
        console.print(Text(record["task"], style="bold"), results_table(rows))
        for part in record["seconds"]:
            print(f"batch {part['batch_size']:<22}{'tokens/s':>12}{'vs target':>12}")
            for label, row in part["methods"].items():
                gain = row["tokens_per_second"] / part["methods"]["target"]["tokens_per_second"]
                print(f"{_short(label):<28}{row['tokens_per_second']:>12.1f}{f'{gain:.2f}x':>12}")


def _short(label: str) -> str:
    name = MethodName.parse(label)
    if name.name != DIVERSED or not name.parameters:
        return label
    return str(replace(name, parameters=Path(name.parameters).name))


def parse_files(text: str) -> dict[str, str]:
    """Parse "task=FILE,..."."""
    return dict(part.split("=", 1) for part in text.split(","))


def parse_numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--output", type=Path, required=True, help="Folder for finished parts, which are not repeated.")
    add("--target", default="smollm2", help="A name in benchmarks.packaged, or a chat model of the Hub.")
    add("--data", type=parse_files, default={}, help="task=FILE,...; a head is trained on the first.")
    add("--head-steps", type=int, default=0, help="Updates of a head; 0 trains none.")
    add("--train-examples", type=int, default=256, help="Training prompts of the head.")
    add("--num-examples", type=int, default=8)
    add("--samples-per-prompt", type=int, default=1)
    add("--max-new-tokens", type=int, default=64)
    add("--temperature", type=float, default=1.0)
    add("--gamma", type=int, default=5)
    add("--timed-prompts", type=int, default=4)
    add("--batch-sizes", type=parse_numbers, default=[1, 8])
    add("--repeats", type=int, default=1)
    add("--dtype", default="float32", help="Dtype of the models.")
    add("--report", type=Path, help="JSON file of the results; OUTPUT/real.json by default.")
    add("--methods", type=lambda text: text.split(","), default=list(METHODS))
    add("--threads", type=int)
    add("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()

"""Render the page of the Qwen2.5-Coder pair (`benchmarks/real_pair.py`) from `results/real/qwen-coder-*.json`."""

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from hf_diversed.evaluation.curves import read_records
from hf_diversed.formatting import number, with_bounds
from tools.markdown import folded, prompts, table


FOLDER = Path(__file__).parent.parent / "results" / "real"
PREFIX = "qwen-coder-"
TASKS = {"mbpp": "MBPP", "humaneval": "HumanEval", "gsm8k": "GSM8K"}
FILES = {"mbpp": "mbpp_974.jsonl", "humaneval": "HumanEval.jsonl", "gsm8k": "gsm8k_train_7473.jsonl"}
FILES["specbench"] = "specbench_480.jsonl"
METHODS = (
    "target",
    "lossless",
    "static:0.5",
    "lenience:0.3",
    *(f"spec_cascade:token_v3:{alpha}" for alpha in (0.8, 0.95)),
)
_DIFFERENCES = (*METHODS[2:], "lenience:0.1", "spec_cascade:token_v3:0.5")
_RUN = "python -m benchmarks.real_pair --target qwen-coder-1.5b --draft qwen-coder-0.5b --output build/real-pair"
_TIMED = ("--methods", "--gammas", "--batch-sizes", "--timed-prompts", "--repeats", "--threads")  # shown options
_PART, _BATCH = 50, 25  # prompts per part and per batch, the defaults of `benchmarks.real_pair`
Record = Mapping[str, Any]


def pair(folder: Path = FOLDER) -> str:
    """Return tables of all results, by task, with the command for each."""
    parts = []
    for path in _files(folder):
        parts.append(_task(path))
    categories = folder / f"{PREFIX}specbench.json"
    parts += [_categories(categories)] if categories.is_file() else []
    timed = sorted(folder.glob(f"{PREFIX}speed*.json"), key=lambda path: path.stem)
    parts += ["### Speed", *map(_speed, timed)] if timed else []
    missing = [name for name in [*FILES] if not (folder / f"{PREFIX}{name}.json").is_file()]
    parts += [f"Not measured yet: {', '.join(missing)}. `{_command(missing)}` measures them."] if missing else []
    return "\n\n".join(parts)


def brief(folder: Path = FOLDER, methods: Sequence[str] = METHODS) -> str:
    """Return a table of acceptance, cost and quality on the tasks for which all `methods` were measured.

    Heads that were measured on as many prompts of all these tasks are added. Methods that were measured on fewer
    prompts are marked.
    """
    complete = {}
    for task in TASKS:
        path = folder / f"{PREFIX}{task}.json"
        rows = {record["method"]: record for record in read_records(path)} if path.is_file() else {}
        if set(methods) <= rows.keys():
            complete[task] = rows
    most = {task: rows[methods[0]]["n"] for task, rows in complete.items()}
    heads = [
        name
        for name in next(iter(complete.values()))
        if name.startswith("diversed:")
        and all(name in rows and rows[name]["n"] == most[task] for task, rows in complete.items())
    ]
    header, cells = ["method"], {name: [f"`{name}`"] for name in methods}
    cells |= {name: [_head_label(name)] for name in heads}
    for task, rows in complete.items():
        header += [f"{TASKS[task]}: accepted", "tokens per target forward", rows[methods[0]]["metric"]]
        for name in cells:
            record = rows[name]
            fewer = "" if record["n"] == most[task] else f", {record['n']} prompts"
            cells[name] += [
                with_bounds(record, "acceptance_rate") + fewer,
                number(record["block_efficiency"]) if record["block_efficiency"] else "1.00",
                with_bounds(record, "quality"),
            ]
    first = next(iter(complete.values()))[methods[0]]
    sizes = ", ".join(f"{n} prompts of {TASKS[task]}" for task, n in most.items())
    setting = (
        f"{sizes}; temperature {first['temperature']:g}, {first['num_assistant_tokens']} draft tokens per round, "
        "95% intervals clustered by prompt."
    )
    return f"{table(header, cells.values())}\n\n{setting}"


def _head_label(method: str) -> str:
    """Return the label of `diversed:FOLDER/[token-]head-TASK`."""
    kind = "token head" if "/token-head-" in method else "mixture head"
    return f"`diversed`, {kind} trained on {TASKS[method.rpartition('-')[2]]}"


def _files(folder: Path) -> list[Path]:
    found = [
        folder / f"{PREFIX}{task}{suffix}.json" for task in TASKS for suffix in ("", "-t0", "-plain", "-t0-plain")
    ]
    return [path for path in found if path.is_file()]


def same_prompts(path: Path) -> list[Record]:
    """Return the records of the methods that were measured on all prompts of the first one."""
    records = read_records(path)
    return [record for record in records if record["n"] == records[0]["n"]]


def has_curve(path: Path) -> bool:
    """Return whether a plot is drawn: at least `_PART` prompts and two methods with draft tokens."""
    records = same_prompts(path)
    return records[0]["n"] >= _PART and sum(record["acceptance_rate"] is not None for record in records) >= 2


def _command(tasks: Sequence[str], options: str = "") -> str:
    return f"{_RUN} --data {','.join(f'{task}={FILES[task]}' for task in tasks)}{options}"


def _task(path: Path) -> str:
    """Render one task: acceptance, cost and quality, and plots."""
    records = read_records(path)
    first, source = records[0], json.loads(path.read_text())["provenance"]
    sizes = list(dict.fromkeys(record["n"] for record in records))
    has_sizes = len(sizes) > 1
    header = ["method", *["prompts"] * has_sizes, "accepted / drafted", "tokens per target forward"]
    header += [first["metric"], "below the target", "above the static curve"]
    rows = [
        [
            f"`{record['method']}`",
            *[str(record["n"])] * has_sizes,
            with_bounds(record, "acceptance_rate"),
            number(record["block_efficiency"]),
            with_bounds(record, "quality"),
            with_bounds(record, "quality_drop"),
            with_bounds(record, "static_gain"),
        ]
        for record in records
    ]
    plain = path.stem.endswith("-plain")
    temperature = f", temperature {first['temperature']:g}{', plain completion' if plain else ''}"
    title = f"{TASKS[first['task']]}{temperature}"
    setting = (
        f"{prompts(records)}{temperature}, {first['num_assistant_tokens']} draft tokens per round, at most "
        f"{first['max_new_tokens']} new tokens, target's mean {records[0]['mean_tokens']:.0f}; bfloat16 on "
        f"{source['device']}; 95% bounds clustered by prompt."
    )
    parts = [f"### {title}", setting, table(header, rows)]
    if compared := json.loads(path.read_text()).get("comparisons"):
        parts.append(folded("Differences on the same prompts", _comparisons(compared, first["metric"])))
    if has_curve(path):
        parts.append(
            f"![Quality against acceptance on {title}](assets/plots/frontier-{path.stem}.png)\n"
            f"![Accepted draft tokens by position on {title}](assets/plots/positions-{path.stem}.png)"
        )
    option = "" if first["temperature"] == 1 else f" --temperature {first['temperature']:g}"
    option += " --no-chat" if plain else ""
    option += "" if first["batch_size"] == _BATCH else f" --batch-size {first['batch_size']}"
    commands = [f"`{_command([first['task']], option + _selected(records, size))}`" for size in sizes]
    commands[1:] = [f"{command} ({size} prompts)" for command, size in zip(commands[1:], sizes[1:])]
    return "\n\n".join([*parts, f"Measured by {', and '.join(commands)}."])


def _selected(records: Sequence[Record], size: int) -> str:
    """Return the options that select the methods with `size` prompts, and these prompts."""
    methods = [record["method"] for record in records if record["n"] == size]
    option = f" --methods {','.join(methods)}"
    if size < _PART:
        return f"{option} --num-examples {size}"
    return option if size == _PART else f"{option} --parts {-(-size // _PART)}"


def _comparisons(compared: Sequence[Record], metric: str) -> str:
    """Return a table of the differences from lossless decoding, and of heads and SpecCascade from `METHODS`."""
    shown = [
        found
        for found in compared
        if found["minus"] == "lossless"
        or (found["minus"] in METHODS and found["method"].startswith(("diversed", "spec_cascade")))
    ]
    has_sizes = all("n" in found for found in shown)
    rows = [
        [
            f"`{found['method']}` minus `{found['minus']}`",
            *[str(found.get("n"))] * has_sizes,
            *(with_bounds(found, name) for name in ("acceptance_rate", "quality")),
        ]
        for found in shown
    ]
    header = ("difference", *["prompts"] * has_sizes, "accepted / drafted", metric)
    return table(header, rows)


def differences(folder: Path = FOLDER) -> str:
    """Return a table of the differences of training-free verifiers from lossless decoding, on MBPP and GSM8K."""
    header, cells = ["minus `lossless`"], {name: [f"`{name}`"] for name in _DIFFERENCES}
    for task in ("mbpp", "gsm8k"):
        content = json.loads((folder / f"{PREFIX}{task}.json").read_text())
        found = {row["method"]: row for row in content["comparisons"] if row["minus"] == "lossless"}
        header += [f"{TASKS[task]}: accepted", content["records"][0]["metric"]]
        for name in cells:
            cells[name] += [with_bounds(found[name], figure) for figure in ("acceptance_rate", "quality")]
    return table(header, cells.values())


def _categories(path: Path) -> str:
    """Return a table of Spec-Bench: acceptance and tokens per target pass of every category and turn."""
    records = json.loads(path.read_text())["records"]
    methods = [name for name in dict.fromkeys(record["method"] for record in records) if name != "target"]
    header = ["category", "questions", *(f"`{name}`: accepted, tokens per pass" for name in methods)]
    rows = []
    for category in dict.fromkeys(record["category"] for record in records):
        found = {record["method"]: record for record in records if record["category"] == category}
        cells = [
            f"{with_bounds(found[name], 'acceptance_rate')}, {number(found[name]['block_efficiency'])}"
            if name in found
            else "-"
            for name in methods
        ]
        rows.append([category.replace("-turn-", ", turn "), str(next(iter(found.values()))["n"]), *cells])
    scored = [record for record in records if record["quality"] is not None]
    quality = [
        [record["category"].removesuffix("-turn-1"), f"`{record['method']}`", with_bounds(record, "quality")]
        for record in scored
    ]
    first = records[0]
    setting = (
        f"Temperature {first['temperature']:g}, {first['num_assistant_tokens']} draft tokens per round, at most "
        f"{first['max_new_tokens']} new tokens; 95% bounds clustered by question."
    )
    parts = ["### Spec-Bench", setting, table(header, rows)]
    if quality:
        parts.append(folded("Scores against references", table(("category", "method", "score"), quality)))
    options = f" --methods {','.join(dict.fromkeys(record['method'] for record in records))}"
    options += f" --num-examples {max(record['n'] for record in records)} --max-new-tokens {first['max_new_tokens']}"
    return "\n\n".join([*parts, f"Measured by `{_command(['specbench'], options)}`."])


def _speed(path: Path) -> str:
    """Return a table of tokens per second over the target's, by task, draft length and batch size."""
    found = json.loads(path.read_text())
    rows = []
    for record in found["records"]:
        for part in record["seconds"]:
            for method, timed in part["methods"].items():
                gain = _speedup(part["methods"], method)
                cells = [TASKS[record["task"]], str(part["batch_size"]), str(record["num_assistant_tokens"])]
                rows.append([*cells, f"`{method}`", f"{timed['tokens_per_second']:.1f}", gain])
    header = ("task", "batch size", "draft tokens", "method", "tokens/s", "over `target`, same engine (range)")
    source = found["provenance"]
    words = source.get("argv", [])
    gammas = dict.fromkeys(str(record["num_assistant_tokens"]) for record in found["records"])
    given = _options(words) | {"--gammas": ",".join(gammas)}
    turns = len(found["records"][0]["seconds"][0]["methods"]["target"]["turns"])
    setting = (
        f"{source['device']}, {source['threads']} thread(s), {given.get('--timed-prompts', '8')} prompts in {turns} "
        "turns; methods alternate batch by batch. `upstream` is transformers' assisted generation."
    )
    tasks = list(dict.fromkeys(record["task"] for record in found["records"]))
    shown = [f"{name} {given[name]}" for name in _TIMED if name in given]
    options = " ".join(["", "--seconds", *shown, *["--eager-only"] * ("--eager-only" in words)])
    return f"{setting}\n\n{table(header, rows)}\n\nMeasured by `{_command(tasks, options)}`."


def _speedup(measured: Mapping[str, Any], method: str) -> str:
    """Return tokens per second over those of the target with the same engine, as median and range of the turns."""
    reference = measured["target, compiled" if method.endswith(", compiled") else "target"]["turns"]
    ratios = [
        turn["tokens"] / turn["seconds"] / (plain["tokens"] / plain["seconds"])
        for turn, plain in zip(measured[method]["turns"], reference)
    ]
    return f"{median(ratios):.2f}x ({min(ratios):.2f} to {max(ratios):.2f})"


def speedups(methods: Sequence[str], folder: Path = FOLDER) -> list[str]:
    """Return the setting of the first measurement at batch size 1, and the speedup of each method."""
    measured = json.loads((folder / f"{PREFIX}speed.json").read_text())
    record, prompts = measured["records"][0], _options(measured["provenance"]["argv"]).get("--timed-prompts", "8")
    (part,) = (part for part in record["seconds"] if part["batch_size"] == 1)
    setting = f"{TASKS[record['task']]}, the pair above, {prompts} prompts"
    return [setting, *(_speedup(part["methods"], method) for method in methods)]


def sampling_check(folder: Path = FOLDER) -> str:
    """Return a table of the tokens' mean -log p - H under the target, by method (`benchmarks/sampling_check.py`)."""
    found = json.loads((folder / "sampling-check.json").read_text())
    rows = [
        [
            f"`{row['method']}`",
            f"{row['n']} of {row['n'] + row['left_out']}",
            f"{row['num_tokens']:,}",
            f"{row['excess_per_token']:.4f} ± {row['standard_error']:.4f}",
            f"{row['z']:.2f}",
        ]
        for row in found["records"]
    ]
    header = ("method", "completions", "tokens", "mean of -log p(token) - H(p) ± standard error", "z")
    methods = ",".join(row["method"] for row in found["records"])
    command = "python -m benchmarks.sampling_check --target qwen-coder-1.5b --output build/real-pair"
    command += f" --data {found['task']}={FILES[found['task']]} --methods {methods}"
    return f"{table(header, rows)}\n\nMeasured by `{command} --parts {found['parts']}`."


def _options(words: Sequence[str]) -> dict[str, str]:
    """Return the options of a command line with the words after them."""
    return {name: value for name, value in pairwise(words) if name.startswith("--")}

"""Render the study of SmolLM2 (`benchmarks/real.py`) from `results/real/`."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from hf_diversed.formatting import number, with_bounds
from hf_diversed.harness.methods import DIVERSED, MethodName
from tools.markdown import prompts, table


FURTHER = "lenience-scitldr.json"


def _command(name: str, task: str, options: str) -> str:
    """Return the command of a study; both tasks read the same file of texts."""
    return (
        f"python -m benchmarks.real --output build/{name} --data {task}=scitldr_800.jsonl --temperature 0.3 "
        f"--gamma 10 --dtype bfloat16 --threads 1 --num-examples 96 --batch-sizes 1 {options} "
        f"--report results/real/{name}.json"
    )


COMMANDS = {
    "lookup-scitldr.json": _command(
        "lookup-scitldr",
        "scitldr",
        "--max-new-tokens 64 --head-steps 16 --heads token-aware --train-examples 32 --timed-prompts 6 --repeats 3",
    ),
    FURTHER: _command(
        "lenience-scitldr",
        "scitldr",
        "--max-new-tokens 64 --methods lenience:0.05 --eager-only --timed-prompts 6",
    ),
    "lookup-rewrite.json": _command(
        "lookup-rewrite", "rewrite", "--max-new-tokens 160 --samples-per-prompt 3 --timed-prompts 4 --repeats 2"
    ),
}
_DRAFTS = {"lookup": "prompt lookup", "draft": "a draft model"}
_NAMES = {"target": "`target`", "lossless": "`lossless`", "upstream": "transformers' assisted generation"}
_HEADS = {"head-token-aware": "a token head", "head-mixture": "a mixture head"}
_METRICS = {"rouge2": "ROUGE-2"}
_PLAIN, _COMPILED = "target", ", compiled"
Record = Mapping[str, Any]


def real(folder: Path) -> Iterator[tuple[str, str]]:
    """Return heading and text of every part that has results, by task and source of draft tokens."""
    for name in COMMANDS:
        path = folder / name
        if path.is_file():
            found = json.loads(path.read_text())
            more = ", smaller lenience" if name == FURTHER else ""
            for record in found["records"]:
                heading = f"{record['task']}, {_DRAFTS[record['regime']]}{more}"
                yield heading, _study(name, found, record)


def gains(path: Path, methods: Sequence[str]) -> list[str]:
    """Return tokens per second over target decoding at batch size 1, eager, of the first part of a file."""
    single = json.loads(path.read_text())["records"][0]["seconds"][0]["methods"]
    return [_gain(single, method, _PLAIN) for method in methods]


def _study(name: str, found: Record, record: Record) -> str:
    """Return a table of quality, acceptance, and tokens per second over target decoding on the same engine."""
    first, source = record["quality"][0], found["provenance"]
    measured = {row["method"]: row for row in record["quality"]}
    timed = {part["batch_size"]: part["methods"] for part in record["seconds"]}
    engines = [(size, suffix) for size in timed for suffix in ("", _COMPILED) if _PLAIN + suffix in timed[size]]
    header = ["method", "accepted / drafted", _METRICS[first["metric"]], "below the target", "tokens per round"]
    header += [f"speedup{suffix}, batch {size}" for size, suffix in engines]
    rows = []
    for method in dict.fromkeys([*measured, *(label for part in timed.values() for label in part)]):
        if method.endswith(_COMPILED):
            continue
        row = measured.get(method)
        cells = ["-"] * 4
        if row is not None:
            cells = [with_bounds(row, name) for name in ("acceptance_rate", "quality", "quality_drop")]
            cells.append(number(row["block_efficiency"]))
        gains = [_gain(timed[size], method + suffix, _PLAIN + suffix) for size, suffix in engines]
        rows.append([_name(method), *cells, *gains])
    settings = found["settings"]
    setting = (
        f"SmolLM2-135M-Instruct in {settings['dtype']} on {source['device']}, {source['threads']} thread(s); "
        f"{prompts(record['quality'])}, temperature {first['temperature']:g}, {first['num_assistant_tokens']} draft "
        f"tokens per round at most, {first['max_new_tokens']} new tokens; 95% intervals clustered by prompt. Speedup: "
        f"tokens per second over those of the target alone with the same engine, {settings['timed_prompts']} prompts, "
        f"median (range) of {settings['repeats']} alternating runs."
    )
    parts = [setting, table(header, rows), f"Measured by `{COMMANDS[name]}`."]
    if name == "lookup-scitldr.json":
        parts.insert(2, "![Speed against acceptance on scitldr](assets/plots/speed-smollm2.png)")
    return "\n\n".join(parts)


def _gain(methods: Record, label: str, plain: str) -> str:
    if label not in methods:
        return "-"
    ratios = [
        (turn["tokens"] / turn["seconds"]) / (reference["tokens"] / reference["seconds"])
        for turn, reference in zip(methods[label]["turns"], methods[plain]["turns"])
    ]
    spread = f" ({min(ratios):.2f} to {max(ratios):.2f})" if len(ratios) > 1 else ""
    return f"{median(ratios):.2f}x{spread}"


def _name(method: str) -> str:
    name = MethodName.parse(method)
    if name.name == DIVERSED and name.parameters:
        return _HEADS[Path(name.parameters).name]
    return _NAMES.get(method, f"`{method}`")

"""Time compiled rounds on the embedded pair against assisted decoding in transformers.

    python -m benchmarks.compiled --output results/compiled.json

Summarizes `python -m benchmarks.rounds` with `--methods upstream:0.7,compiled:static:0.7`. The methods use the same
draft length and run in turns, in one process per number of threads. Figures are medians over the turns, with
quartiles. At batch size 1 rounds are compared with upstream's directly; larger batches are compared in tokens per
second because upstream supports only batch size 1.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from hf_diversed.files import write_json


OURS = "compiled:static"


def main() -> None:
    arguments = _arguments()
    if arguments.threads_here:
        write_json(arguments.output, _measure(arguments))
        return
    reports = {str(threads): _measure_apart(threads, arguments) for threads in _numbers(arguments.threads)}
    record = {
        "weight": arguments.weight,
        "num_assistant_tokens": arguments.gamma,
        "max_new_tokens": arguments.max_new_tokens,
        "repeats": arguments.repeats,
        "by_threads": {threads: summary(report["records"], arguments) for threads, report in reports.items()},
    }
    sources = {"provenance": {threads: report["provenance"] for threads, report in reports.items()}}
    write_json(arguments.output, record | sources)
    print(json.dumps(record, indent=2))


def _measure_apart(threads: int, arguments: argparse.Namespace) -> dict:
    """Measure in a separate process, because compiled code and thread pools depend on the number of threads."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "report.json"
        added = ["--threads-here", str(threads), "--output", str(output)]
        environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
        command = [sys.executable, "-m", "benchmarks.compiled", *sys.argv[1:], *added]
        subprocess.run(command, env=environment, check=True)
        report: dict = json.loads(output.read_text())
    return report


def _measure(arguments: argparse.Namespace) -> dict:
    import torch
    from transformers.utils import logging

    from benchmarks.rounds import BenchmarkSettings, benchmark
    from hf_diversed import load_demo_pair
    from hf_diversed.tasks import get_task, load_records

    logging.set_verbosity_error()
    torch.set_num_threads(arguments.threads_here)
    pair, batch_sizes = load_demo_pair(), _numbers(arguments.batch_sizes)
    texts = [record["prompt"] for record in load_records(get_task("math"), "test", max(batch_sizes), arguments.seed)]
    settings = BenchmarkSettings(
        batch_sizes=batch_sizes,
        context_lengths=(0,),
        draft_lengths=(arguments.gamma,),
        max_new_tokens=arguments.max_new_tokens,
        repeats=arguments.repeats,
        seed=arguments.seed,
        backend=arguments.backend,
    )
    weight = f":{arguments.weight}"
    prompts = pair.tokenizer(texts)["input_ids"]
    methods = ["upstream" + weight, OURS + weight]
    return benchmark(pair.target, pair.draft, methods, settings, prompts=prompts)


def summary(records: list[dict], arguments: argparse.Namespace) -> dict:
    ours = {str(row["batch_size"]): row for row in records if row["method"] == f"{OURS}:{arguments.weight}"}
    if any(row["engine"] != "compiled" for row in ours.values()):
        raise RuntimeError("a compiled method ran uncompiled, or only its forward passes were compiled")
    one = ours["1"]
    return {
        "round_cost_ratio": rounded(one["ratios"]["upstream"]["ms_per_round"]),
        "throughput_ratio_by_batch": {
            size: rounded(row["ratios"]["upstream"]["tokens_per_second"]) for size, row in ours.items()
        },
        "acceptance_rate": round(one["acceptance_rate"], 4),
    }


def rounded(spread: dict) -> dict:
    """Return a median and quartiles with four decimals."""
    return {"median": round(spread["median"], 4), "quartiles": [round(value, 4) for value in spread["quartiles"]]}


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("results/compiled.json"))
    parser.add_argument("--repeats", type=int, default=21)
    parser.add_argument("--weight", type=float, default=0.7)
    parser.add_argument("--gamma", type=int, default=5)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument(
        "--batch-sizes", default="1,2,4,8,16", help="In ascending order from 1; finished rows leave the batch."
    )
    parser.add_argument("--threads", default="1,2")
    parser.add_argument(
        "--backend", default="inductor", help='Backend of torch.compile; "eager" only traces, for trials.'
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads-here", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if _numbers(arguments.batch_sizes)[0] != 1:
        parser.error(f"--batch-sizes must begin with 1, where upstream runs, got {arguments.batch_sizes}.")
    return arguments


if __name__ == "__main__":
    main()

"""Time our loop against assisted decoding in transformers on the embedded pair.

    python -m benchmarks.against_upstream --output results/against_upstream.json

Summarizes `python -m benchmarks.rounds --methods upstream:0.7,static:0.7`. Both loops run in one process with the same
ensemble weight and draft length. At batch size 1 they sample the same tokens from one seed, so seconds per round are
directly comparable. Larger batches are compared in tokens per second.
"""

import argparse
import json
from pathlib import Path

import torch
from transformers.utils import logging

from benchmarks.compiled import rounded
from benchmarks.rounds import BenchmarkSettings, benchmark
from hf_diversed import load_demo_pair
from hf_diversed.tasks import get_task, load_records


BATCH_SIZES = (1, 4, 8)


def main() -> None:
    arguments = _arguments()
    logging.set_verbosity_error()
    Path(arguments.output).parent.mkdir(parents=True, exist_ok=True)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    pair = load_demo_pair()
    texts = [record["prompt"] for record in load_records(get_task("math"), "test", max(BATCH_SIZES), arguments.seed)]
    settings = BenchmarkSettings(
        batch_sizes=BATCH_SIZES,
        context_lengths=(0,),
        draft_lengths=(arguments.gamma,),
        max_new_tokens=arguments.max_new_tokens,
        repeats=arguments.repeats,
        seed=arguments.seed,
        breakdown=False,
    )
    methods = [f"{name}:{arguments.weight}" for name in ("upstream", "static")]
    report = benchmark(pair.target, pair.draft, methods, settings, prompts=pair.tokenizer(texts)["input_ids"])
    record = _summary(report["records"], arguments) | {"provenance": report["provenance"]}
    Path(arguments.output).write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps({key: value for key, value in record.items() if key != "provenance"}, indent=2))


def _summary(records: list[dict], arguments) -> dict:
    """Return the ratios of our loop to upstream's: median and quartiles over the turns."""
    ours = {row["batch_size"]: row for row in records if row["implementation"] == "hf_diversed"}
    if not ours[1]["same_tokens_as_upstream"]:
        raise RuntimeError("the loops drew different tokens from one seed: their rounds cannot be compared")
    largest = ours[max(BATCH_SIZES)]
    return {
        "weight": arguments.weight,
        "num_assistant_tokens": arguments.gamma,
        "max_new_tokens": arguments.max_new_tokens,
        "repeats": arguments.repeats,
        "round_cost_ratio": rounded(ours[1]["ratios"]["upstream"]["seconds"]),
        "acceptance_rate": round(largest["acceptance_rate"], 4),
        "block_efficiency": round(largest["block_efficiency"], 4),
        "throughput_ratio_by_batch": {
            str(size): rounded(row["ratios"]["upstream"]["tokens_per_second"]) for size, row in ours.items()
        },
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default="results/against_upstream.json")
    parser.add_argument("--repeats", type=int, default=21)
    parser.add_argument("--weight", type=float, default=0.7)
    parser.add_argument("--gamma", type=int, default=5)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()

"""Measure how often `hf-diversed calibrate` keeps its bound on the quality drop, on an embedded head.

python -m benchmarks.calibration

A pool of prompts is decoded once with the target alone and at every strictness. Finished batches are kept in
build/calibration, so an interrupted run can continue. The pool is treated as the population of prompts, so the true
drop at each strictness is known. Each simulated calibration draws prompts from the pool with replacement and selects a
strictness as `hf-diversed calibrate` does. It fails if it finds a strictness whose true drop exceeds the stated
bound. Writes results/calibration.json.
"""

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from transformers.utils import logging

from hf_diversed import load_demo_pair
from hf_diversed.evaluation import EvaluationSettings, evaluate, read_results
from hf_diversed.evaluation.calibration import STRICTNESSES, p_value, paired_drops, rewards
from hf_diversed.files import write_json
from hf_diversed.formatting import PLAIN
from hf_diversed.provenance import module_digest, provenance
from hf_diversed.tasks import get_task, load_records


def main() -> None:
    arguments = _arguments()
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    pair, task = load_demo_pair(), get_task(arguments.task)
    settings = EvaluationSettings(
        num_examples=arguments.num_examples,
        samples_per_prompt=arguments.samples_per_prompt,
        seed=arguments.seed,
        batch_size=arguments.batch_size,
        max_new_tokens=arguments.max_new_tokens,
        split="test",
    )
    examples = load_records(task, "test", settings.num_examples, settings.seed)
    labels = [PLAIN, *(f"diversed@{strictness:g}" for strictness in STRICTNESSES)]
    head, folder = pair.heads[arguments.task], Path(arguments.folder)
    measured = evaluate(pair, task, examples, labels, settings, head=head, output=folder)
    results = read_results(folder)
    pool = np.stack([paired_drops(rewards(results, PLAIN), rewards(results, label)) for label in labels[1:]])
    true_drops = pool.mean(axis=1)
    report = {
        "task": arguments.task,
        "metric": task.metric,
        "head": module_digest(head),
        "calibrations": arguments.calibrations,
        "prompts_per_calibration": arguments.prompts_per_calibration,
        "confidence": arguments.confidence,
        "pool": [
            {"strictness": strictness, "drop": float(drop), "acceptance_rate": record["acceptance_rate"]}
            for strictness, drop, record in zip(STRICTNESSES, true_drops, measured[1:])
        ],
        "stated": simulate(pool, arguments.max_drops, arguments),
        "provenance": provenance(arguments.seed, pair.target.device)
        | {"evaluation": results.header, "sessions": results.sessions},
    }
    write_json(arguments.output, report)
    for record in report["stated"]:
        print(json.dumps(record))


def simulate(pool: np.ndarray, max_drops: Sequence[float], arguments: argparse.Namespace) -> list[dict]:
    """Simulate calibrations on prompts drawn from a pool and summarize them by stated bound.

    Args:
        pool: `[len(STRICTNESSES), P]`, the drop of every prompt of the pool at every strictness.
    """
    draws, true_drops = np.random.default_rng(arguments.seed), pool.mean(axis=1)
    passed: dict[float, Counter[int]] = {max_drop: Counter() for max_drop in max_drops}
    for _ in range(arguments.calibrations):
        drawn = pool[:, draws.integers(pool.shape[1], size=arguments.prompts_per_calibration)]
        for max_drop, counts in passed.items():
            failed = (p_value(drops, max_drop) > 1.0 - arguments.confidence for drops in drawn)
            counts[next((place for place, fails in enumerate(failed) if fails), len(drawn))] += 1
    return [
        {
            "max_drop": max_drop,
            "kept": 1.0 - _wrong(counts, true_drops, max_drop) / arguments.calibrations,
            "found": 1.0 - counts[0] / arguments.calibrations,
        }
        for max_drop, counts in passed.items()
    ]


def _wrong(counts: Counter[int], true_drops: np.ndarray, max_drop: float) -> int:
    """Return the number of calibrations that found a strictness whose true drop exceeds the bound."""
    return sum(times for count, times in counts.items() if (true_drops[:count] > max_drop).any())


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("results/calibration.json"))
    parser.add_argument("--folder", default="build/calibration", help="Folder for finished batches.")
    parser.add_argument("--task", default="math")
    parser.add_argument("--num-examples", type=int, default=600, help="Prompts of the pool.")
    parser.add_argument("--samples-per-prompt", type=int, default=2)
    parser.add_argument("--calibrations", type=int, default=300)
    parser.add_argument("--prompts-per-calibration", type=int, default=600)
    parser.add_argument("--max-drops", type=float, nargs="+", default=[0.01, 0.02, 0.05])
    parser.add_argument("--confidence", type=float, default=0.95)
    parser.add_argument("--batch-size", type=int, default=100)
    parser.add_argument("--max-new-tokens", type=int, default=None)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()

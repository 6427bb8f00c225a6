"""Time our loop against upstream's assisted decoding on the embedded pair: same weight, same draft
length, one process.

    python benchmarks/against_upstream.py --output results/against_upstream.json

Runs alternate and figures are ratios, because machines are noisy. At batch 1 both loops draw the same tokens from one
seed, so seconds per round compare directly; throughput at larger batches is in tokens per second.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from transformers.utils import logging

from hf_diversed import SpeculativeStats, StaticEnsembleVerifier, load_demo_pair, record_stats
from hf_diversed.cli.comparison import constant_draft
from hf_diversed.corpus import held_out_examples
from hf_diversed.provenance import provenance


BATCH_SIZES = (1, 4, 8)


def main() -> None:
    arguments = _arguments()
    logging.set_verbosity_error()
    Path(arguments.output).parent.mkdir(parents=True, exist_ok=True)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    pair = load_demo_pair()
    prompts = [example.prompt for example in held_out_examples("math", max(BATCH_SIZES), arguments.seed)]
    runs = {"upstream": _upstream(pair, prompts, arguments)}
    runs |= {f"ours, batch {size}": _ours(pair, prompts[:size], arguments) for size in BATCH_SIZES}
    samples: dict[str, list[tuple[float, list]]] = {name: [] for name in runs}
    with record_stats() as stats:
        for repeat in range(arguments.repeats + 1):
            for name, run in runs.items():
                torch.manual_seed(arguments.seed + repeat)
                began = time.perf_counter()
                tokens = run()
                if repeat > 0:  # the first turn warms up
                    samples[name].append((time.perf_counter() - began, tokens))
    record = _record(samples, stats, arguments) | {"provenance": provenance(arguments.seed)}
    Path(arguments.output).write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps({key: value for key, value in record.items() if key != "provenance"}, indent=2))


def _record(samples, stats: SpeculativeStats, arguments) -> dict:
    """Per repeat, ours over upstream's; then the median and the middle half over repeats."""
    pairs = list(zip(samples["ours, batch 1"], samples["upstream"]))
    if any(ours[1] != theirs[1] for ours, theirs in pairs):
        raise RuntimeError("the loops drew different tokens from one seed: their rounds cannot be compared")
    throughput = {
        str(size): _spread([_rate(a) / _rate(b) for a, b in zip(samples[f"ours, batch {size}"], samples["upstream"])])
        for size in BATCH_SIZES
    }
    return {
        "weight": arguments.weight,
        "num_assistant_tokens": arguments.gamma,
        "max_new_tokens": arguments.max_new_tokens,
        "repeats": arguments.repeats,
        "round_cost_ratio": _spread([ours[0] / theirs[0] for ours, theirs in pairs]),
        "acceptance_rate": round(stats.acceptance_rate, 4),
        "block_efficiency": round(stats.block_efficiency, 4),
        "throughput_ratio_by_batch": throughput,
    }


def _ours(pair, prompts, arguments):
    inputs = pair.tokenizer(prompts, return_tensors="pt", padding=True)
    verifier = StaticEnsembleVerifier(arguments.weight)

    def run() -> list:
        out = pair.target.generate(
            **inputs,
            assistant_model=pair.draft,
            verifier=verifier,
            num_assistant_tokens=arguments.gamma,
            **_sampling(arguments),
        )
        return _tokens(pair, inputs, out)

    return run


def _upstream(pair, prompts, arguments):
    inputs = pair.tokenizer(prompts[:1], return_tensors="pt")
    draft = constant_draft(pair.draft, arguments.gamma)

    def run() -> list:
        out = pair.target.generate(
            **inputs, assistant_model=draft, assistant_ensemble_weight=arguments.weight, **_sampling(arguments)
        )
        return _tokens(pair, inputs, out)

    return run


def _sampling(arguments) -> dict:
    return {
        "max_new_tokens": arguments.max_new_tokens,
        "do_sample": True,
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
    }


def _tokens(pair, inputs, out) -> list[list[int]]:
    """Generated ids per row, without pads."""
    rows = out[:, inputs["input_ids"].shape[1] :].tolist()
    return [[token for token in row if token != pair.tokenizer.pad_token_id] for row in rows]


def _rate(sample: tuple[float, list]) -> float:
    return sum(map(len, sample[1])) / sample[0]


def _spread(values: list[float]) -> dict:
    low, median, high = statistics.quantiles(values, n=4)
    return {"median": round(median, 4), "quartiles": [round(low, 4), round(high, 4)]}


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

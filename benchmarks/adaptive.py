"""Time adaptive against constant draft lengths on the embedded tasks.

    python -m benchmarks.adaptive --output results/adaptive.json

Setting: batch size 1, one thread, one process. The methods decode each prompt in turn from the same seed. Each method
first decodes one untimed prompt, which includes compilation with `--engine compiled`. The timed runs include the
rounds in which the adaptive schedule explores other lengths.
"""

import argparse
import itertools
import json
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from transformers import CompileConfig
from transformers.utils import logging

from benchmarks.turns import spread, take_turns
from hf_diversed import load_demo_pair
from hf_diversed.harness.decode import timed_call
from hf_diversed.harness.pair import Pair
from hf_diversed.outputs import SpeculativeStats
from hf_diversed.provenance import provenance
from hf_diversed.tasks import get_task, load_records


TASKS = ("math", "summary", "code")
CONSTANT = (1, 2, 3, 5, 8)
ADAPTIVE = "adaptive"
METHODS = (*map(str, CONSTANT), ADAPTIVE)
ENGINES = {"eager": {}, "compiled": {"cache_implementation": "static", "compile_config": CompileConfig()}}


@dataclass
class Measured:
    """Totals over all prompts, one entry per repeat."""

    tokens: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    rounds: int = 0
    drafted: int = 0

    def add(self, stats: SpeculativeStats, seconds: float, is_new: bool) -> None:
        """Add a call to the last repeat, or to a new one."""
        if is_new:
            self.tokens.append(0)
            self.seconds.append(0.0)
        self.tokens[-1] += stats.num_emitted
        self.seconds[-1] += seconds
        self.rounds += stats.num_rounds
        self.drafted += stats.num_drafted

    @property
    def rates(self) -> list[float]:
        return [tokens / seconds for tokens, seconds in zip(self.tokens, self.seconds)]

    @property
    def rate(self) -> float:
        return sum(self.tokens) / sum(self.seconds)


def main() -> None:
    arguments = _arguments()
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    Path(arguments.output).parent.mkdir(parents=True, exist_ok=True)
    pair = load_demo_pair()
    records = []
    for task, verifier in itertools.product(TASKS, (arguments.permissive, "lossless")):
        records.append({"task": task, "verifier": verifier, **_summary(_measure(pair, task, verifier, arguments))})
        print(json.dumps(records[-1]), flush=True)
    settings = {name: value for name, value in vars(arguments).items() if name != "output"}
    report = {**settings, "records": records, "provenance": provenance(arguments.seed, pair.target.device)}
    Path(arguments.output).write_text(json.dumps(report, indent=2) + "\n")


def _measure(pair: Pair, task: str, verifier: str, arguments: argparse.Namespace) -> dict[str, Measured]:
    records = load_records(get_task(task), "test", arguments.num_examples + 1, arguments.seed)
    warm_up, *prompts = (pair.tokenizer(record["prompt"], return_tensors="pt") for record in records)
    measured = {method: Measured() for method in METHODS}
    for method in METHODS:
        _decode(pair, warm_up, verifier, method, arguments, seed=arguments.seed)

    def call(method: str, turn: int):
        return _decode(pair, prompts[turn % len(prompts)], verifier, method, arguments, arguments.seed + turn)

    calls = {method: partial(call, method) for method in METHODS}
    for turn, results in enumerate(take_turns(calls, arguments.repeats * len(prompts))):
        for method, (stats, seconds) in results.items():
            measured[method].add(stats, seconds, is_new=turn % len(prompts) == 0)
    return measured


def _decode(pair: Pair, prompt, verifier: str, method: str, arguments: argparse.Namespace, seed: int):
    adaptive = method == ADAPTIVE
    output, _, _ = timed_call(
        pair.target,
        seed,
        **prompt,
        **ENGINES[arguments.engine],
        assistant_model=pair.draft,
        verifier=verifier,
        num_assistant_tokens=5 if adaptive else int(method),
        num_assistant_tokens_schedule=ADAPTIVE if adaptive else "constant",
        max_new_tokens=arguments.max_new_tokens,
        do_sample=True,
        top_k=0,
    )
    return output.stats


def _summary(measured: dict[str, Measured]) -> dict:
    """Return tokens per CPU second, and the adaptive schedule's ratio to the best constant length and to length 5."""
    best = max(map(str, CONSTANT), key=lambda method: measured[method].rate)
    return {
        "tokens_per_second": {method: round(each.rate, 1) for method, each in measured.items()},
        "drafted_per_round": round(measured[ADAPTIVE].drafted / measured[ADAPTIVE].rounds, 2),
        "best_constant": int(best),
        "over_best_constant": _ratio(measured[ADAPTIVE], measured[best]),
        "over_5": _ratio(measured[ADAPTIVE], measured["5"]),
    }


def _ratio(measured: Measured, other: Measured) -> dict:
    quartiles = spread([a / b for a, b in zip(measured.rates, other.rates)])["quartiles"]
    return {"ratio": round(measured.rate / other.rate, 4), "quartiles": [round(value, 4) for value in quartiles]}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default="results/adaptive.json")
    parser.add_argument("--engine", choices=ENGINES, default="eager")
    parser.add_argument("--permissive", default="static:0.3", help="Verifier to compare besides lossless.")
    parser.add_argument("--num-examples", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()

"""Measure the CPU time of a round with a head that reads `lookahead` and `target_after`, over that of lossless rounds.

    python -m benchmarks.head_costs

The models have random weights and hidden size 1024. Both verifiers decode the same prompt in turn. Each turn compares
the medians over the rounds of a call, without prefill. Writes results/head-costs.json.
"""

import argparse
import time
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median

import torch
from transformers.utils import logging

from benchmarks.rounds import random_model
from benchmarks.rounds.timing import at_round_ends
from benchmarks.turns import spread, take_turns
from hf_diversed import DiversedHead, DiversedHeadConfig, DiversedVerifier, LosslessVerifier
from hf_diversed.files import write_json
from hf_diversed.harness.compiled import default_compile_config
from hf_diversed.provenance import provenance
from hf_diversed.verifiers import Verifier


SHAPES = "embedded-1024-target", "embedded-1024-draft"
INPUTS = {"features": "distribution", "token_features": True, "lookahead": 4, "target_after": True}
PROMPT_LENGTH, NEW_TOKENS = 128, 96


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", nargs="+", choices=("eager", "compiled"), default=["eager", "compiled"])
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--output", type=Path, default=Path("results/head-costs.json"))
    options = parser.parse_args()
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    target, draft = (random_model(shape) for shape in SHAPES)
    records = [measure(target, draft, engine, options.turns) for engine in options.engine]
    write_json(options.output, {"records": records, "provenance": provenance(0)})


def measure(target, draft, engine: str, turns: int) -> dict:
    """Return median and quartiles of the extra time per round over lossless verification, as a fraction."""
    torch.manual_seed(0)
    ids = torch.randint(4, target.config.vocab_size, (1, PROMPT_LENGTH))
    compiled = {"compile_config": default_compile_config(torch.device("cpu")), "cache_implementation": "static"}
    head = DiversedHead(DiversedHeadConfig.for_pair(target, draft, **INPUTS)).eval()

    def ms_per_round(verifier: Verifier, seed: int) -> float:
        torch.manual_seed(seed)
        times: list[float] = []
        with at_round_ends(lambda: times.append(time.thread_time())):
            target.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                assistant_model=draft,
                verifier=verifier,
                num_assistant_tokens=5,
                do_sample=True,
                top_k=0,
                max_new_tokens=NEW_TOKENS,
                eos_token_id=None,
                **(compiled if engine == "compiled" else {}),
            )
        return 1000 * median(after - before for before, after in pairwise(times))

    verifiers: dict[str, Verifier] = {"lossless": LosslessVerifier(), "head": DiversedVerifier(head)}
    calls = {name: partial(ms_per_round, verifier) for name, verifier in verifiers.items()}
    for call in calls.values():  # compiles and warms up
        call(0)
    times = [{name: one.result for name, one in results.items()} for results in take_turns(calls, turns)]
    found = spread([each["head"] / each["lossless"] - 1 for each in times])
    record = {
        "engine": engine,
        "extra": [found["median"], *found["quartiles"]],
        "lossless_ms": median(each["lossless"] for each in times),
        "turns": turns,
    }
    print(record, flush=True)
    return record


if __name__ == "__main__":
    main()

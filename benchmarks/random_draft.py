"""Measure the CPU time of the adaptive schedule with a random draft model, relative to the target alone.

python -m benchmarks.random_draft

Both decode the same prompts of the embedded pair in turn, by the same engine, for a fixed number of tokens. Writes
results/random-draft.json.
"""

import argparse
import itertools
from functools import partial
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from benchmarks.turns import spread, take_turns, timed
from hf_diversed import load_demo_pair
from hf_diversed.files import write_json
from hf_diversed.harness.compiled import default_compile_config
from hf_diversed.harness.decode import timed_call
from hf_diversed.provenance import provenance
from hf_diversed.tasks import get_task, load_records


NEW_TOKENS = 96
ENGINES = {
    "eager": {},
    "compiled": {
        "cache_implementation": "static",
        "compile_config": default_compile_config(torch.device("cpu")),
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--output", type=Path, default=Path("results/random-draft.json"))
    options = parser.parse_args()
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    pair = load_demo_pair()
    pair.target.generation_config.eos_token_id = pair.target.generation_config.pad_token_id = None
    torch.manual_seed(0)
    draft = AutoModelForCausalLM.from_config(pair.draft.config).eval()
    prompts = [record["prompt"] for record in load_records(get_task("math"), "test", 64)]
    padded = pair.tokenizer(prompts, return_tensors="pt", padding=True)  # one width, which is compiled once
    records = []
    for engine, size in itertools.product(options.engine, (1, 8)):
        inputs = [
            {name: values[at : at + size] for name, values in padded.items()} | ENGINES[engine]
            for at in range(0, len(prompts), size)
        ]
        measured = measure(pair.target, draft, inputs, options.turns)
        records.append({"engine": engine, "batch_size": size, **measured})
        print(records[-1], flush=True)
    write_json(options.output, {"records": records, "provenance": provenance(0)})


def measure(target, draft, inputs, turns: int) -> dict:
    """Return ratios of CPU seconds."""

    def decode(options: dict, turn: int):
        sampling = {"do_sample": True, "top_k": 0, "max_new_tokens": NEW_TOKENS}
        return timed_call(target, turn, **inputs[turn % len(inputs)], **sampling, **options)[0]

    drafting = {"assistant_model": draft, "verifier": "lossless", "num_assistant_tokens_schedule": "adaptive"}
    calls = {"drafted": partial(decode, drafting), "alone": partial(decode, {})}
    first = timed(calls["drafted"], 0).seconds / timed(calls["alone"], 0).seconds
    calls["drafted"](1)  # warm-up
    ratios = []
    for results in take_turns(calls, turns):
        ratios.append(results["drafted"].seconds / results["alone"].seconds)
    found = spread(ratios)
    over_target = [found["median"], *found["quartiles"]]
    return {"over_target": over_target, "first_call": first}


if __name__ == "__main__":
    main()

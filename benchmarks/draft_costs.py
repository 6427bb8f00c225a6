"""Compute from measured costs the acceptance rate that a draft model of N layers and K output rows needs.

    python benchmarks/draft_costs.py --target smollm2 --output results/real/costs.json

Times the target's forward pass on one token and on a block, and one step of each draft model from `make_draft`, whose
weights do not affect the time. Setting: one row, one thread, a given context length, models in turns. Times are CPU
seconds because the machine may be shared; contention for caches and memory still affects them. The loop's overhead is
the time of `generate` minus that of the forward passes. `hf_diversed.theory` then computes, for each i.i.d. acceptance
rate (arXiv 2211.17192), the best draft length and its speedup over the target alone, and the acceptance rates needed
for speedups of 1 and 1.5. With a lossless verifier the rate is at most the probability mass of the draft's vocabulary.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import torch
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel
from transformers.utils import logging

from hf_diversed import _compat
from hf_diversed.generation.patching import install_hook
from hf_diversed.provenance import provenance
from hf_diversed.running.files import write_json
from hf_diversed.theory import ForwardTimes, best_gamma
from hf_diversed.training.draft_making import make_draft
from hf_diversed.zoo import packaged


BLOCK = 6  # five draft tokens and the token before them
LONGEST = 12  # maximum number of draft tokens per round
RATES = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
GAINS = (1.0, 1.5)
_WARM_UP = 3


def main() -> None:
    arguments = _arguments()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    install_hook()
    torch.set_num_threads(1)
    dtype = getattr(torch, arguments.dtype)
    target = AutoModelForCausalLM.from_pretrained(packaged.resolve(arguments.target), dtype=dtype).eval()
    costs = measure(target, arguments)
    records = [summary(name, costs) for name in costs["drafts"]]
    _show(costs, records)
    settings = {name: value for name, value in vars(arguments).items() if name != "output"}
    if arguments.output is not None:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        source = provenance(0, target.device)
        write_json(arguments.output, {**settings, "costs": costs, "records": records, "provenance": source})


@torch.inference_mode()
def measure(target: PreTrainedModel, arguments: argparse.Namespace) -> dict:
    """Return median CPU seconds of the target on one token and on a block, of each draft's step, and of the loop."""
    total = target.get_output_embeddings().weight.shape[0]
    sizes = [size if 0 < size < total else None for size in arguments.vocabulary]
    drafts = {
        f"{layers} layers, {size or total} ids": lean_draft(target, layers, size)
        for layers in arguments.layers
        for size in dict.fromkeys(sizes)
    }
    steps = {"target": step(target, 1, arguments.context), "block": step(target, BLOCK, arguments.context)}
    steps |= {name: step(draft, 1, arguments.context) for name, draft in drafts.items()}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(-_WARM_UP, arguments.repeats):
        for name, run in steps.items():
            began = time.process_time()
            run()
            if turn >= 0:
                seconds[name].append(time.process_time() - began)
    medians = {name: median(values) for name, values in seconds.items()}
    first = next(iter(drafts))
    forwards = BLOCK - 1, medians[first], medians["block"]
    return {
        "target": medians.pop("target"),
        "block": medians.pop("block"),
        "overhead": overhead(target, drafts[first], *forwards, arguments),
        "drafts": medians,
    }


def lean_draft(target: PreTrainedModel, layers: int, size: int | None) -> PreTrainedModel:
    """Return a draft that shares the target's embeddings, so that many fit in memory."""
    draft = make_draft(target, range(layers), None if size is None else range(size))
    draft.set_input_embeddings(target.get_input_embeddings())
    if size is None:
        draft.set_output_embeddings(target.get_output_embeddings())
    return draft


def step(model: PreTrainedModel, width: int, context: int) -> Callable[[], None]:
    """Return a function that runs a forward on `width` tokens after a context and then crops the cache."""
    ids = torch.arange(context + width)[None] % 1000
    cache = DynamicCache(config=model.config)
    model(input_ids=ids[:, :context], logits_to_keep=1, **{_compat.CACHE_ARGUMENT: cache})

    def run() -> None:
        model(input_ids=ids[:, context:], **{_compat.CACHE_ARGUMENT: cache})
        cache.crop(-width)

    return run


def overhead(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    gamma: int,
    draft_step: float,
    block: float,
    arguments: argparse.Namespace,
) -> float:
    """Return the CPU seconds per round that `generate` takes beyond its forwards, at least 0.

    Two calls of different length are timed; their difference consists of whole rounds.
    """
    ids = torch.arange(arguments.context)[None] % 1000
    calls = []
    for length in (arguments.new_tokens, arguments.new_tokens, 3 * arguments.new_tokens):  # the first call warms up
        torch.manual_seed(0)
        began = time.process_time()
        output = target.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=length,
            do_sample=True,
            top_k=0,
            assistant_model=draft,
            verifier="lossless",
            num_assistant_tokens=gamma,
            return_dict_in_generate=True,
        )
        calls.append((time.process_time() - began, output.stats.num_rounds))
    _, (short, few), (long, many) = calls
    if many <= few:
        raise ValueError("both calls ended early at EOS; choose another value of --new-tokens.")
    return max(0.0, (long - short) / (many - few) - gamma * draft_step - block)


def summary(name: str, costs: dict) -> dict:
    """Return a draft's relative cost, its best draft length by acceptance rate, and the rates that it needs."""
    extra = max(0.0, (costs["block"] - costs["target"]) / (BLOCK - 1))
    times = ForwardTimes(costs["target"], costs["drafts"][name], extra, costs["overhead"])
    best = {rate: best_gamma(_survival(rate), times) for rate in RATES}
    return {
        "draft": name,
        "milliseconds": costs["drafts"][name] * 1e3,
        "cost_ratio": times.draft / times.target,
        "by_acceptance": {f"{rate:g}": {"gamma": gamma, "speedup": gain} for rate, (gamma, gain) in best.items()},
        "needed": {f"{gain:g}": needed(gain, times) for gain in GAINS},
    }


def needed(gain: float, times: ForwardTimes) -> float | None:
    """Return the lowest acceptance rate that reaches a speedup, or None if full acceptance does not."""
    if best_gamma(_survival(1.0), times)[1] < gain:
        return None
    low, high = 0.0, 1.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (low, middle) if best_gamma(_survival(middle), times)[1] >= gain else (middle, high)
    return high


def _survival(rate: float) -> Sequence[float]:
    return [rate**count for count in range(1, LONGEST + 1)]


def _show(costs: dict, records: list[dict]) -> None:
    print(
        f"target: {costs['target'] * 1e3:.1f} ms for a token, {costs['block'] * 1e3:.1f} ms for {BLOCK}; the loop "
        f"adds {costs['overhead'] * 1e3:.1f} ms to a round. CPU time, one thread.\n"
    )
    rates = "".join(f"{f'a={rate:g}':>14}" for rate in RATES)
    wants = "".join(f"{f'a for {gain:g}x':>12}" for gain in GAINS)
    print(f"{'draft':<24}{'ms':>7}{'ratio':>7}{wants}{rates}   (gain at the best draft length)")
    for record in records:
        needs = [record["needed"][f"{gain:g}"] for gain in GAINS]
        cells = "".join(f"{'-' if value is None else f'{value:.2f}':>12}" for value in needs)
        best = "".join(f"{_cell(found):>14}" for found in record["by_acceptance"].values())
        print(f"{record['draft']:<24}{record['milliseconds']:>7.1f}{record['cost_ratio']:>7.2f}{cells}{best}")


def _cell(best: dict) -> str:
    return f"{best['speedup']:.2f} (g={best['gamma']})"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)

    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    parser.add_argument("--target", default="smollm2")
    parser.add_argument("--layers", type=numbers, default=[2, 4, 6, 8])
    parser.add_argument("--vocabulary", type=numbers, default=[4000, 8000, 16000, 0], help="0 keeps all.")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--new-tokens", type=int, default=24, help="New tokens of the shorter of two timed calls.")
    parser.add_argument("--output", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()

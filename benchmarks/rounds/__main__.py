"""Time decoding methods in turns in one process: medians, ratios, parts of a round and the bandwidth limit.

    python -m benchmarks.rounds --methods target,upstream:0.7,static:0.7,compiled:static:0.7

The prefix "compiled:" runs a method over static shapes, compiled; compile time is reported separately.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from transformers.utils import logging

from benchmarks.rounds import BenchmarkSettings, benchmark, random_model, shape_names
from benchmarks.rounds.tables import tables
from hf_diversed.files import write_json
from hf_diversed.harness.prompts import encode
from hf_diversed.tasks import get_task, load_records
from hf_diversed.zoo import best_device, load_pair


METHODS = "target,upstream,upstream:0.7,lossless,static:0.7"


def main(argv: list[str] | None = None) -> None:
    parser = arguments_parser()
    options = parser.parse_args(argv)
    logging.set_verbosity_error()
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.output is not None:
        options.output.parent.mkdir(parents=True, exist_ok=True)
    try:
        report = run(options)
    except ValueError as error:
        parser.error(str(error))
    if options.output is not None:
        write_json(options.output, report)
    console = Console()
    for table in tables(report["records"]):
        console.print(table)
    console.print(
        "Upstream's assisted decoding supports only batch size 1; a given acceptance affects our methods only."
    )


def run(options: argparse.Namespace) -> dict:
    """Return the report of `benchmark` on the embedded pair, a named pair, or models with random weights."""
    random_weights = options.target_config is not None
    if random_weights != (options.draft_config is not None) or (random_weights and (options.target or options.draft)):
        raise ValueError("--target-config and --draft-config go together, without --target and --draft.")
    if options.num_layers is not None and not random_weights:
        raise ValueError("--num-layers needs --target-config and --draft-config.")
    settings = BenchmarkSettings(
        batch_sizes=options.batch_sizes,
        context_lengths=options.context_lengths or ((128,) if random_weights else (0,)),
        draft_lengths=options.draft_lengths,
        max_new_tokens=options.max_new_tokens,
        repeats=options.repeats,
        temperature=options.temperature,
        acceptance=options.acceptance,
        seed=options.seed,
        breakdown=options.breakdown,
        backend=options.backend,
    )
    head, prompts = options.head, None
    if random_weights:
        target, draft = _random_pair(options)
    else:
        pair = load_pair(options.target, options.draft, options.device, options.dtype)
        target, draft, head = pair.target, pair.draft, head or pair.heads.get("math")
        records = load_records(get_task("math"), "test", max(settings.batch_sizes), settings.seed)
        prompts = encode(pair.tokenizer, [record["prompt"] for record in records])
    methods = options.methods or f"{METHODS},{'fresh:both' if head is None else 'diversed'}"
    report = benchmark(target, draft, methods.split(","), settings, head=head, prompts=prompts)
    report["provenance"]["num_layers"] = options.num_layers
    return report


def _random_pair(options: argparse.Namespace):
    """Build models with random weights, by default in bfloat16 on CUDA and in float32 elsewhere."""
    device = options.device or best_device()
    dtype = getattr(torch, options.dtype or ("bfloat16" if device.startswith("cuda") else "float32"))
    return [
        random_model(config, num_layers=options.num_layers, dtype=dtype, device=device, seed=options.seed + role)
        for role, config in enumerate((options.target_config, options.draft_config))
    ]


def _list_of(kind: type) -> Callable[[str], tuple]:
    def values(text: str) -> tuple:
        return tuple(kind(part) for part in text.split(","))

    values.__name__ = f"comma-separated {kind.__name__}"  # argparse uses it in its error message
    return values


def arguments_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.rounds", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add, integers = parser.add_argument, _list_of(int)
    add("--methods", help="target, upstream, upstream:0.7, lossless, static:0.7, diversed, fresh:both, compiled:...")
    add("--target", help="Hub id or folder; the embedded pair by default")
    add("--draft", help="Hub id or folder")
    add("--head", help='head of "diversed"; by default the embedded math head')
    add("--target-config", help=f"random weights: a config.json or one of {', '.join(shape_names())}")
    add("--draft-config", help="the same for the draft model")
    add("--num-layers", type=int, help="random weights: largest number of layers")
    add("--acceptance", type=_list_of(float), help="given acceptance: 0.8, or one rate per position")
    add("--batch-sizes", type=integers, default=(1, 4, 8, 16))
    add("--context-lengths", type=integers, help="prompt tokens; 0: the prompts as they are")
    add("--draft-lengths", type=integers, default=(5,), help="draft tokens per round")
    add("--max-new-tokens", type=int, default=64, help="tokens per row")
    add("--repeats", type=int, default=7, help="timed turns, after one that compiles and warms up")
    add("--temperature", type=float, default=1.0, help="0 decodes greedily")
    add("--seed", type=int, default=0, help="seed of weights, prompts and sampling")
    add("--no-breakdown", dest="breakdown", action="store_false", help="do not time the parts of a round")
    add("--backend", default="inductor", help="of torch.compile; eager only traces, for trials")
    add("--threads", type=int, help="CPU threads")
    add("--device")
    add("--dtype", choices=("float32", "bfloat16", "float16"))
    add("--output", type=Path, help="JSON file")
    return parser


if __name__ == "__main__":
    main()

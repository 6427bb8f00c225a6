"""Time ways to choose the number of draft tokens.

    python -m benchmarks.draft_lengths --output draft-lengths.json                     # embedded pair, one thread
    python -m benchmarks.draft_lengths --target qwen-coder-1.5b --draft qwen-coder-0.5b --packed --threads 2 \\
        --data gsm8k=gsm8k_train_7473.jsonl,mbpp=mbpp_974.jsonl --output draft-lengths.json

Batch size 1, eager. Each prompt is decoded with every method before the next one; the method that runs first rotates.
Ratios are of tokens per second of wall time on the same prompt: their median and quartiles. A method is `target`;
`upstream`, transformers' assisted generation with its defaults; `upstream:5`, 5 draft tokens in every round; or a
verifier with a constant length or a schedule, as `lossless:5` and `lenience:0.3:confidence`. `lossless:copies` copies
up to 10 draft tokens where the last n-gram occurred before, and uses the draft model with `confidence` elsewhere.
Finished prompts are kept next to the output, so an interrupted run continues, also with another `--num-prompts`.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.utils import logging

from benchmarks import packaged
from benchmarks.cpu_layers import pack_linear_layers
from benchmarks.pair import chosen_records, parse_files, parse_numbers
from benchmarks.speed import spread
from hf_diversed.evaluation.decoder import Sampling, constant_draft, encode, timed_call
from hf_diversed.files import drop_torn_line, read_lines, write_json
from hf_diversed.provenance import data_digest, provenance
from hf_diversed.tasks import PromptedTask, get_task, load_records
from hf_diversed.zoo import load_pair
from hf_diversed.zoo.loader import Pair


EMBEDDED = ("math", "summary", "code")
TARGET, UPSTREAM = "target", "upstream"
SCHEDULES = ("confidence",)
COPIES, COPIED = "copies", 10


def main() -> None:
    arguments = _arguments()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(arguments.threads)
    chat = arguments.target is not None
    target, draft = (name and packaged.resolve(name) for name in (arguments.target, arguments.draft))
    pair = load_pair(target, draft, "cpu", dtype=arguments.dtype if chat else None)
    if arguments.packed:
        pack_linear_layers(pair.target)
    if arguments.int4_draft:
        quantize_linear_layers(pair.draft)
    elif arguments.packed:
        pack_linear_layers(pair.draft)
    records: list[dict[str, Any]] = []
    for task in arguments.data if chat else EMBEDDED:
        prompts = _prompts(pair, task, arguments)
        for record in time_methods(pair, task, prompts, arguments):
            records.append({"task": task, "n": len(prompts) - 1} | record)
            print(json.dumps(records[-1]), flush=True)
    names = ("temperature", "max_new_tokens", "threads", "packed", "int4_draft")
    settings = {name: getattr(arguments, name) for name in names}
    write_json(arguments.output, settings | {"records": records, "provenance": provenance(arguments.seed, "cpu")})


def quantize_linear_layers(model: PreTrainedModel) -> None:
    """Quantize the weights of linear layers to int4 in place, in groups of 32 inputs; CPU only, needs torchao."""
    from torchao.prototype.quantization.int4 import PrototypeInt4WeightOnlyConfig
    from torchao.quantization import quantize_

    settings = {"group_size": 32, "int4_choose_qparams_algorithm": "hqq"}
    # By default, torchao also changes inductor's settings for the whole process.
    quantize_(model, PrototypeInt4WeightOnlyConfig(**settings, set_inductor_config=False))


def _prompts(pair: Pair, name: str, arguments: argparse.Namespace) -> list[torch.Tensor]:
    """Return the ids of the prompts, `[1, S]` each; the first one is for warming up."""
    task = get_task(name, allow_code_execution=True)
    if arguments.target is None:
        records = load_records(task, "test", arguments.num_prompts + 1, arguments.seed)
    else:
        records = chosen_records(name, Path(arguments.data[name]))[: arguments.num_prompts + 1]
    prompted = PromptedTask(task, pair.tokenizer, chat=arguments.target is not None)
    texts = [prompted.prompt(record) for record in records]
    return [torch.tensor([ids]) for ids in encode(pair.tokenizer, texts, add_special_tokens=arguments.target is None)]


def time_methods(
    pair: Pair, task: str, prompts: Sequence[torch.Tensor], arguments: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Decode each prompt with all methods; yield one record per method."""
    schedules = [*arguments.constant, *arguments.schedules]
    methods = [TARGET, UPSTREAM, *(f"{UPSTREAM}:{gamma}" for gamma in arguments.constant)]
    methods += [f"{verifier}:{schedule}" for verifier in arguments.verifiers for schedule in schedules]
    names = ("target", "draft", "int4_draft", "dtype", "temperature", "max_new_tokens", "threads", "packed", "seed")
    settings = [getattr(arguments, name) for name in names]
    digests = [data_digest(ids.tolist()) for ids in prompts]
    path = arguments.output.with_suffix(f".{task}-{data_digest([settings, methods])}.jsonl")
    drop_torn_line(path)
    finished = {line.pop("prompt"): line for line in (read_lines(path) if path.exists() else [])}
    turns = [finished[digest] for digest in digests[1:] if digest in finished]
    for method in methods if len(turns) < len(prompts) - 1 else ():
        decode(pair, prompts[0], method, arguments)
    with path.open("a") as file:
        for ids, digest in list(zip(prompts, digests))[1:]:
            if digest in finished:
                continue
            first = len(turns) % len(methods)
            rotated = methods[first:] + methods[:first]
            turns.append({method: decode(pair, ids, method, arguments) for method in rotated})
            print(json.dumps({"prompt": digest} | turns[-1]), file=file, flush=True)
    yield from (summary(turns, method) for method in methods)


def decode(pair: Pair, ids: torch.Tensor, method: str, arguments: argparse.Namespace) -> dict[str, float]:
    """Decode one prompt; return new tokens, seconds, and the counters of a verifier."""
    sampling = Sampling(arguments.temperature, max_new_tokens=arguments.max_new_tokens)
    settings = sampling.generate_kwargs()
    if method != TARGET:
        settings["assistant_model"] = pair.draft
    verifier, _, schedule = method.rpartition(":")
    lengths: dict[str, Any] = {}
    if schedule.isdecimal():
        lengths = {"num_assistant_tokens": int(schedule), "num_assistant_tokens_schedule": "constant"}
    elif schedule in SCHEDULES:
        lengths = {"num_assistant_tokens_schedule": schedule}
    elif schedule == COPIES:
        lengths = {"num_assistant_tokens_schedule": "confidence", "prompt_lookup_num_tokens": COPIED}
    elif verifier:
        allowed = f"{', '.join(SCHEDULES)}, {COPIES}, or a number"
        raise ValueError(f"unknown schedule {schedule!r}; allowed: {allowed}.")
    if verifier == UPSTREAM:  # reads the lengths from the draft model
        settings["assistant_model"] = constant_draft(pair.draft, int(schedule))
    elif verifier:
        settings |= {"verifier": verifier} | lengths
    output, rows, seconds = timed_call(pair.target, arguments.seed, input_ids=ids, **settings)
    found = {"tokens": len(rows[0]), "seconds": seconds}
    if verifier and verifier != UPSTREAM:
        stats = output.stats
        found |= {"rounds": stats.num_rounds, "drafted": stats.num_drafted, "accepted": stats.num_accepted}
    return found


def summary(turns: Sequence[Mapping[str, Any]], method: str) -> dict[str, Any]:
    """Return the tokens per second of a method, and paired ratios to the target and upstream."""
    others = {"over_target": TARGET, "over_upstream": UPSTREAM, "over_upstream_constant": _best_constant(turns)}
    total = {name: sum(turn[method][name] for turn in turns) for name in turns[0][method]}
    record: dict[str, Any] = {"method": method, "tokens_per_second": _rate(turns, method)}
    for name, other in others.items():
        if other is not None and other != method:
            record[name] = spread([_rate([turn], method) / _rate([turn], other) for turn in turns])
    if rounds := total.get("rounds"):
        record["acceptance_rate"] = total["accepted"] / total["drafted"]
        record["drafted_per_round"] = total["drafted"] / rounds
    return record


def _best_constant(turns: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the fastest constant length of upstream."""
    constant = [name for name in turns[0] if name.startswith(f"{UPSTREAM}:")]
    return max(constant, key=lambda name: _rate(turns, name), default=None)


def _rate(turns: Sequence[Mapping[str, Any]], method: str) -> float:
    return sum(turn[method]["tokens"] for turn in turns) / sum(turn[method]["seconds"] for turn in turns)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--target", help="Hub id, folder or name in benchmarks.packaged; by default the embedded pair.")
    add("--draft", help="The same for the draft model.")
    add("--data", default={}, type=parse_files, help="Tasks and their JSON Lines files: gsm8k=FILE,mbpp=FILE.")
    add("--output", required=True, type=Path)
    add("--verifiers", default=["lossless", "lenience:0.3"], type=lambda text: text.split(","))
    add("--constant", default=[2, 3, 5, 8], type=_numbers, help="Constant lengths, or none.")
    add(
        "--schedules",
        default=SCHEDULES,
        type=lambda text: text.split(","),
        help="Timed schedules, or copies.",
    )
    add("--num-prompts", default=12, type=int)
    add("--max-new-tokens", default=96, type=int)
    add("--temperature", default=1.0, type=float)
    add("--threads", default=1, type=int)
    add("--dtype", default="bfloat16", help="Of named models.")
    packed = "Store linear layers, except those of an int4 draft model, in oneDNN's layout, see benchmarks.cpu_layers."
    add("--packed", action="store_true", help=packed)
    add("--int4-draft", action="store_true", help="Quantize the draft model's linear layers to int4.")
    add("--seed", default=0, type=int)
    return parser.parse_args()


def _numbers(text: str) -> list[int]:
    return [] if text == "none" else parse_numbers(text)


if __name__ == "__main__":
    main()

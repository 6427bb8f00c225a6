"""`hf-diversed benchmark`: speed of several methods, its parts and its limit, on a pair or on bare shapes."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich import box
from rich.table import Table
from transformers import PreTrainedModel
from transformers.utils import logging

from hf_diversed.cli import evaluation_options as options
from hf_diversed.cli.models import best_device, load_pair
from hf_diversed.cli.terminal import console, errors_in_words
from hf_diversed.corpus import held_out_examples
from hf_diversed.evaluation.benchmark import BenchmarkSettings, random_model, shape_names
from hf_diversed.evaluation.benchmark import benchmark as run
from hf_diversed.evaluation.benchmark.measure import LIMIT
from hf_diversed.evaluation.benchmark.timing import PHASES
from hf_diversed.evaluation.formatting import number, percent
from hf_diversed.evaluation.journal import write_json


_METHODS = "ar,upstream,upstream:0.7,sd,static:0.7"
_DTYPES = ("float32", "bfloat16", "float16")


def benchmark(
    methods: Annotated[
        str | None, typer.Option(help="ar, upstream, upstream:0.7, sd, static:0.7, diversed, fresh:both ...")
    ] = None,
    target: Annotated[str | None, typer.Option(help="Hub id or folder; the embedded pair if left out.")] = None,
    draft: Annotated[str | None, typer.Option(help="Hub id or folder of the draft.")] = None,
    head: Annotated[str | None, typer.Option(help='What "diversed" means; the embedded math head.')] = None,
    random_weights: Annotated[bool, typer.Option(help="Build the pair from configurations, without weights.")] = False,
    target_config: Annotated[str | None, typer.Option(help=f"config.json, or {', '.join(shape_names())}.")] = None,
    draft_config: Annotated[str | None, typer.Option(help="The same for the draft.")] = None,
    num_layers: Annotated[int | None, typer.Option(min=1, help="At most so many layers of either.")] = None,
    acceptance: Annotated[str | None, typer.Option(help="Given acceptance: 0.8, or a rate per position.")] = None,
    batch_sizes: Annotated[str, typer.Option(help="Rows; upstream takes one.")] = "1,4,8,16",
    context_lengths: Annotated[str | None, typer.Option(help="Prompt tokens; 0: the prompts as they are.")] = None,
    draft_lengths: Annotated[str, typer.Option(help="Drafts per round.")] = "5",
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens per row.")] = 64,
    repeats: Annotated[int, typer.Option(min=1, help="Timed turns, after one that warms up.")] = 7,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 decodes greedily.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of weights, prompts and sampling.")] = 0,
    breakdown: Annotated[bool, typer.Option(help="Also time the parts of a round.")] = True,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Of random weights; bfloat16 on CUDA, else float32.")] = None,
    device: Annotated[str | None, typer.Option(help="cuda, mps or cpu; the best one by default.")] = None,
    output: Annotated[Path | None, typer.Option(help="JSON file.")] = None,
) -> None:
    """Time decoding methods in turns in one process: medians, ratios, parts of a round and the bandwidth limit."""
    logging.set_verbosity_error()
    with errors_in_words():
        if threads is not None:
            torch.set_num_threads(threads)
        contexts = context_lengths or ("128" if random_weights else "0")
        rates = None if acceptance is None else options.numbers("--acceptance", acceptance, float, distinct=False)
        settings = BenchmarkSettings(
            batch_sizes=tuple(options.numbers("--batch-sizes", batch_sizes, int)),
            context_lengths=tuple(options.numbers("--context-lengths", contexts, int)),
            draft_lengths=tuple(options.numbers("--draft-lengths", draft_lengths, int)),
            max_new_tokens=max_new_tokens,
            repeats=repeats,
            temperature=temperature,
            acceptance=None if rates is None else tuple(rates),
            seed=seed,
            breakdown=breakdown,
        )
        if random_weights or target_config or draft_config:
            if not random_weights or target_config is None or draft_config is None or target or draft:
                raise ValueError("--random-weights, --target-config and --draft-config go together, without a pair.")
            models = _random_pair((target_config, draft_config), num_layers, dtype, device, seed)
            prompts, default = None, "fresh:both,fresh:distribution"
        else:
            if num_layers is not None or dtype is not None:
                raise ValueError("--num-layers and --dtype shape random weights; pass --random-weights as well.")
            models, chosen, prompts = _trained_pair(target, draft, device, max(settings.batch_sizes), seed)
            head = head or chosen
            default = "fresh:both" if head is None else "diversed"
        names = (methods or f"{_METHODS},{default}").split(",")
        report = run(models[0], models[1], names, settings, head=head, prompts=prompts)
        report["provenance"]["num_layers"] = num_layers
        if output is not None:
            output.parent.mkdir(parents=True, exist_ok=True)
            write_json(output, report)
        for table in tables(report["records"]):
            console.print(table)
        console.print(
            "Upstream's assisted decoding takes one row, so it has no others; given acceptance acts on ours only."
        )


def _trained_pair(target: str | None, draft: str | None, device: str | None, num_prompts: int, seed: int):
    """Models, head and encoded prompts."""
    pair = load_pair(target, draft, device)
    texts = [example.prompt for example in held_out_examples("math", num_prompts, seed)]
    return (pair.target, pair.draft), pair.heads.get("math"), [list(ids) for ids in pair.tokenizer(texts)["input_ids"]]


def _random_pair(
    configs: tuple[str, str], num_layers: int | None, dtype: str | None, device: str | None, seed: int
) -> list[PreTrainedModel]:
    device = device or best_device()
    dtype = dtype or ("bfloat16" if device.startswith("cuda") else "float32")
    if dtype not in _DTYPES:
        raise ValueError(f"--dtype must be one of {', '.join(_DTYPES)}, got {dtype!r}.")
    kind = getattr(torch, dtype)
    return [
        random_model(config, num_layers=num_layers, dtype=kind, device=device, seed=seed + role)
        for role, config in enumerate(configs)
    ]


def tables(records: list[dict]) -> Iterator[Table]:
    """Speed, rounds and parts of a round of every point, medians over the turns: each fits 80 columns."""
    for place, rows in _by_place(records).items():
        yield _table(_title(*place), _SPEED, [row for row in rows if row["tokens_per_second"] is not None])
        yield _table("rounds", _ROUND, rows)
        ours = [row for row in rows if row["breakdown"] is not None]
        if ours:
            yield _table("ms per round, by part", _PARTS, ours)


def _by_place(records: list[dict]) -> dict[tuple, list[dict]]:
    """Records by rows, context and drafts; what drafts nothing stands beside every draft length."""
    places: dict[tuple, list[dict]] = {}
    for row in records:
        places.setdefault((row["batch_size"], row["context_length"], row["num_assistant_tokens"]), []).append(row)
    plain = {place: places.pop(place) for place in list(places) if place[-1] is None}
    beside = {place[:2]: [row for row in rows if row["method"] != LIMIT] for place, rows in plain.items()}
    return {place: beside.get(place[:2], []) + rows for place, rows in places.items()} or plain


def _title(rows: int, context: int, drafts: int | None) -> str:
    return f"rows {rows}, context {context or 'as given'}, drafts {drafts or '-'}"


def _table(title: str, columns: dict[str, Callable[[dict], str]], rows: list[dict]) -> Table:
    table = Table(
        title=title, title_justify="left", header_style="bold", box=box.SIMPLE, padding=(0, 1, 0, 0), show_edge=False
    )
    table.add_column("method", no_wrap=True)
    for header in columns:
        table.add_column(header, justify="right")
    for row in rows:
        table.add_row(row["method"], *(figure(row) for figure in columns.values()))
    return table


def _median(spread: dict | None) -> float | None:
    return None if spread is None else spread["median"]


def _ratio(row: dict, reference: str, figure: str) -> float | None:
    return _median(row["ratios"].get(reference, {}).get(figure))


def _part(phase: str, row: dict) -> str:
    return number(row["breakdown"][phase])


_SPEED: dict[str, Callable[[dict], str]] = {
    "accepted": lambda row: percent(row["acceptance_rate"]),
    "tokens per\nround": lambda row: number(row["block_efficiency"]),
    "tokens/s": lambda row: number(_median(row["tokens_per_second"])),
    "x plain": lambda row: number(_ratio(row, "plain", "tokens_per_second")),
    "peak, GB": lambda row: number(row["peak_memory_bytes"] and row["peak_memory_bytes"] / 1e9),
}
_ROUND: dict[str, Callable[[dict], str]] = {
    "ms": lambda row: number(_median(row["ms_per_round"])),
    "of limit": lambda row: percent(row["limit_ms"] / row["ms_per_round"]["median"]),
    "x upstream's": lambda row: number(_ratio(row, "upstream", "ms_per_round") if row["batch_size"] == 1 else None),
    "x lossless": lambda row: number(_ratio(row, "lossless", "ms_per_round")),
    "head": lambda row: "-" if row["head_percent"] is None else percent(row["head_percent"]["median"] / 100),
}
_PARTS: dict[str, Callable[[dict], str]] = {
    **{phase.removesuffix("_forward"): partial(_part, phase) for phase in PHASES},
    "sum": lambda row: number(sum(row["breakdown"].values())),
}

"""`hf-diversed benchmark`: speed of several methods, its parts and its limit, on a pair or on bare shapes."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hf_diversed.cli import evaluation_options as options
from hf_diversed.cli.terminal import console, hear_own_warnings_only, notes


if TYPE_CHECKING:
    from transformers import PreTrainedModel

_METHODS = "target,upstream,upstream:0.7,lossless,static:0.7"


def benchmark(
    methods: Annotated[
        str | None,
        typer.Option(
            help="target, upstream, upstream:0.7, lossless, static:0.7, diversed, fresh:both, compiled:static:0.7 ..."
        ),
    ] = None,
    target: options.Target = None,
    draft: options.Draft = None,
    head: Annotated[str | None, typer.Option(help='What "diversed" means; the embedded math head.')] = None,
    random_weights: Annotated[bool, typer.Option(help="Build the pair from configurations, without weights.")] = False,
    target_config: Annotated[
        str | None,
        typer.Option(help="config.json, or a shape that comes along (llama-3.1-8b; a wrong name lists all)."),
    ] = None,
    draft_config: Annotated[str | None, typer.Option(help="The same for the draft.")] = None,
    num_layers: Annotated[int | None, typer.Option(min=1, help="At most so many layers of either.")] = None,
    acceptance: Annotated[str | None, typer.Option(help="Given acceptance: 0.8, or a rate per position.")] = None,
    batch_sizes: Annotated[str, typer.Option(help="Rows; upstream takes one.")] = "1,4,8,16",
    context_lengths: Annotated[str | None, typer.Option(help="Prompt tokens; 0: the prompts as they are.")] = None,
    draft_lengths: Annotated[str, typer.Option(help="Drafts per round.")] = "5",
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens per row.")] = 64,
    repeats: Annotated[int, typer.Option(min=1, help="Timed turns, after one that compiles and warms up.")] = 7,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 decodes greedily.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of weights, prompts and sampling.")] = 0,
    breakdown: Annotated[
        bool, typer.Option(help="Also time the parts of a round; of a compiled one, its forwards alone.")
    ] = True,
    backend: Annotated[
        str, typer.Option(help="Of torch.compile, for compiled:... methods; eager only traces, for trials.")
    ] = "inductor",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads.")] = None,
    device: options.Device = None,
    dtype: options.Dtype = None,
    output: Annotated[Path | None, typer.Option(help="JSON file.")] = None,
) -> None:
    """Time decoding methods in turns in one process: medians, ratios, parts of a round and the bandwidth limit.

    A method with "compiled:" before its name runs over static shapes, compiled; what compiling takes is told apart.
    """
    import torch

    from hf_diversed.cli import preparing
    from hf_diversed.cli.benchmark_tables import tables
    from hf_diversed.cli.models import check_pair
    from hf_diversed.evaluation.benchmark import BenchmarkSettings
    from hf_diversed.evaluation.benchmark import benchmark as run
    from hf_diversed.running.files import write_json

    hear_own_warnings_only()
    if threads is not None:
        torch.set_num_threads(threads)
    contexts = context_lengths or ("128" if random_weights else "0")
    rates = None if acceptance is None else preparing.numbers("--acceptance", acceptance, float, distinct=False)
    settings = BenchmarkSettings(
        batch_sizes=tuple(preparing.numbers("--batch-sizes", batch_sizes, int)),
        context_lengths=tuple(preparing.numbers("--context-lengths", contexts, int)),
        draft_lengths=tuple(preparing.numbers("--draft-lengths", draft_lengths, int)),
        max_new_tokens=max_new_tokens,
        repeats=repeats,
        temperature=temperature,
        acceptance=None if rates is None else tuple(rates),
        seed=seed,
        breakdown=breakdown,
        backend=backend,
    )
    preparing.check_output("--output", output)
    given = methods.split(",") if methods else []
    preparing.check_timed("--methods", given, target, head)
    if random_weights or target_config or draft_config:
        if not random_weights or target_config is None or draft_config is None or target or draft:
            raise ValueError("--random-weights, --target-config and --draft-config go together, without a pair.")
        models = _random_pair((target_config, draft_config), num_layers, dtype, device, seed)
        prompts, default = None, "fresh:both,fresh:distribution,fresh:distribution+token"
    else:
        if num_layers is not None:
            raise ValueError("--num-layers shapes random weights; pass --random-weights as well.")
        check_pair(target, draft)
        models, chosen, prompts = _trained_pair(target, draft, device, dtype, max(settings.batch_sizes), seed)
        head = head or chosen
        default = "fresh:both" if head is None else "diversed"
    names = given or f"{_METHODS},{default}".split(",")
    report = run(models[0], models[1], names, settings, head=head, prompts=prompts)
    report["provenance"]["num_layers"] = num_layers
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        write_json(output, report)
    for table in tables(report["records"]):
        console.print(table)
    notes.print("Upstream's assisted decoding takes one row, so it has no others; given acceptance acts on ours only.")


def _trained_pair(
    target: str | None, draft: str | None, device: str | None, dtype: str | None, num_prompts: int, seed: int
):
    """Models, head and encoded prompts."""
    from hf_diversed.cli.models import load_pair
    from hf_diversed.running.prompts import encode
    from hf_diversed.tasks import get_task, load_records

    pair = load_pair(target, draft, device, dtype=dtype, two_models=True)
    texts = [record["prompt"] for record in load_records(get_task("math"), "test", num_prompts, seed)]
    return (pair.target, pair.draft), pair.heads.get("math"), encode(pair.tokenizer, texts)


def _random_pair(
    configs: tuple[str, str], num_layers: int | None, dtype: str | None, device: str | None, seed: int
) -> "list[PreTrainedModel]":
    """Models without weights, by default in bfloat16 on CUDA and in float32 elsewhere."""
    import torch

    from hf_diversed.cli.models import best_device, check_device, check_dtype
    from hf_diversed.evaluation.benchmark import random_model

    device = device or best_device()
    check_device(device)
    kind = check_dtype(dtype)
    if not isinstance(kind, torch.dtype):
        kind = torch.bfloat16 if device.startswith("cuda") else torch.float32
    return [
        random_model(config, num_layers=num_layers, dtype=kind, device=device, seed=seed + role)
        for role, config in enumerate(configs)
    ]

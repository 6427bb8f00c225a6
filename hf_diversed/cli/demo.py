"""`hf-diversed demo`: decoding methods side by side on the embedded pair."""

from dataclasses import asdict
from typing import Annotated

import typer
from rich.text import Text

from hf_diversed.cli import evaluation_options as options
from hf_diversed.cli.terminal import console, notes


PHASE_TOKENS = (":", ".")

Seed = Annotated[int, typer.Option(help="Seed of the prompts and of sampling.")]
Gamma = Annotated[int, typer.Option("--num-assistant-tokens", min=1, help="Drafts per round.")]
NewTokens = Annotated[int, typer.Option("--max-new-tokens", min=1, help="Longest answer.")]


def demo(
    num_examples: Annotated[int, typer.Option(min=1, help="Held-out prompts to answer.")] = 8,
    seed: Seed = 0,
    gamma: Gamma = 5,
    max_new_tokens: NewTokens = 128,
    temperature: options.Temperature = 1.0,
    every_rule: Annotated[bool, typer.Option("--all", help="Every rule of the library instead of a few.")] = False,
    device: options.Device = None,
    dtype: options.Dtype = None,
) -> None:
    """Compare decoding methods on the embedded pair: offline, about a minute on a laptop."""
    from transformers.utils import logging

    from hf_diversed.cli.comparison import all_cases, compare, demo_cases, measure
    from hf_diversed.cli.models import load_pair
    from hf_diversed.cli.rendering import comparison_table, source_legend, token_text
    from hf_diversed.corpus import held_out_examples
    from hf_diversed.head import DiversedHead, DiversedHeadConfig
    from hf_diversed.running.sampling import Sampling
    from hf_diversed.tasks import get_task

    logging.set_verbosity_error()
    pair = load_pair(None, None, device, dtype=dtype)
    examples = held_out_examples("math", num_examples, seed)
    sampling = Sampling(temperature, num_assistant_tokens=gamma, max_new_tokens=max_new_tokens)
    head, head_label = pair.heads.get("math"), "DIVERSED (math)"
    if head is None:
        head, head_label = (
            DiversedHead(DiversedHeadConfig.for_pair(pair.target, pair.draft)).eval(),
            "DIVERSED (untrained)",
        )
    cases = demo_cases(head, head_label, sampling)
    if every_rule:
        # The problems have no thinking phase; the answer's first sentence stands in for one.
        begin, end = (pair.tokenizer.convert_tokens_to_ids(token) for token in PHASE_TOKENS)
        cases = all_cases(head, head_label, begin, end, sampling)
    console.print(
        f"[bold]{num_examples} held-out word problems[/], temperature {temperature:g}, {gamma} drafts per round\n"
    )
    if not pair.heads:
        notes.print("The pair comes without trained heads yet: an untrained one says w = 0.5 everywhere.\n")
    rows = compare(pair, cases, [example.prompt for example in examples], seed, notes)
    records = [asdict(example) for example in examples]
    right = [sum(get_task("math").score_batch(row.texts, records)) for row in rows]
    console.print(comparison_table(rows, right, num_examples))
    coloured = next(case for case in cases if case[0].label == head_label)
    shown = measure(pair, coloured, [examples[0].prompt], seed, records=True)
    console.print(Text(f"\n{examples[0].prompt}", style="bold"), end="")
    console.print(token_text(pair.tokenizer, shown.records))
    console.print("\n", source_legend())

"""Commands and their options; the work is done in `comparison`, the looks in `rendering`."""

from dataclasses import asdict
from typing import Annotated

import typer
from rich.text import Text
from transformers.utils import logging

from hf_diversed.cli.benchmark import benchmark
from hf_diversed.cli.comparison import Method, Pair, Settings, all_methods, compare, demo_methods, measure
from hf_diversed.cli.convert import convert
from hf_diversed.cli.evaluate import evaluate
from hf_diversed.cli.frontier import frontier
from hf_diversed.cli.generate import generate
from hf_diversed.cli.models import load_pair
from hf_diversed.cli.plot import plot
from hf_diversed.cli.publish import card, info, push
from hf_diversed.cli.rendering import comparison_table, source_legend, token_text
from hf_diversed.cli.terminal import console, errors_in_words
from hf_diversed.corpus import held_out_examples
from hf_diversed.head import DiversedHead, DiversedHeadConfig
from hf_diversed.tasks import get_task


app = typer.Typer(
    help="Relaxed speculative decoding for Hugging Face models.", no_args_is_help=True, add_completion=False
)
for command in (generate, evaluate, frontier, plot, benchmark, convert, push, card, info):
    app.command()(command)

PHASE_TOKENS = (":", ".")

Seed = Annotated[int, typer.Option(help="Seed of the prompts and of sampling.")]
Gamma = Annotated[int, typer.Option("--num-assistant-tokens", min=1, help="Drafts per round.")]
NewTokens = Annotated[int, typer.Option("--max-new-tokens", min=1, help="Longest answer.")]
Temperature = Annotated[float, typer.Option(min=0.0, help="0 decodes greedily.")]


@app.command()
def demo(
    num_prompts: Annotated[int, typer.Option(min=1, help="Held-out prompts to answer.")] = 8,
    seed: Seed = 0,
    gamma: Gamma = 5,
    max_new_tokens: NewTokens = 128,
    temperature: Temperature = 1.0,
    every_rule: Annotated[bool, typer.Option("--all", help="Every rule of the library instead of a few.")] = False,
    device: Annotated[str | None, typer.Option(help="cuda, mps or cpu; the best one by default.")] = None,
) -> None:
    """Compare decoding methods on the embedded pair: offline, about a minute on a laptop."""
    logging.set_verbosity_error()
    pair = load_pair(None, None, device)
    examples = held_out_examples("math", num_prompts, seed)
    settings = Settings(max_new_tokens, gamma, temperature, seed)
    head, head_label = pair.heads.get("math"), "DIVERSED (math)"
    if head is None:
        head, head_label = _fresh_head(pair), "DIVERSED (untrained)"
    methods = demo_methods(head, head_label)
    if every_rule:
        # The problems have no thinking phase; the answer's first sentence stands in for one.
        begin, end = (pair.tokenizer.convert_tokens_to_ids(token) for token in PHASE_TOKENS)
        methods = all_methods(head, head_label, begin, end)
    console.print(
        f"[bold]{num_prompts} held-out word problems[/], temperature {temperature:g}, {gamma} drafts per round\n"
    )
    if not pair.heads:
        console.print("The pair comes without trained heads yet: an untrained one says w = 0.5 everywhere.\n")
    rows = compare(pair, methods, [example.prompt for example in examples], settings, console)
    records = [asdict(example) for example in examples]
    right = [sum(get_task("math").score_batch(row.texts, records)) for row in rows]
    console.print(comparison_table(rows, right, num_prompts))
    shown = measure(pair, Method(head_label, {"diversed_head": head}), [examples[0].prompt], settings, records=True)
    console.print(Text(f"\n{examples[0].prompt}", style="bold"), end="")
    console.print(token_text(pair.tokenizer, shown.records))
    console.print("\n", source_legend())


# Their options, over a hundred, are those of dataclasses, which parse and explain themselves.
_PARSED_ELSEWHERE: dict = {
    "add_help_option": False,
    "context_settings": {"allow_extra_args": True, "ignore_unknown_options": True},
}


@app.command(**_PARSED_ELSEWHERE)
def train(context: typer.Context) -> None:
    """Train a head for a task and a pair: hf-diversed train --task math --output_dir head-math."""
    with errors_in_words():
        from hf_diversed.cli.train import train as run  # here, as it needs packages of the extra "train"

        run(context.args)


@app.command(**_PARSED_ELSEWHERE)
def tune_draft(context: typer.Context) -> None:
    """Tune the draft towards its target, with LoRA: hf-diversed tune-draft --task math --output_dir draft-math."""
    with errors_in_words():
        from hf_diversed.cli.tune_draft import tune

        tune(context.args)


def _fresh_head(pair: Pair) -> DiversedHead:
    return DiversedHead(DiversedHeadConfig.for_pair(pair.target, pair.draft)).eval()

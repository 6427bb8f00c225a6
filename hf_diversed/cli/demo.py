"""`hf-diversed demo`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from hf_diversed.cli.options import Debug, Device, Dtype, Seed, Temperature, console


if TYPE_CHECKING:
    from hf_diversed.evaluation.decoder import Decoder, Method
    from hf_diversed.outputs import SpeculativeStats


@dataclass
class Row:
    """One method.

    Attributes:
        texts, num_tokens, stats: of the first repeat; each repeat draws the same tokens. `stats` is None if the method
            reports none.
        seconds: one value per repeat, over all prompts.
    """

    method: "Method"
    texts: list[str] = field(default_factory=list)
    num_tokens: int = 0
    stats: "SpeculativeStats | None" = None
    seconds: list[float] = field(default_factory=list)

    @property
    def tokens_per_second(self) -> list[float]:
        return [self.num_tokens / seconds for seconds in self.seconds]


def demo(
    num_examples: Annotated[int, typer.Option(min=1, help="Held-out word problems to answer.")] = 8,
    repeats: Annotated[int, typer.Option(min=1, help="Timed repeats of every prompt and method.")] = 2,
    seed: Seed = 0,
    num_assistant_tokens: Annotated[int, typer.Option(min=1, help="Draft tokens per round.")] = 5,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 128,
    temperature: Temperature = 1.0,
    device: Device = None,
    dtype: Dtype = None,
    debug: Debug = False,
) -> None:
    """Compare decoding methods on word problems with the embedded pair, offline.

    Methods alternate prompt by prompt. Speeds are medians of the repeats, and compared with the target alone.
    """
    from hf_diversed.cli.loading import quiet_transformers
    from hf_diversed.evaluation.decoder import Decoder, Method, Sampling, build_methods, encode
    from hf_diversed.tasks import get_task, load_records
    from hf_diversed.verifiers import DiversedVerifier
    from hf_diversed.zoo import load_pair

    quiet_transformers()
    task = get_task("math")
    records = load_records(task, "test", num_examples, seed)
    pair = load_pair(device=device, dtype=dtype)
    sampling = Sampling(
        temperature, num_assistant_tokens=num_assistant_tokens, max_new_tokens=max_new_tokens, batch_size=1
    )
    decoder = Decoder(pair, sampling)
    prompts = [task.prompt(record) for record in records]
    encoded = encode(pair.tokenizer, prompts)
    diversed = Method("diversed", DiversedVerifier(pair.heads["math"]))
    methods = [*build_methods(["target"]), Method("transformers", upstream=True)]
    methods += [*build_methods(["lossless", "static:0.3", "lenience:0.05"]), diversed]
    rows = [Row(method) for method in methods]
    _measure(decoder, rows, encoded, seed, repeats)
    right = [sum(task.score_batch(row.texts, records)) for row in rows]
    console.print(
        f"A small model drafts {num_assistant_tokens} tokens per round; a larger one verifies them:\n",
        highlight=False,
    )
    console.print(_table(rows, right, num_examples))
    decoded = decoder(diversed, encoded[:1], seed, output_token_records=True)
    assert decoded.records is not None
    console.print(Text(f"\n{prompts[0]}", style="bold"), end="")
    console.print(_coloured(decoded.records, pair.tokenizer))
    console.print(
        f"\nNext, your own head:  {NEXT[0]}\nor in the browser:    {NEXT[1]}", highlight=False, soft_wrap=True
    )


NEXT = ("hf-diversed train --task math --token-features true --output-dir head-math", "make space")


def _measure(decoder: "Decoder", rows: list[Row], encoded: Sequence[list[int]], seed: int, repeats: int) -> None:
    """Decode all prompts with all methods, alternately: a change in machine load affects all of them.

    A call's seed depends only on the index of its prompt, so every repeat draws the same tokens.
    """
    from hf_diversed.evaluation.decoder import Call, decode_calls, warm_up
    from hf_diversed.outputs import SpeculativeStats

    calls = [
        Call(decoder, row.method, [prompt], seed + index, (repeat, row))
        for repeat in range(repeats)
        for index, prompt in enumerate(encoded)
        for row in rows
    ]
    warm_up(calls, max_new_tokens=8)
    for row in rows:
        row.seconds = [0.0] * repeats
    for call, decoded in decode_calls(calls, "decoding"):
        repeat, row = call.key
        row.seconds[repeat] += decoded.seconds
        if repeat == 0:
            row.num_tokens += len(decoded.tokens[0])
            row.texts.append(decoder.text(decoded.tokens[0]))
            if decoded.stats is not None:
                row.stats = row.stats or SpeculativeStats()
                row.stats.add(decoded.stats)


def _speedup(rows: list[Row], row: Row) -> float:
    """Return tokens per second over those of the target, the first row: the median of the repeats."""
    return median(own / target for own, target in zip(row.tokens_per_second, rows[0].tokens_per_second))


def _table(rows: list[Row], right: list[float], num_prompts: int) -> Table:
    """Return a table of at most 80 columns, one line per method: medians over the repeats."""
    table = Table(header_style="bold", box=box.SIMPLE, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("method", no_wrap=True)
    for header in ("accepted", "tokens per round", "tokens/s", "over target", "right answers"):
        table.add_column(header, justify="right")
    for row, score in zip(rows, right):
        table.add_row(
            row.method.label,
            "-" if row.stats is None else f"{row.stats.acceptance_rate:.0%}",
            "-" if row.stats is None else f"{row.stats.block_efficiency:.1f}",
            f"{median(row.tokens_per_second):.0f}",
            f"{_speedup(rows, row):.2f}x",
            f"{score:g} of {num_prompts}",
        )
    return table


_ORIGINS = {
    "draft": ("accepted draft token", "green"),
    "relaxed": ("relaxed: lossless would reject", "black on yellow"),
    "residual": ("residual", "magenta"),
    "bonus": ("bonus", "cyan"),
}


def _coloured(records: Any, tokenizer: Any) -> Text:
    """Return the first row's tokens coloured by origin, with the legend below."""
    text = Text()
    for piece, origin in records.pieces(tokenizer):
        text.append(piece, style=_ORIGINS[origin][1])
    text.append("\n")
    for meaning, style in _ORIGINS.values():
        text.append(f" {meaning} ", style=style).append(" ")
    return text

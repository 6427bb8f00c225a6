"""`hf-diversed demo`."""

import json as json_format
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from hf_diversed.cli.options import Debug, Device, Dtype, Json, Seed, Temperature, console, notes


if TYPE_CHECKING:
    from hf_diversed.evaluation.decoder import Decoder, Method
    from hf_diversed.outputs import SpeculativeStats


@dataclass
class Row:
    """One method at one batch size.

    Attributes:
        reference: index of the row whose speed this one is compared with; None for a reference.
        texts, num_tokens, stats: of the first repeat; each repeat draws the same tokens. `stats` is None if the method
            reports none.
        seconds: one value per repeat, over all prompts.
    """

    method: "Method"
    decoder: "Decoder"
    reference: int | None = None
    texts: list[str] = field(default_factory=list)
    num_tokens: int = 0
    stats: "SpeculativeStats | None" = None
    seconds: list[float] = field(default_factory=list)

    @property
    def batch_size(self) -> int:
        return self.decoder.sampling.batch_size

    @property
    def tokens_per_second(self) -> list[float]:
        return [self.num_tokens / seconds for seconds in self.seconds]


def demo(
    num_examples: Annotated[int, typer.Option(min=1, help="Held-out word problems to answer.")] = 8,
    repeats: Annotated[int, typer.Option(min=1, help="Timed repeats of every prompt and method.")] = 3,
    seed: Seed = 0,
    num_assistant_tokens: Annotated[int, typer.Option(min=1, help="Draft tokens per round.")] = 5,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 128,
    temperature: Temperature = 1.0,
    compile: Annotated[
        bool, typer.Option(help="Also time compiled decoding. Compilation takes minutes, once per machine.")
    ] = True,
    device: Device = None,
    dtype: Dtype = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Compare decoding methods on word problems with the embedded pair, offline.

    Methods alternate prompt by prompt. Speeds are medians of the repeats. Each is compared with the target alone at
    the same batch size, compiled methods with the compiled target.
    """
    from hf_diversed.cli.loading import quiet_transformers
    from hf_diversed.evaluation.decoder import Sampling, encode
    from hf_diversed.tasks import get_task, load_records
    from hf_diversed.zoo import load_pair

    quiet_transformers()
    task = get_task("math")
    records = load_records(task, "test", num_examples, seed)
    pair = load_pair(device=device, dtype=dtype)
    sampling = Sampling(
        temperature, num_assistant_tokens=num_assistant_tokens, max_new_tokens=max_new_tokens, batch_size=1
    )
    prompts = [task.prompt(record) for record in records]
    encoded = encode(pair.tokenizer, prompts)
    rows = _rows(pair, sampling, compile)
    rows = _warm_up(rows, max(encoded, key=len), seed)
    _measure(rows, encoded, seed, repeats)
    right = [sum(task.score_batch(row.texts, records)) for row in rows]
    if json:
        print(json_format.dumps([_record(rows, index, right[index]) for index in range(len(rows))], indent=1))
        return
    console.print(
        f"{num_examples} held-out word problems, temperature {temperature:g}, {num_assistant_tokens} draft tokens per "
        "round\n",
        highlight=False,
    )
    console.print(_table(rows, right, num_examples))
    shown = next(row for row in rows if row.method.label == "diversed")
    decoded = shown.decoder(shown.method, encoded[:1], seed, output_token_records=True)
    assert decoded.records is not None
    console.print(Text(f"\n{prompts[0]}", style="bold"), end="")
    console.print(_coloured(decoded.records, pair.tokenizer))


def _rows(pair: Any, sampling: Any, compiled: bool) -> list[Row]:
    """Return the methods to compare, each behind its reference."""
    from dataclasses import replace

    from hf_diversed.evaluation.decoder import Decoder, Method
    from hf_diversed.generation.warmup import default_compile_config
    from hf_diversed.verifiers import DiversedVerifier, build_verifier

    single, batched = Decoder(pair, sampling), Decoder(pair, replace(sampling, batch_size=8))
    target, diversed = Method("target"), Method("diversed", DiversedVerifier(pair.heads["math"]))
    names = ("lossless", "static:0.7", "static:0.3", "lenience:0.05")
    rows = [Row(target, single), Row(Method("upstream:0.7", upstream=True, ensemble_weight=0.7), single, 0)]
    rows += [Row(Method(name, build_verifier(name)), single, 0) for name in names]
    rows += [Row(diversed, single, 0), Row(target, batched)]
    rows.append(Row(diversed, batched, len(rows) - 1))
    if compiled:
        config = default_compile_config(pair.target.device)
        first = len(rows)
        for method in (target, diversed):
            method = replace(method, label=f"compiled:{method.label}", compile_config=config)
            rows.append(Row(method, single, first if method.verifier else None))
    return rows


def _warm_up(rows: list[Row], prompt: list[int], seed: int) -> list[Row]:
    """Decode the longest prompt once with each method, which compiles. Return the rows without those that fail."""
    compiled = [row for row in rows if row.method.compile_config is not None]
    for row in rows[: len(rows) - len(compiled)]:
        row.decoder(row.method, [prompt], seed, max_new_tokens=8)
    if compiled:
        notes.print("Compiling two methods; this takes about a minute each, once per machine. --no-compile skips it.")
    with _progress() as progress:
        task = progress.add_task("compiling", total=len(compiled))
        try:
            for row in compiled:
                row.decoder(row.method, [prompt], seed)
                progress.advance(task)
        except RuntimeError as error:  # some machines have no compiler
            reason = str(error).partition("\n")[0]
            notes.print(f"Compilation failed on this machine: {reason}", style="yellow", markup=False)
            return rows[: len(rows) - len(compiled)]
    return rows


def _measure(rows: list[Row], encoded: Sequence[list[int]], seed: int, repeats: int) -> None:
    """Decode all prompts with all methods, alternately: a change in machine load affects all of them.

    A call's seed depends only on the index of its prompt, so every repeat draws the same tokens.
    """
    from hf_diversed.outputs import SpeculativeStats

    with _progress() as progress:
        task = progress.add_task("decoding", total=repeats * len(encoded) * len(rows))
        for repeat in range(repeats):
            for row in rows:
                row.seconds.append(0.0)
            for start in range(len(encoded)):
                for row in rows:
                    progress.advance(task)
                    if start % row.batch_size:
                        continue
                    decoded = row.decoder(row.method, encoded[start : start + row.batch_size], seed + start)
                    row.seconds[-1] += decoded.seconds
                    if repeat == 0:
                        row.num_tokens += sum(map(len, decoded.tokens))
                        row.texts += [row.decoder.text(ids) for ids in decoded.tokens]
                        if decoded.stats is not None:
                            row.stats = row.stats or SpeculativeStats()
                            row.stats.add(decoded.stats)


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=notes, transient=True)


def _speedups(rows: list[Row], row: Row) -> list[float]:
    """Return tokens per second over those of the reference, by repeat; empty for a reference."""
    if row.reference is None:
        return []
    return [own / other for own, other in zip(row.tokens_per_second, rows[row.reference].tokens_per_second)]


def _record(rows: list[Row], index: int, right: float) -> dict[str, Any]:
    """Return a row as JSON."""
    row = rows[index]
    speedups = _speedups(rows, row)
    return {
        "method": row.method.label,
        "batch_size": row.batch_size,
        "acceptance_rate": None if row.stats is None else row.stats.acceptance_rate,
        "block_efficiency": None if row.stats is None else row.stats.block_efficiency,
        "tokens_per_second": row.tokens_per_second,
        "speedup": median(speedups) if speedups else None,
        "right": right,
    }


def _table(rows: list[Row], right: list[float], num_prompts: int) -> Table:
    """Return a table of at most 80 columns, one line per method: medians over the repeats, and their ranges."""
    table = Table(header_style="bold", box=box.SIMPLE, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("method", no_wrap=True)
    for header in ("batch", "accepted", "tokens per\nround", "tokens/s", "against target", "right"):
        table.add_column(header, justify="right")
    for row, score in zip(rows, right):
        stats, speedups = row.stats, _speedups(rows, row)
        table.add_row(
            row.method.label,
            str(row.batch_size),
            "-" if stats is None else f"{stats.acceptance_rate:.1%}",
            "-" if stats is None else f"{stats.block_efficiency:.2f}",
            f"{median(row.tokens_per_second):.3g}",
            f"{median(speedups):.2f}x ({min(speedups):.2f}-{max(speedups):.2f})" if speedups else "-",
            f"{score:g}/{num_prompts}",
        )
    return table


_ORIGINS = {
    "draft": ("accepted draft", "green"),
    "relaxed": ("relaxed: a draft token that lossless verification would have rejected", "black on yellow"),
    "residual": ("residual: the target's correction", "magenta"),
    "bonus": ("bonus: the target's next token", "cyan"),
}


def _coloured(records: Any, tokenizer: Any) -> Text:
    """Return the first row's tokens coloured by origin, with the legend below."""
    from hf_diversed.outputs import SOURCES

    text = Text()
    for token, source, relaxed in zip(
        *(column[0].tolist() for column in (records.tokens, records.source, records.relaxed))
    ):
        if source >= 0:
            origin = "relaxed" if relaxed else SOURCES[source]
            text.append(tokenizer.decode([token], skip_special_tokens=True), style=_ORIGINS[origin][1])
    text.append("\n\n")
    for meaning, style in _ORIGINS.values():
        text.append(f" {meaning} ", style=style).append("  ")
    return text

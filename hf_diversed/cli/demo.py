"""`hf-diversed demo`: compare decoding methods on word problems with the embedded pair, or on texts that a chat model
repeats."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from rich.text import Text
from transformers import CompileConfig

from hf_diversed.cli.comparison import Case, compare, compiled_cases, demo_cases
from hf_diversed.cli.models import LOOKUP, load_pair
from hf_diversed.cli.options import ENGINES, DemoOptions
from hf_diversed.cli.rendering import comparison_table, compiled_line, pieces_text, source_legend
from hf_diversed.cli.terminal import console, notes, show_own_warnings_only
from hf_diversed.evaluation.markdown import setting
from hf_diversed.formatting import PLAIN
from hf_diversed.harness.compiled import default_compile_config
from hf_diversed.harness.decode import Decoder
from hf_diversed.harness.methods import Method
from hf_diversed.harness.pair import Pair
from hf_diversed.harness.prompts import Prompt, encode
from hf_diversed.harness.sampling import Sampling
from hf_diversed.head import DiversedHead
from hf_diversed.tasks import get_task, load_records
from hf_diversed.token_view import TokenReader
from hf_diversed.verifiers import build_verifier


SHOWN = "lenience:0.3"
REPEAT = "Repeat the following text word for word:\n\n"
TEXTS = (
    "The meeting was moved from Monday to Wednesday, because the room is being painted. Please bring the report with "
    "you, and tell Anna that she can join by phone.",
    "Our shop opens at nine in the morning and closes at six in the evening. On Sundays it is closed, and on the last "
    "Saturday of every month it opens one hour later.",
    "Take two cups of flour, one cup of sugar and three eggs. Mix the flour with the sugar, add the eggs one by one, "
    "and stir the dough until it is smooth. Then bake it for forty minutes.",
    "def total(prices, tax):\n    result = 0\n    for price in prices:\n        result += price * (1 + tax)\n"
    "    return result",
    "The river rises in the hills, runs through two lakes and reaches the sea after ninety kilometres. In spring, "
    "when the snow melts, it often floods the meadows along its banks.",
    "Dear customer, thank you for your order. We sent it today, and it should be with you within three working days. "
    "If anything is missing, write to us and we will send it at once.",
    "A train leaves at 8:15 and arrives at 10:40. The next one leaves at 9:05 and arrives at 11:20, but it does not "
    "run at weekends. Tickets are cheaper after ten in the morning.",
    "The old library was built of red brick in a year of drought. Its roof was repaired twice, and its windows were "
    "replaced after the storm. Today it holds a school of music.",
)


def demo(options: DemoOptions) -> None:
    """Compare decoding methods and print a table per engine."""
    if options.engine not in ENGINES:
        raise ValueError(f"--engine must be one of {', '.join(ENGINES)}, got {options.engine!r}.")
    show_own_warnings_only()
    sampling = Sampling(
        options.temperature,
        num_assistant_tokens=options.num_assistant_tokens,
        max_new_tokens=options.max_new_tokens,
        batch_size=1,
    )
    where = options.device, options.dtype
    if options.model is None and options.draft != LOOKUP:
        raise ValueError(f"--draft {options.draft} has no effect without --model; pass the target model as --model.")
    if options.model is None:
        selected = embedded_demo(options.num_examples, sampling, options.seed, *where)
    else:
        selected = model_demo(options.model, options.draft, options.num_examples, sampling, *where)
    config = default_compile_config(torch.device(selected.pair.target.device), options.backend)
    selected.run(options.engine, config, options.seed, options.repeats)


@dataclass(frozen=True)
class Demo:
    """The methods that one demo compares.

    Attributes:
        title: printed above the results.
        cases: rows of the eager table, the target alone first.
        compiled: the verifier that is also compiled and whose tokens are shown, and the head of "diversed".
        score: counts the right answers among texts; None if the demo has no score.
    """

    title: str
    pair: Pair
    prompts: Sequence[Prompt]
    sampling: Sampling
    cases: list[Case]
    compiled: tuple[str, DiversedHead | None]
    score: Callable[[list[str]], float] | None = None

    def run(self, engine: str, compile_config: CompileConfig, seed: int, repeats: int) -> None:
        """Print a table per engine, and the first prompt's completion with its tokens coloured by origin."""
        console.print(f"[bold]{self.title}[/]\n", highlight=False)
        if engine != "compiled":
            self._compare(self.cases, seed, repeats)
        compiled = compiled_cases(*self.compiled, self.sampling, compile_config)
        if engine != "eager":
            notes.print("Compilation takes a few minutes, once per machine; --engine eager skips it.")
            with _optional(engine == "both"):
                console.print(compiled_line(self._compare(compiled, seed, repeats)), highlight=False)
        (method, sampling), prompt = compiled[1], self.prompts[0]
        ids = encode(self.pair.tokenizer, [prompt])
        decoded = Decoder(self.pair, sampling)(method, ids, seed, output_token_records=True)
        if isinstance(prompt, str):
            console.print(Text(f"\n{prompt}", style="bold"), end="")
        assert decoded.records is not None
        console.print(pieces_text(TokenReader(self.pair.tokenizer).read(decoded.records)))
        console.print("\n", source_legend())

    def _compare(self, cases: list[Case], seed: int, repeats: int):
        rows = compare(self.pair, cases, self.prompts, seed, repeats, notes)
        right = None if self.score is None else [self.score(row.texts) for row in rows]
        console.print(comparison_table(rows, right, len(self.prompts)), "")
        return rows


@contextmanager
def _optional(skip: bool) -> Iterator[None]:
    """If `skip`, report a failed compilation instead of raising, because some machines have no compiler."""
    try:
        yield
    except RuntimeError as error:
        if not skip:
            raise
        notes.print(Text(f"Compilation failed on this machine: {str(error).splitlines()[0]}", style="yellow"))


def embedded_demo(num_examples: int, sampling: Sampling, seed: int, device: str | None, dtype: str | None) -> Demo:
    """Return the demo of word problems with the embedded pair."""
    pair = load_pair(None, None, device, dtype=dtype)
    task = get_task("math")
    records = load_records(task, "test", num_examples, seed)
    head = pair.heads["math"]
    return Demo(
        f"{num_examples} held-out word problems, {setting(vars(sampling))}",
        pair,
        [task.prompt(record) for record in records],
        sampling,
        demo_cases(head, sampling),
        ("diversed", head),
        lambda texts: sum(task.score_batch(texts, records)),
    )


def model_demo(
    name: str, draft: str, num_examples: int, sampling: Sampling, device: str | None, dtype: str | None
) -> Demo:
    """Return the demo of a chat model that repeats texts, most of which prompt lookup can copy.

    Raises:
        ValueError: if `num_examples` is too large, or the tokenizer has no chat template.
    """
    if num_examples > len(TEXTS):
        raise ValueError(f"--num-examples must be at most {len(TEXTS)} with --model, got {num_examples}.")
    pair = load_pair(name, draft, device, chat=True, dtype=dtype)
    methods = [Method(PLAIN), Method("upstream", upstream=True)]
    methods += [Method(spec, build_verifier(spec)) for spec in ("lossless", SHOWN, "static:0.5")]
    source = "looked up in the prompt" if draft == LOOKUP else f"from {draft}"
    return Demo(
        f"{name} repeats {num_examples} texts, {setting(vars(sampling))}, {source}",
        pair,
        [[{"role": "user", "content": REPEAT + text}] for text in TEXTS[:num_examples]],
        sampling,
        [(method, sampling) for method in methods],
        (SHOWN, None),
    )

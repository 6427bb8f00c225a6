"""`hf-diversed demo --model`: decoding methods side by side on a chat model that rewrites texts."""

from transformers.utils import logging

from hf_diversed.cli.comparison import Case, compare, measure
from hf_diversed.cli.models import LOOKUP, load_pair
from hf_diversed.cli.rendering import comparison_table, source_legend, token_text
from hf_diversed.cli.terminal import console, notes
from hf_diversed.running.compiled import default_compile_config
from hf_diversed.running.methods import Method
from hf_diversed.running.prompts import Prompt
from hf_diversed.running.sampling import Sampling
from hf_diversed.verifiers import build_verifier


SHOWN = "lenience:0.3"
RULES = ("lossless", SHOWN, "static:0.5")
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


def demo_model(
    name: str,
    draft: str,
    num_examples: int,
    sampling: Sampling,
    seed: int,
    engine: str,
    backend: str,
    device: str | None,
    dtype: str | None,
) -> None:
    """Print a table of methods on a model that is asked to rewrite texts, most of which it can copy.

    Args:
        name: "smollm2", or a Hub id or folder of a chat model. draft: "lookup", or the same of a draft.
        num_examples: texts, at most those of `TEXTS`.
        engine: "eager", "compiled" or "both". backend: of torch.compile.

    Raises:
        ValueError: for more texts than there are, or a tokenizer without a chat template.
    """
    if num_examples > len(TEXTS):
        raise ValueError(f"--num-examples must be at most {len(TEXTS)} with --model, got {num_examples}.")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    pair = load_pair(name, draft, device, chat=True, dtype=dtype)
    prompts: list[Prompt] = [[{"role": "user", "content": REPEAT + text}] for text in TEXTS[:num_examples]]
    cases: list[Case] = []
    if engine != "compiled":
        cases += _cases(sampling)
    if engine != "eager":
        config = default_compile_config(pair.target.device, backend)
        compiled = [Method("plain decoding, compiled", compile_config=config)]
        compiled.append(Method(f"{SHOWN}, compiled", build_verifier(SHOWN), compile_config=config))
        cases += [(method, sampling) for method in compiled]
        notes.print("Compiling takes a minute or two, once and for this machine: --engine eager leaves it out.")
    words = "looked up in the prompt" if draft == LOOKUP else f"by {draft}"
    console.print(
        f"[bold]{name} rewrites {num_examples} texts[/], temperature {sampling.temperature:g}, "
        f"{sampling.num_assistant_tokens} drafts per round, {words}\n"
    )
    console.print(comparison_table(compare(pair, cases, prompts, seed, notes)))
    shown = measure(pair, (Method(SHOWN, build_verifier(SHOWN)), sampling), prompts[:1], seed, records=True)
    console.print(token_text(pair.tokenizer, shown.records))
    console.print("\n", source_legend())


def _cases(sampling: Sampling) -> list[Case]:
    methods = [Method("plain decoding"), Method("upstream", upstream=True)]
    methods += [Method(rule, build_verifier(rule)) for rule in RULES]
    return [(method, sampling) for method in methods]

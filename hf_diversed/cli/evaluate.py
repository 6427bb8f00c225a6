"""`hf-diversed evaluate`: quality, acceptance and cost of methods on one task."""

import itertools
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hf_diversed.cli import preparing
from hf_diversed.cli.options import EvaluateOptions
from hf_diversed.cli.rendering import results_by_setting
from hf_diversed.cli.terminal import console, notes
from hf_diversed.evaluation import EvaluationSettings, markdown_table, sweep
from hf_diversed.formatting import PLAIN
from hf_diversed.harness.methods import build_methods
from hf_diversed.method_names import MethodName


def evaluate(options: EvaluateOptions) -> None:
    """Measure the methods on the same prompts at each temperature and number of draft tokens, and print tables."""
    methods = [name.strip() for name in options.methods.split(",")]
    task = preparing.load_task(options)
    temperatures = preparing.numbers("--temperature", options.temperature, float)
    gammas = preparing.numbers("--num-assistant-tokens", options.num_assistant_tokens, int)
    variants = [
        preparing.process_share(options, temperature=temperature, num_assistant_tokens=gamma)
        for temperature, gamma in itertools.product(temperatures, gammas)
    ]
    preparing.check_methods("--methods", methods, options.target, options.head, options.task, temperatures)
    preparing.check_output("--output", options.output)
    preparing.check_output("--markdown", options.markdown)
    preparing.check_output("--plot", options.plot)
    if options.plot is not None:
        from hf_diversed.evaluation import plots  # needs matplotlib

        with preparing.naming("--plot", str(options.plot)):
            plots.check_format(options.plot)
        if all(MethodName.parse(method).name == PLAIN for method in methods):
            raise ValueError("--plot needs a method that verifies draft tokens, as in --methods target,lossless.")
    pair, prompted, examples, head = preparing.load_prompts(options, task, options.head)
    built = build_methods(methods, head, pair.target.device)
    with _folder(options) as folder:
        parts = [(built, variant, part) for part, variant in _folders(folder, variants).items()]
        rows = sweep(pair, prompted, examples, parts, output=options.output, overwrite=options.overwrite)
    if not rows:
        return  # other processes are unfinished; the last one reports
    console.print(results_by_setting(rows))
    if options.markdown is not None:
        options.markdown.parent.mkdir(parents=True, exist_ok=True)
        options.markdown.write_text(markdown_table(rows), encoding="utf-8")
    if options.plot is not None:
        for file in plots.save_quality(rows, options.plot):
            notes.print(str(file), markup=False, highlight=False, soft_wrap=True)


@contextmanager
def _folder(options: EvaluateOptions) -> Iterator[Path]:
    """Yield the folder of finished calls: next to the output, or a temporary one."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        if options.output is not None:
            folder = options.output.with_name(options.output.name.removesuffix(".json") + ".parts")
        with preparing.resumable(None if options.output is None else folder, options.overwrite):
            yield folder


def _folders(root: Path, variants: list[EvaluationSettings]) -> dict[Path, EvaluationSettings]:
    """Return the folder of each variant's calls: `root` itself, or a subfolder for each of several."""
    if len(variants) == 1:
        return {root: variants[0]}
    return {root / f"temperature-{item.temperature:g}_gamma-{item.num_assistant_tokens}": item for item in variants}

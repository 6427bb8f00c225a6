"""Measure a saved pair on held-out prompts: `python -m embedded.measure DIR` adds the results to training.json."""

import argparse
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from embedded.corpus import Example
from embedded.recipe import ModelRecipe, Recipe
from embedded.stream import CHUNK, chunk_examples
from hf_diversed.evaluation import EvaluationSettings, evaluate
from hf_diversed.tasks import get_task, load_records
from hf_diversed.zoo.loader import Pair, load_demo_pair


TASKS = ("math", "summary", "code")
METHODS = ("target", "lossless", "static:0.7", "static:0.5", "static:0.3")
NGRAM = 8
_FIELDS = ("quality", "quality_ci", "acceptance_rate", "verified_acceptance_rate", "block_efficiency", "mean_tokens")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m embedded.measure", description=__doc__)
    parser.add_argument("folder", type=Path, help="as written by `python -m embedded.train`")
    parser.add_argument("--n", type=int, default=500, help="held-out prompts per task")
    arguments = parser.parse_args(argv)
    path = arguments.folder / "training.json"
    record = json.loads(path.read_text())
    roles = {role: ModelRecipe(**model) for role, model in record["recipe"]["models"].items()}
    recipe = Recipe(**(record["recipe"] | {"models": roles}))
    record["held_out"] = measure_pair(load_demo_pair(arguments.folder), recipe, arguments.n)
    path.write_text(json.dumps(record, indent=2) + "\n")


def measure_pair(pair: Pair, recipe: Recipe, n: int) -> dict:
    """Measure a pair at temperature 1.

    Returns:
        The settings, and by task the records of `METHODS` and of "draft" alone, with `repeated_8grams`: share of the
        records' distinct word 8-grams, over prompt and completion, that the training text of either model contains.
    """
    settings = EvaluationSettings(num_examples=n, batch_size=64)
    found: dict[str, dict] = {}
    for name in TASKS:
        task = get_task(name, allow_code_execution=True)
        records = load_records(task, "test", n, settings.seed)
        rows = {row["method"]: row for row in evaluate(pair, task, records, METHODS, settings)}
        rows["draft"] = evaluate(replace(pair, target=pair.draft), task, records, ["target"], settings)[0]
        examples = [Example(**record, key="") for record in records]
        found[name] = {
            "metric": task.metric,
            "methods": {label: {name: row[name] for name in _FIELDS} for label, row in rows.items()},
            f"repeated_{NGRAM}grams": repeated_ngrams(examples, _training_text(recipe)),
        }
    return {"n": n, "seed": settings.seed, "num_assistant_tokens": settings.num_assistant_tokens, "tasks": found}


def repeated_ngrams(examples: list[Example], training: Iterable[Example]) -> float:
    """Return the share of the examples' distinct word 8-grams that the training text contains."""
    wanted = {ngram for example in examples for ngram in _ngrams(example)}
    seen = {ngram for example in training for ngram in _ngrams(example) if ngram in wanted}
    return len(seen) / len(wanted)


def _training_text(recipe: Recipe) -> Iterable[Example]:
    for role, settings in recipe.models.items():
        for chunk in range(-(-settings.steps // CHUNK)):
            yield from chunk_examples(recipe, role, chunk)


def _ngrams(example: Example) -> set[tuple[str, ...]]:
    words = (example.prompt + example.completion).split()
    return {tuple(words[i : i + NGRAM]) for i in range(len(words) - NGRAM + 1)}


if __name__ == "__main__":
    main()

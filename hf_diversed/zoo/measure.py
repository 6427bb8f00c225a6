"""What a saved pair is worth on held-out prompts: right answers and acceptance at temperature 1, text seen before."""

from collections.abc import Iterable
from pathlib import Path

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from hf_diversed.generation.decoding import DEFAULT_NUM_ASSISTANT_TOKENS
from hf_diversed.generation.hook import install_hook
from hf_diversed.generation.recording import record_stats
from hf_diversed.corpus import FAMILIES, Example, held_out_examples
from hf_diversed.zoo.loader import DemoPair, load_demo_pair
from hf_diversed.zoo.recipe import Recipe
from hf_diversed.zoo.stream import CHUNK, chunk_examples


FAMILY = "math"
RULES = ("lossless", "static:0.7", "static:0.5", "static:0.3")
MAX_NEW_TOKENS = 160
NGRAM = 8
_BATCH = 50


def measure_pair(folder: Path, recipe: Recipe, n: int = 500, seed: int = 0) -> dict:
    """Measure a pair saved in `folder` on `n` held-out word problems.

    Returns:
        `target` and `draft`: share of right answers by plain sampling. `rules`: for each verifier the same share, with
        `acceptance_rate` (accepted / drafted), `verified_acceptance_rate` and `block_efficiency` at
        `num_assistant_tokens` drafts per round. `repeated_8grams`: share of the problems' distinct word 8-grams, over
        prompt and completion, that the training text of either model contains.
    """
    pair = load_demo_pair(folder)
    examples = held_out_examples(FAMILY, n, seed)
    prompts = [example.prompt for example in examples]
    return {
        "n": n,
        "seed": seed,
        "num_assistant_tokens": DEFAULT_NUM_ASSISTANT_TOKENS,
        "target": accuracy(complete(pair.target, pair.tokenizer, prompts, seed), examples),
        "draft": accuracy(complete(pair.draft, pair.tokenizer, prompts, seed), examples),
        "rules": {rule: _measure_rule(pair, rule, examples, seed) for rule in RULES},
        f"repeated_{NGRAM}grams": repeated_ngrams(examples, _training_text(recipe)),
    }


def accuracy(completions: list[str], examples: list[Example]) -> float:
    """Mean score of the completions; each example's own family judges."""
    scores = [
        FAMILIES[example.key.split("/")[0]].score(completion, example)
        for completion, example in zip(completions, examples, strict=True)
    ]
    return sum(scores) / len(scores)


def complete(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompts: list[str], seed: int = 0, **kwargs
) -> list[str]:
    """Sample one completion per prompt at temperature 1 from the full law; `kwargs` go to `generate`."""
    torch.manual_seed(seed)
    completions = []
    for start in range(0, len(prompts), _BATCH):
        inputs = tokenizer(prompts[start : start + _BATCH], return_tensors="pt", padding=True)
        sequences = model.generate(
            **inputs, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=MAX_NEW_TOKENS, **kwargs
        )
        completions += tokenizer.batch_decode(sequences[:, inputs.input_ids.shape[1] :], skip_special_tokens=True)
    return completions


def _measure_rule(pair: DemoPair, rule: str, examples: list[Example], seed: int) -> dict[str, float]:
    install_hook()
    prompts = [example.prompt for example in examples]
    with record_stats() as stats:
        completions = complete(pair.target, pair.tokenizer, prompts, seed, assistant_model=pair.draft, verifier=rule)
    return {
        "right": accuracy(completions, examples),
        "acceptance_rate": stats.acceptance_rate,
        "verified_acceptance_rate": stats.verified_acceptance_rate,
        "block_efficiency": stats.block_efficiency,
    }


def repeated_ngrams(examples: list[Example], training: Iterable[Example]) -> float:
    """Share of the examples' distinct word 8-grams, over prompt and completion, that the training text contains."""
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

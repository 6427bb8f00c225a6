"""Count forward passes of ways to choose the number of draft tokens, on the embedded pair.

    python -m benchmarks.forwards --output results/draft-lengths-counted.json

Counts need no idle machine: if a draft token costs c target forward passes, the speed of a method is its number of
tokens over the time of its forward passes, tokens / (target forwards + c * draft forwards). Forward passes over the
prompts alone are left out: transformers has none, as its first one also reads draft tokens.

Methods are transformers' assisted generation with its defaults, a verifier with a constant number of draft tokens, and
a verifier with the schedule "confidence", for several costs that its rule assumes, and the default maximum.
"""

import argparse
import itertools
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from transformers.utils import logging

from hf_diversed.evaluation.decoder import Sampling, encode, left_padded, timed_call
from hf_diversed.files import write_json
from hf_diversed.generation.confidence import ConfidenceRule
from hf_diversed.generation.drafting import ModelDrafter, active_draft_tokens
from hf_diversed.generation.rows import PerRow
from hf_diversed.provenance import provenance
from hf_diversed.tasks import PromptedTask, get_task, load_records
from hf_diversed.zoo import load_pair
from hf_diversed.zoo.loader import Pair


TASKS, VERIFIERS, TEMPERATURES = ("math", "summary", "code"), ("lossless", "lenience:0.3"), (1.0, 0.0)
COSTS, CONSTANTS = (0.05, 0.1, 0.2, 0.3, 0.43), (*range(1, 9), 12, 16)
Prompts = Sequence[Sequence[int]]


class Counts(NamedTuple):
    """New tokens, and forward passes of the target and of the draft model."""

    tokens: int
    target: int
    draft: int


def main() -> None:
    arguments = _arguments()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    pair, records = load_pair(), []
    for name, temperature in itertools.product(TASKS, TEMPERATURES):
        task = get_task(name, allow_code_execution=True)
        chosen = load_records(task, "test", arguments.num_prompts, arguments.seed)
        prompts = encode(pair.tokenizer, [*map(PromptedTask(task, pair.tokenizer, chat=False).prompt, chosen)])
        sampling = Sampling(temperature, max_new_tokens=arguments.max_new_tokens).generate_kwargs()
        default = count_transformers(pair, prompts, arguments.seed, **sampling)
        for verifier in VERIFIERS:
            found = count_lengths(pair, prompts, arguments.seed, verifier=verifier, **sampling)
            for method, counts in ({"transformers": default} | found).items():
                setting = {"task": name, "temperature": temperature, "verifier": verifier, "method": method}
                records.append(setting | {"n": len(prompts)} | counts._asdict())
                print(json.dumps(records[-1]), flush=True)
    settings = {"max_new_tokens": arguments.max_new_tokens, "records": records}
    write_json(arguments.output, settings | {"provenance": provenance(arguments.seed, "cpu")})


def count_transformers(pair: Pair, prompts: Prompts, seed: int, **settings: Any) -> Counts:
    """Decode prompts with transformers' assisted generation, one by one."""
    forwards: Counter[str] = Counter()
    hooks = [
        model.register_forward_pre_hook(lambda *_, name=name: forwards.update([name]))
        for name, model in (("target", pair.target), ("draft", pair.draft))
    ]
    settings["assistant_model"] = pair.draft
    rows = [timed_call(pair.target, seed, input_ids=torch.tensor([ids]), **settings)[1][0] for ids in prompts]
    for hook in hooks:
        hook.remove()
    return Counts(sum(map(len, rows)), forwards["target"], forwards["draft"])


def count_lengths(pair: Pair, prompts: Prompts, seed: int, **settings: Any) -> dict[str, Counts]:
    """Decode prompts with all numbers of draft tokens, in one batch with a rule for each row.

    The rules decide as in calls with one prompt, which gives the same counts up to random numbers.
    """
    methods = {f"constant {gamma}": partial(ConstantRule, gamma) for gamma in CONSTANTS}
    methods |= {f"confidence {cost}": partial(ConfidenceRule, cost) for cost in COSTS}
    inputs = left_padded([*prompts] * len(methods), pair.tokenizer.pad_token_id, pair.target.device)
    settings |= {"assistant_model": pair.draft, "num_assistant_tokens_schedule": "confidence"}
    with rule_per_row([build() for build in methods.values() for _ in prompts]):
        output, *_ = timed_call(pair.target, seed, **inputs, **settings)
    rows = iter([(row.num_emitted, row.num_rounds, row.num_drafted) for row in output.stats.per_row])
    return {method: Counts(*map(sum, zip(*itertools.islice(rows, len(prompts))))) for method in methods}


@contextmanager
def rule_per_row(rules: Sequence["ConfidenceRule | ConstantRule"]) -> Iterator[None]:
    """End the draft block of each row of a batch by a rule of its own."""
    propose, keep = ModelDrafter.propose, ModelDrafter.keep

    def propose_rows(drafter: ModelDrafter, counts: PerRow):
        draft, counts = propose(drafter, counts)
        if draft is None:
            return draft, counts
        widths = [min(count, width) for count, width in zip(counts.host, drafter.rule.widths)]
        counts = PerRow(widths, torch.tensor(widths))
        active = active_draft_tokens(draft.tokens, counts.device, drafter.rows.eos_ids_device)
        return replace(draft, active=active, num_drafted=active.sum(dim=-1)), counts

    def keep_rows(drafter: ModelDrafter, rows: torch.Tensor) -> None:
        drafter.rule.rules = [drafter.rule.rules[row] for row in rows.tolist()]
        keep(drafter, rows)

    with (
        patch.object(ConfidenceRule, "for_models", lambda *_: RowRules(rules)),
        patch.object(ModelDrafter, "propose", propose_rows),
        patch.object(ModelDrafter, "keep", keep_rows),
    ):
        yield


class RowRules(ConfidenceRule):
    """A rule for each row of a batch; `widths` are the numbers of draft tokens of the rows' last blocks."""

    def __init__(self, rules: Sequence["ConfidenceRule | ConstantRule"]):
        self.rules = rules

    def begin(self, limits: Sequence[int]) -> None:
        self.step, self.widths = 0, [0] * len(limits)
        for rule, limit in zip(self.rules, limits, strict=True):
            rule.begin([limit])

    def stops(self, confidences: Sequence[float]) -> bool:
        self.step += 1
        for row, (rule, confidence) in enumerate(zip(self.rules, confidences)):
            if not self.widths[row] and rule.stops([confidence]):
                self.widths[row] = self.step
        return all(self.widths)

    def update(self, accepted: Sequence[int]) -> None:
        for rule, number in zip(self.rules, accepted):
            rule.update([number])


class ConstantRule:
    """Ends the block of a row after `gamma` draft tokens, at its limit, or after an EOS."""

    def __init__(self, gamma: int):
        self.gamma = gamma

    def begin(self, limits: Sequence[int]) -> None:
        self.remaining = min(self.gamma, *limits)

    def stops(self, confidences: Sequence[float]) -> bool:
        self.remaining -= 1
        return self.remaining <= 0 or confidences[0] == 0.0

    def update(self, accepted: Sequence[int]) -> None:
        """Do nothing: the number is constant."""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", required=True, type=Path)
    parser.add_argument("--num-prompts", default=24, type=int)
    parser.add_argument("--max-new-tokens", default=96, type=int)
    parser.add_argument("--seed", default=0, type=int)
    return parser.parse_args()


if __name__ == "__main__":
    main()

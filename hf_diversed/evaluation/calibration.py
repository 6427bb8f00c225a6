"""Choose the strictness for a tolerated quality drop: measure and test each one against the target alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hf_diversed.blocks import DecodingContext
from hf_diversed.evaluation.calls import Task
from hf_diversed.evaluation.certification import FixedSequence, paired_drops
from hf_diversed.evaluation.evaluate import evaluate
from hf_diversed.evaluation.results import Results, read_results
from hf_diversed.evaluation.settings import EvaluationSettings
from hf_diversed.formatting import PLAIN
from hf_diversed.head import DiversedHead
from hf_diversed.provenance import module_digest
from hf_diversed.running.decode import Decoder
from hf_diversed.running.methods import Method
from hf_diversed.running.pair import Pair
from hf_diversed.running.prompts import encode
from hf_diversed.verifiers.certified import certified_entries, conditions_of
from hf_diversed.verifiers.diversed import DiversedVerifier


# Strict to permissive. Below the last one nearly every draft token is accepted.
STRICTNESSES = tuple(place / 20 for place in range(19, 0, -1))


@dataclass(frozen=True)
class Tested:
    """One strictness, measured and tested.

    Attributes:
        drop: the target's mean reward minus that at this strictness. acceptance_rate: None if nothing was drafted.
        p_values: of "the drop is larger", by tolerated drop, for drops that no stricter setting has failed.
    """

    strictness: float
    drop: float
    acceptance_rate: float | None
    p_values: Mapping[float, float]


def calibrate(
    pair: Pair,
    task: Task,
    examples: Sequence[Mapping[str, Any]],
    head: DiversedHead,
    settings: EvaluationSettings,
    max_drops: Sequence[float],
    output: Path,
    *,
    confidence: float = 0.95,
    strictnesses: Sequence[float] = STRICTNESSES,
) -> tuple[list[dict[str, Any]], list[Tested]]:
    """Find the most permissive strictness for each tolerated quality drop, by fixed-sequence testing.

    The certificates are also stored in `head.config.certified_drops`. They replace earlier ones for the same
    conditions, for other weights and of earlier versions.

    Args:
        pair, task, examples: as in `evaluate`, with a draft model; prompts that the head was not trained on, from
            the same distribution as those of later calls.
        settings: as in `evaluate`, for one process and with `num_assistant_tokens` set.
        max_drops: each in (0, 1), in units of the task's metric.
        output: a folder that stores every finished call, so that an interrupted calibration can continue.
        confidence: probability that a certified strictness stays within its drop, for each drop separately.
        strictnesses: values to test, from strict to permissive; measurement ends with the first that fails every drop.

    Returns:
        The new certificates, one for each drop with a certified strictness, and all tested settings.

    Raises:
        ValueError: for values out of range, and as in `evaluate`.
    """
    if settings.num_assistant_tokens is None or settings.world_size > 1:
        raise ValueError("a calibration needs settings with `num_assistant_tokens`, and runs in one process.")
    if pair.draft is None:
        raise ValueError("a calibration needs a draft model: prompt lookup cannot be certified.")
    if list(strictnesses) != sorted(set(strictnesses), reverse=True):
        raise ValueError(f"`strictnesses` must fall from strict to permissive, got {list(strictnesses)}.")
    sequence, tested = FixedSequence(max_drops, confidence), list[Tested]()
    conditions = _conditions(pair, task, examples[0], head, settings)
    for strictness in strictnesses:
        if not sequence.open:
            break
        label = f"diversed@{strictness:g}"
        records = evaluate(pair, task, examples, [PLAIN, label], settings, head=head, output=output)
        results = read_results(output)
        drops = paired_drops(rewards(results, PLAIN), rewards(results, label))
        drops = drops[np.random.default_rng(settings.seed).permutation(len(drops))]  # a file may be sorted
        (record,) = (record for record in records if record["method"] == label)
        tested.append(Tested(strictness, float(drops.mean()), record["acceptance_rate"], sequence.test(drops)))
    shared = {
        "confidence": float(confidence),
        "task": task.name,
        "metric": task.metric,
        "num_prompts": len(drops),
        "samples_per_prompt": settings.samples_per_prompt,
        "head": module_digest(head),
        **conditions,
    }
    found = []
    for max_drop, count in sequence.passed.items():
        if count:
            best = tested[count - 1]
            figures = {"strictness": best.strictness, "drop": best.drop, "acceptance_rate": best.acceptance_rate}
            found.append({"max_drop": float(max_drop), **figures, **shared})
    before = certified_entries(head.config.certified_drops or [], shared["head"])
    head.config.certified_drops = [entry for entry in before if not conditions.items() <= entry.items()] + found
    return found, tested


def rewards(results: Results, label: str) -> np.ndarray:
    """Return the rewards of one method, `[P, S]`; NaN where a call is missing."""
    found = np.full((results.header["n"], results.header["settings"]["samples_per_prompt"]), np.nan)
    for (method, _, sample), entry in results.entries.items():
        if method == label:
            found[entry["rows"]["prompt"], sample] = entry["rows"]["score"]
    return found


class _Probe(DiversedVerifier):
    """A verifier that stores the context of its last call."""

    context: DecodingContext

    def for_call(self, context: DecodingContext) -> "_Probe":
        self.context = context
        return self


def _conditions(
    pair: Pair, task: Task, example: Mapping[str, Any], head: DiversedHead, settings: EvaluationSettings
) -> dict[str, Any]:
    """Return the conditions of later calls, from a call of one token: the target's own config can add processors."""
    sampling = settings.sampling(task.stop_strings, task.max_new_tokens)
    probe = _Probe(head)
    prompts = encode(pair.tokenizer, [task.prompt(example)], settings.add_special_tokens)
    Decoder(pair, sampling)(Method("probe", probe), prompts, seed=0, max_new_tokens=1)
    return conditions_of(probe.context) | {"max_new_tokens": sampling.max_new_tokens}

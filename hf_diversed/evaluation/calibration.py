"""From a stated drop of quality to a dial: the head measured dial by dial beside the target alone, and tested."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hf_diversed.evaluation.calls import Task
from hf_diversed.evaluation.certification import FixedSequence, paired_drops
from hf_diversed.evaluation.evaluate import evaluate
from hf_diversed.evaluation.results import Results, read_results
from hf_diversed.evaluation.settings import EvaluationSettings
from hf_diversed.formatting import PLAIN
from hf_diversed.head import DiversedHead
from hf_diversed.provenance import module_digest
from hf_diversed.running.pair import Pair
from hf_diversed.verifiers.certified import SETTINGS


# Strict to permissive. What is more permissive than the last one is hardly a head's decision.
DIALS = tuple(place / 20 for place in range(19, 0, -1))


@dataclass(frozen=True)
class Tested:
    """One dial, measured and tested.

    Attributes:
        drop: of the mean reward, below the target alone. acceptance_rate: None where nothing was drafted.
        p_values: of "the drop is larger", by stated drop, for those that no stricter dial had failed.
    """

    quality: float
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
    dials: Sequence[float] = DIALS,
) -> tuple[list[dict[str, Any]], list[Tested]]:
    """Find the most permissive dial for every stated drop of quality, by fixed-sequence testing.

    Args:
        pair, task, examples: as in `evaluate`; prompts that the head was not trained on, drawn like those to come.
        settings: as in `evaluate`, of one process; they say how many drafts a round has.
        max_drops: each in (0, 1), in units of the task's metric.
        output: a folder that keeps every finished call, so that an interrupted calibration goes on where it stopped.
        confidence: of each stated drop's dial.
        dials: from strict to permissive; those behind the last that is needed are not measured.

    Returns:
        What to put into `head.config.certified_drops`, one entry per drop that a dial was certified for, and all dials
        that were tested.

    Raises:
        ValueError: on values out of range, and as `evaluate` does.
    """
    if settings.num_assistant_tokens is None or settings.world_size > 1:
        raise ValueError("a calibration needs settings with `num_assistant_tokens`, and runs in one process.")
    if list(dials) != sorted(set(dials), reverse=True):
        raise ValueError(f"`dials` must fall from strict to permissive, got {list(dials)}.")
    sequence, tested = FixedSequence(max_drops, confidence), list[Tested]()
    for dial in dials:
        if not sequence.open:
            break
        label = f"diversed@{dial:g}"
        records = evaluate(pair, task, examples, [PLAIN, label], settings, head=head, output=output)
        drops = _drops(read_results(output), label, settings.seed)
        (record,) = (record for record in records if record["method"] == label)
        tested.append(Tested(dial, float(drops.mean()), record["acceptance_rate"], sequence.test(drops)))
    shared = {
        "confidence": float(confidence),
        "task": task.name,
        "metric": task.metric,
        "num_prompts": len(drops),
        "samples_per_prompt": settings.samples_per_prompt,
        "head": module_digest(head),
        **{name: getattr(settings, name) for name in SETTINGS},
    }
    found = []
    for max_drop, count in sequence.passed.items():
        if count:
            best = tested[count - 1]
            figures = {"quality": best.quality, "drop": best.drop, "acceptance_rate": best.acceptance_rate}
            found.append({"max_drop": float(max_drop), **figures, **shared})
    return found, tested


def rewards(results: Results, label: str) -> np.ndarray:
    """Rewards of one method, `[P, S]`; nan where a call is missing."""
    found = np.full((results.header["n"], results.header["settings"]["samples_per_prompt"]), np.nan)
    for (method, _, sample), entry in results.entries.items():
        if method == label:
            found[entry["rows"]["prompt"], sample] = entry["rows"]["score"]
    return found


def merge_certified(
    before: Sequence[Mapping[str, Any]] | None,
    found: Sequence[dict[str, Any]],
    settings: EvaluationSettings,
    head: str,
) -> list[dict[str, Any]]:
    """The table with what a calibration found in place of an earlier one at these settings; other heads' are left out.

    Args:
        head: digest of the head, as in the entries.
    """
    of_settings = {name: getattr(settings, name) for name in SETTINGS}
    kept = [dict(entry) for entry in before or [] if entry["head"] == head]
    return [entry for entry in kept if any(entry[name] != of_settings[name] for name in SETTINGS)] + list(found)


def _drops(results: Results, label: str, seed: int) -> np.ndarray:
    """Drops of all prompts, in an order that does not depend on them: a file may be sorted."""
    drops = paired_drops(rewards(results, PLAIN), rewards(results, label))
    return drops[np.random.default_rng(seed).permutation(len(drops))]

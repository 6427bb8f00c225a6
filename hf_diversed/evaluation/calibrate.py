"""Choose the strictness for a tolerated quality drop: measure and test each one against the target alone.

Quality is a reward in [0, 1]; a drop is the target's mean reward minus that of relaxed decoding. Prompts are the
independent units: the samples of each are averaged first.

Letters: P prompts, S samples of each.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hf_diversed.evaluation.evaluate import EvaluationSettings, Results, evaluate, read_results
from hf_diversed.head import DiversedHead
from hf_diversed.tasks import PromptedTask, Task
from hf_diversed.verifiers.names import PLAIN
from hf_diversed.zoo.loader import Pair


# Strict to permissive. Below the last one nearly every draft token is accepted.
STRICTNESSES = tuple(place / 20 for place in range(19, 0, -1))
_LARGEST_BET = 0.75  # below 1, so that a single prompt cannot end the test
# Bets are those for level 0.05 at any confidence, so that a lower confidence never passes fewer values.
_LOG_INVERSE_LEVEL = math.log(1 / 0.05)


@dataclass(frozen=True)
class Tested:
    """One strictness, measured and tested.

    Attributes:
        drop: the target's mean reward minus that at this strictness. acceptance_rate: None if nothing was drafted.
        p_value: of "the drop is larger than tolerated".
    """

    strictness: float
    drop: float
    acceptance_rate: float | None
    p_value: float


def calibrate(
    pair: Pair,
    task: Task | PromptedTask,
    examples: Sequence[Mapping[str, Any]],
    head: DiversedHead,
    settings: EvaluationSettings,
    output: Path,
    *,
    max_quality_drop: float = 0.01,
    confidence: float = 0.95,
) -> list[Tested]:
    """Find the most permissive strictness for a tolerated quality drop, by fixed-sequence testing.

    `STRICTNESSES` are tested from strict to permissive until the first that fails, so no correction is needed: with
    probability `confidence` the chosen one has no larger mean drop than tolerated, on prompts of the same distribution
    and with the same models and settings (Learn then Test, Angelopoulos et al., arXiv 2110.01052).

    Sets `strictness` and `calibration` of the head's config. They do not change if no setting passes.

    Args:
        pair, task, examples: as in `evaluate`, with a draft model; prompts that the head was not trained on, from
            the same distribution as those of later calls.
        settings: as in `evaluate`, with `num_assistant_tokens` set.
        output: a folder that stores every finished call, so that an interrupted calibration can continue.
        max_quality_drop: tolerated drop, in (0, 1), in units of the task's metric.
        confidence: in (0, 1).

    Returns:
        All tested settings; all but the last have passed. The last one has if its p-value is at most `1 - confidence`.

    Raises:
        ValueError: for values out of range, and as in `evaluate`.
    """
    check_limits(max_quality_drop=max_quality_drop, confidence=confidence)
    if settings.num_assistant_tokens is None:
        raise ValueError("`num_assistant_tokens` must be set for a calibration, got None.")
    if pair.draft is None:
        raise ValueError("a calibration needs a draft model: it does not support prompt lookup.")
    tested: list[Tested] = []
    found = None
    for strictness in STRICTNESSES:
        label = f"diversed@{strictness:g}"
        records = evaluate(
            pair,
            task,
            examples,
            [PLAIN, label],
            settings,
            head=head,
            output=output,
        )
        results = read_results(output)
        drops = rewards(results, PLAIN).mean(axis=1) - rewards(results, label).mean(axis=1)
        drops = drops[np.random.default_rng(settings.seed).permutation(len(drops))]  # a file may be sorted
        (record,) = (record for record in records if record["method"] == label)
        p = p_value(drops, max_quality_drop)
        tested.append(Tested(strictness, float(drops.mean()), record["acceptance_rate"], p))
        if p > 1.0 - confidence:
            break
        found = tested[-1]
    if found is not None:
        head.config.strictness = found.strictness
        head.config.calibration = {
            "strictness": found.strictness,
            "max_quality_drop": float(max_quality_drop),
            "confidence": float(confidence),
            "drop": found.drop,
            "acceptance_rate": found.acceptance_rate,
            "task": task.name,
            "metric": task.metric,
            "num_prompts": len(drops),
            "samples_per_prompt": settings.samples_per_prompt,
            "temperature": float(settings.temperature),
            "top_k": settings.top_k,
            "top_p": float(settings.top_p),
            "num_assistant_tokens": settings.num_assistant_tokens,
            "max_new_tokens": settings.max_new_tokens or task.max_new_tokens,
        }
    return tested


def check_limits(**limits: float) -> None:
    """Raise ValueError unless all values lie between 0 and 1."""
    for name, value in limits.items():
        if not 0.0 < value < 1.0:
            raise ValueError(f"`{name}` must lie between 0 and 1, got {value!r}.")


def rewards(results: Results, label: str) -> np.ndarray:
    """Return the rewards of one method, `[P, S]`; NaN where a call is missing."""
    found = np.full((results.header["n"], results.header["settings"]["samples_per_prompt"]), np.nan)
    for (method, _, sample), entry in results.entries.items():
        if method == label:
            found[entry["rows"]["prompt"], sample] = entry["rows"]["score"]
    return found


def p_value(drops: np.ndarray, max_quality_drop: float) -> float:
    """Return the p-value of "the mean drop is above `max_quality_drop`", for any number of prompts and distribution.

    A test by betting: the capital grows with each prompt whose drop lies below the tolerated one, and each bet depends
    on earlier prompts only. Under the hypothesis the capital is a supermartingale, so by Ville's inequality it exceeds
    1/p with probability at most p (Waudby-Smith and Ramdas, arXiv 2010.09686, with their predictable plug-in bets for
    a fixed number of prompts). The bets adapt to the variance of the drops, which makes the test far tighter than
    worst-case bounds such as Hoeffding-Bentkus (Bates et al., arXiv 2101.02703). The p-value does not increase with
    `max_quality_drop`.

    Args:
        drops: `[P]` in [-1, 1], of prompts drawn independently from one distribution, in an order independent of them.
        max_quality_drop: in (0, 1).
    """
    counts = np.arange(1, len(drops) + 1)
    mean = np.cumsum(drops) / (counts + 1)
    variance = (1.0 + np.cumsum((drops - mean) ** 2)) / (counts + 1)
    variance = np.concatenate([[1.0], variance[:-1]])  # the estimate before each prompt
    bets = np.minimum(_LARGEST_BET, np.sqrt(2.0 * _LOG_INVERSE_LEVEL / (len(drops) * variance)))
    log_capital = np.cumsum(np.log1p(bets * (max_quality_drop - drops)))
    return float(math.exp(-max(0.0, log_capital.max())))

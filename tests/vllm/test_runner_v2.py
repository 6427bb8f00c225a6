"""Runner V2 on its own modules and kernels, in Triton's interpreter on a CPU, which is slow: few draws."""

import json
import os
import subprocess
import sys
from collections import Counter

import pytest
import torch

from tests.vllm.statistics import FALSE_ALARM, VOCAB, distributions, p_value


DRAWS = int(os.environ.get("VLLM_V2_DRAWS", "450"))


@pytest.fixture(scope="module")
def drawn():
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.vllm.v2_in_interpreter", str(DRAWS)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads(run.stdout.splitlines()[-1])


def check(drawn: dict, start: int, step: int, probs: torch.Tensor, kept: torch.Tensor) -> None:
    """Check the tokens of every `step`-th request from `start` against a distribution and acceptance probabilities."""
    tokens, drafted = (torch.tensor(drawn[name][start::step]) for name in ("tokens", "drafted"))
    accepted = torch.tensor(drawn["count"][start::step]) == 2
    assert torch.equal(tokens[accepted], drafted[accepted])
    assert p_value(torch.bincount(tokens, minlength=VOCAB).double(), probs) > FALSE_ALARM
    rate = kept[drafted].mean()
    count = Counter(accepted.tolist())
    both = torch.tensor([count[True], count[False]]).double()
    assert p_value(both, torch.stack([rate, 1.0 - rate])) > FALSE_ALARM


def expected(weight: float, max_bias: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mixture and the acceptance probability of each draft token, from the formulas, in float64."""
    target, q = distributions()
    p, q = target.double().softmax(-1), q.double()
    weight = max(weight, 1.0 - max_bias / float((p - q).clamp_min(0.0).sum()))
    v = weight * p + (1.0 - weight) * q
    return v, (v / q).clamp_max(1.0)


def test_kernels_emit_the_mixture(drawn):
    """Catches draft logits of another temperature, step or slot, and ones that the kernels do not read."""
    check(drawn["static"], 0, 1, *expected(0.5))


def test_requests_of_one_batch_have_their_own_settings(drawn):
    """Catches a table that is read by row instead of by slot."""
    for start, case in enumerate((expected(0.3), expected(1.0), expected(0.3, max_bias=0.1))):
        check(drawn["mixed"], start, 3, *case)


def test_greedy_draft_tokens(drawn):
    """Catches draft tokens without distributions that are refused, or verified losslessly: lenience accepts them with
    probability min(1, p / 0.8), and lossless verification emits the target's distribution."""
    target, q = distributions()
    p, draft = target.double().softmax(-1), q.argmax()
    for start, kept in enumerate((p[draft] / 0.8, p[draft])):
        probs = (1.0 - kept) * p / (1.0 - p[draft])
        probs[draft] = kept
        check(drawn["greedy"], start, 2, probs, probs)


def test_draft_tokens_dropped_by_adaptive_verification(drawn):
    """Catches rows that are found by a layout with all draft tokens: requests whose draft token was dropped follow
    the target, and the others their verifier."""
    found = {name: torch.tensor(values) for name, values in drawn["trimmed"].items()}
    admitted = found["admitted"] == 1
    assert 0 < admitted.sum() < len(admitted)
    assert torch.equal(found["count"][~admitted], torch.ones_like(found["count"][~admitted]))
    check({name: values[admitted].tolist() for name, values in found.items()}, 0, 1, *expected(0.5))
    target, _ = distributions()
    counts = torch.bincount(found["tokens"][~admitted], minlength=VOCAB).double()
    assert p_value(counts, target.double().softmax(-1)) > FALSE_ALARM

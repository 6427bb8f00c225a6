"""Two replicas behind a router under load; needs nginx on the PATH. `benchmarks/serving.py` measures more requests.

VLLM_REQUESTS is the number of simultaneous requests in each phase, 90 by default.
"""

import os
import shutil

import pytest

from benchmarks.load import STRICTNESSES, run_load_test
from benchmarks.served import start
from embedded.export import export_demo_pair
from hf_diversed.tasks import TASKS, load_records


REQUESTS = int(os.environ.get("VLLM_REQUESTS", "90"))
TASK = TASKS["math"]()
NGINX = shutil.which("nginx")


@pytest.fixture(scope="module")
def phases(tmp_path_factory):
    if NGINX is None:
        pytest.skip("no nginx on the path")
    folder = tmp_path_factory.mktemp("pair")
    export_demo_pair(folder)
    prompts = [TASK.prompt(record) for record in load_records(TASK, "test", REQUESTS, seed=0)]
    found = run_load_test(
        lambda: start(folder, folder, "--head", str(folder / "heads" / "math")), prompts, REQUESTS, NGINX, folder
    )
    found = {phase.name: phase for phase in found}
    for phase in found.values():
        print(
            phase.name,
            round(phase.seconds, 1),
            phase.counts(),
            [round(phase.acceptance(value), 4) for value in STRICTNESSES],
        )
    return found


def made(phase, *kinds: str) -> int:
    return sum(one.request.kind in kinds for one in phase.outcomes)


def test_bad_and_cancelled_requests_do_not_affect_others(phases):
    """Catches a refusal or a cancelled stream that ends other requests, or is decoded to the end."""
    phase = phases["two replicas"]
    bad, cancelled = made(phase, "bad"), made(phase, "cancel")
    assert min(bad, cancelled) > 0
    expected = {"answered": REQUESTS - bad - cancelled, "refused": bad, "cancelled": cancelled, "error": 0, "lost": 0}
    assert phase.counts() == expected


def test_a_killed_worker_loses_nothing_silently(phases):
    """Catches requests that wait for a dead process, and truncated answers without an error: streams that had begun
    end with an error, and the remaining replica answers all others."""
    phase = phases["a worker killed"]
    found = phase.counts()
    assert found["lost"] == 0
    assert found["refused"] == made(phase, "bad")
    assert {one.request.kind for one in phase.outcomes if one.status == "error"} <= {"stream", "cancel"}
    assert phases["the remaining replica"].counts()["answered"] == REQUESTS


@pytest.mark.parametrize("strictness", STRICTNESSES)
def test_acceptance_does_not_depend_on_the_load(phases, strictness):
    """Catches settings that are lost with a batch, a replica or a cancelled request."""
    rates = {name: phase.acceptance(strictness) for name, phase in phases.items()}
    for rate in rates.values():
        assert rate == pytest.approx(
            rates["one replica"], abs=0.0 if strictness == 0.0 else 0.06 + 0.5 / REQUESTS**0.5
        ), rates

"""Two replicas behind a router, many requests at once; wants nginx on the path. `benchmarks/serving.py` has larger
figures.

VLLM_REQUESTS says how many requests each phase makes at once, 90 by default.
"""

import os
import shutil

import pytest

from benchmarks.load import STRICTNESSES, drill
from benchmarks.served import start
from hf_diversed.serving.export import export_demo_pair
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
    found = drill(
        lambda: start(folder, folder, "--head", str(folder / "heads" / "math")), prompts, REQUESTS, NGINX, folder
    )
    found = {phase.name: phase for phase in found}
    for phase in found.values():
        print(
            phase.name, round(phase.seconds, 1), phase.counts(), [round(phase.acceptance(q), 4) for q in STRICTNESSES]
        )
    return found


def made(phase, *kinds: str) -> int:
    return sum(one.request.kind in kinds for one in phase.outcomes)


def test_bad_and_cancelled_requests_harm_nobody(phases):
    """Catches a refusal or a cancelled stream that takes others with it, or is decoded to the end."""
    phase = phases["two replicas"]
    bad, cancelled = made(phase, "bad"), made(phase, "cancel")
    assert min(bad, cancelled) > 0
    expected = {"answered": REQUESTS - bad - cancelled, "refused": bad, "cancelled": cancelled, "told": 0, "silent": 0}
    assert phase.counts() == expected


def test_a_killed_worker_loses_nothing_silently(phases):
    """Catches requests that wait for a dead process, and answers that are cut off and look whole: only streams that
    had begun end with an error that can be seen, all others are answered by the replica that is left."""
    phase = phases["a worker killed"]
    found = phase.counts()
    assert found["silent"] == 0
    assert found["refused"] == made(phase, "bad")
    assert {one.request.kind for one in phase.outcomes if one.what == "told"} <= {"stream", "cancel"}
    assert phases["the replica left"].counts()["answered"] == REQUESTS


@pytest.mark.parametrize("strictness", STRICTNESSES)
def test_a_dial_accepts_as_many_drafts_whatever_goes_on(phases, strictness):
    """Catches rules that are lost with a batch, a replica or a cancelled neighbour."""
    rates = {name: phase.acceptance(strictness) for name, phase in phases.items()}
    for rate in rates.values():
        assert rate == pytest.approx(
            rates["one replica"], abs=0.0 if strictness == 0.0 else 0.06 + 0.5 / REQUESTS**0.5
        ), rates

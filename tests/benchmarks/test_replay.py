"""`benchmarks/replay.py`: the cost of a rejection in a model with recurrent states."""

import pytest

from benchmarks import replay
from benchmarks.replay import ACCEPTED, build, measure
from tests import versions


@pytest.mark.skipif(versions.is_before("5.23"), reason="models with recurrent states are refused")
@pytest.mark.filterwarnings("ignore:.*falling back.*")
@pytest.mark.parametrize("batch_size", ACCEPTED)
def test_rejections_need_few_forwards_of_their_own(batch_size, monkeypatch):
    """Catches a replay in a forward of its own in every round, which would double the cost of a round."""
    small = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4}
    monkeypatch.setattr(replay, "SIZES", replay.SIZES | small)
    found = measure(build(seed=0), 40, ACCEPTED[batch_size])
    assert 1.0 < found["forwards_per_round"] < 1.5

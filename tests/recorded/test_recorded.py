"""The recorded calls still give the same tokens and statistics."""

import json

import pytest
from transformers.modeling_layers import MtpModel

from tests import versions
from tests.generation import sources
from tests.recorded.calls import COUNTERS, RESULTS, SUMS, run


RECORDS = [json.loads(line.rstrip(",")) for line in RESULTS.read_text().splitlines()[1:-1]]


@pytest.mark.skipif(versions.is_before("5.24"), reason="recorded with transformers 5.24")
@pytest.mark.filterwarnings("ignore:.*falling back.*")
@pytest.mark.parametrize("part", range(6))
def test_calls_give_the_recorded_tokens_and_statistics(part, monkeypatch):
    """Catches a change of tokens or statistics that was not meant."""
    monkeypatch.setattr(MtpModel, "from_pretrained", sources.random_mtp_model)
    for record in RECORDS[part::6]:
        found = json.loads(json.dumps(run(record["call"])))
        assert found["tokens"] == record["result"]["tokens"], record["call"]
        for row, expected in zip(found["rows"], record["result"]["rows"], strict=True):
            assert [row[name] for name in COUNTERS] == [expected[name] for name in COUNTERS], record["call"]
            assert [row[name] for name in SUMS] == pytest.approx([expected[name] for name in SUMS], abs=1e-4)

"""`benchmarks/head_costs.py`: the time of a round with a token head that reads more of the block."""

import pytest

from benchmarks import head_costs
from hf_diversed import DiversedVerifier, LosslessVerifier
from tests.tiny import tiny_draft, tiny_model


def test_extra_time_is_per_round_and_without_prefill(monkeypatch):
    """Catches a time per token, a prefill that is counted, and a comparison in the wrong direction."""
    now = 0.0
    for verifier, milliseconds in ((LosslessVerifier, 2), (DiversedVerifier, 3)):

        def advance(self, *arguments, call=verifier.__call__, seconds=milliseconds / 1000, **options):
            nonlocal now
            now += seconds
            return call(self, *arguments, **options)

        monkeypatch.setattr(verifier, "__call__", advance)
    monkeypatch.setattr(head_costs.time, "thread_time", lambda: now)
    target = tiny_model()
    generate = target.generate

    def with_prefill(*arguments, **options):
        nonlocal now
        now += 0.05
        return generate(*arguments, **options)

    monkeypatch.setattr(target, "generate", with_prefill)
    found = head_costs.measure(target, tiny_draft(target), "eager", turns=3)
    assert found["lossless_ms"] == pytest.approx(2)
    assert found["extra"] == pytest.approx([0.5] * 3)

"""`benchmarks/compiled.py`: the figures that it takes from records of a benchmark."""

from argparse import Namespace

import pytest

from benchmarks.compiled import summary


ARGUMENTS = Namespace(weight=0.7)


def spread(value: float) -> dict:
    return {"median": value, "quartiles": [value, value]}


def row(method: str, size: int, ratios: dict[str, float], **changes) -> dict:
    """A record with unique figures."""
    found = {"method": method, "batch_size": size, "engine": "compiled", "acceptance_rate": 0.5}
    found |= {"compile_seconds": 9.04, "own_percent": spread(3 * size), "ratios": {}}
    for name, value in ratios.items():
        found["ratios"][name] = {"ms_per_round": spread(value), "tokens_per_second": spread(value + 1)}
    return found | changes


def records(**changes) -> list[dict]:
    return [
        each
        for size in (1, 8)
        for each in (
            row("compiled:target", size, {}, engine=None),
            row("compiled:static:0.7", size, {"upstream": 0.25}, **changes),
            row("compiled:diversed", size, {"plain_compiled": 1.25}),
        )
    ]


def test_summary_takes_each_figure_from_its_record():
    """Catches figures of another unit, verifier or batch size."""
    found = summary(records(), ARGUMENTS)
    assert found["round_cost_ratio"]["median"] == 0.25
    assert found["throughput_ratio_by_batch"]["8"]["median"] == 1.25
    assert found["head_throughput_ratio_to_plain_compiled"]["1"]["median"] == 2.25
    assert found["own_percent"]["8"]["median"] == 24
    assert found["compile_seconds"] == {"1": 9.0, "8": 9.0}


def test_summary_refuses_what_did_not_run_compiled():
    """Catches a fallback that is reported as the compiled engine."""
    with pytest.raises(RuntimeError, match="ran uncompiled"):
        summary(records(engine="compiled (forwards)"), ARGUMENTS)

"""Speed measurements: what is timed, the comparisons, and the errors."""

import json

import pytest
import torch

from benchmarks.rounds import BenchmarkSettings, SyntheticVerifier, benchmark
from benchmarks.rounds.timing import PHASES
from hf_diversed import LosslessVerifier, StaticEnsembleVerifier
from tests import tiny
from tests.engines.modes import shallow
from tests.verifier_cases import make_block


SHORT = {"context_lengths": (8,), "draft_lengths": (3,), "max_new_tokens": 16, "repeats": 2, "progress": False}
METHODS = ["target", "upstream", "upstream:0.7", "lossless", "static:0.7", "fresh:both"]


@pytest.fixture(scope="module")
def report(pair) -> dict:
    """A report without a given acceptance, which upstream does not support."""
    return benchmark(*pair, METHODS, BenchmarkSettings(**SHORT, batch_sizes=(1, 3)))


def record(report: dict, method: str, batch_size: int = 1) -> dict:
    (found,) = [row for row in report["records"] if (row["method"], row["batch_size"]) == (method, batch_size)]
    return found


@pytest.mark.parametrize("verifier", [LosslessVerifier(), StaticEnsembleVerifier(0.5)])
def test_synthetic_rates_are_conditional_and_the_verifier_still_runs(verifier):
    """Catches unconditional rates, a list truncated at the wrong end, and a residual of another verifier."""
    draft, target = make_block(rows=2)
    rows, count = draft.tokens.shape
    verdict = SyntheticVerifier(verifier, [0.9, 0.5, 0.25, 0.1])(None, draft, target)
    torch.testing.assert_close(verdict.accept_prob, torch.tensor([[0.9, 0.5, 0.25, 0.1][:count]]).expand(rows, -1))
    positions = torch.zeros(rows, dtype=torch.long)
    torch.testing.assert_close(verdict.replacement(positions), verifier(None, draft, target).replacement(positions))


def test_records(report):
    """Catches missing methods and figures, upstream at an unsupported batch size, and JSON that is not strict."""
    json.dumps(report, allow_nan=False)
    places = {(row["method"], row["batch_size"]) for row in report["records"] if row["implementation"] != "machine"}
    assert places == {(name, size) for name in METHODS for size in (1, 3) if size == 1 or "upstream" not in name}
    for name in METHODS:
        row = record(report, name)
        assert row["ms_per_round"]["median"] > 0
        assert row["num_assistant_tokens"] == (None if name == "target" else 3)
        ours = row["implementation"] == "hf_diversed"
        assert (row["breakdown"] is not None) == (row["acceptance_rate"] is not None) == ours
        if name != "target":
            assert 1 <= row["block_efficiency"] <= 4
    breakdown = record(report, "fresh:both")["breakdown"]
    assert tuple(breakdown) == PHASES
    assert all(value > 0 for value in breakdown.values())


def test_methods_are_compared_over_the_same_tokens_with_the_right_reference(report):
    """Catches rounds over different texts, a static ensemble compared with lossless upstream, and inverted ratios."""
    for name in ("lossless", "static:0.7"):
        assert record(report, name)["same_tokens_as_upstream"] is True
    assert record(report, "upstream")["ratios"].keys() == {"plain"}
    assert record(report, "fresh:both", 3)["ratios"].keys() == {"plain", "upstream", "lossless"}
    # A round has three draft forwards more than a step of the target alone.
    assert record(report, "lossless")["ratios"]["plain"]["ms_per_round"]["median"] > 1


def test_compiled_methods_run_compiled(pair):
    """Catches a compiled method that decodes eagerly, an acceptance that applies to one engine only, and speeds that
    are compared with upstream's at another acceptance."""
    settings = BenchmarkSettings(**SHORT, batch_sizes=(1,), acceptance=(1.0,), backend="eager")
    pair = shallow(pair)
    found = benchmark(*pair, ["target", "upstream:0.7", "static:0.7", "compiled:static:0.7"], settings)
    eager, ours = record(found, "static:0.7"), record(found, "compiled:static:0.7")
    assert (eager["engine"], ours["engine"]) == ("eager", "compiled")
    assert ours["acceptance_rate"] == eager["acceptance_rate"] == 1.0
    assert ours["block_efficiency"] == eager["block_efficiency"] == 4.0
    assert eager["compile_seconds"] is None
    assert ours["compile_seconds"] > 0
    assert eager["ratios"]["upstream"].keys() == {"ms_per_round"}
    assert [tiny.num_hooks(model) for model in pair] == [0, 0]
    assert pair[0].generation_config.eos_token_id == tiny.EOS


@pytest.mark.parametrize(
    ("methods", "settings", "words"),
    [
        (["lossless"], {"draft_lengths": (5, 5)}, "repeat"),
        (["lossless"], {"max_new_tokens": 17}, "max_new_tokens.*>= 18"),
        (["lossless"], {"acceptance": (1.2,)}, r"\[0, 1\]"),
        (["lossless"], {"acceptance": (0.5,), "temperature": 0.0}, "greedy"),
        (["nonsense"], {}, "unknown method"),
        (["upstream:1"], {}, "weight in"),
        (["compiled:upstream:0.7"], {}, "no static cache"),
        (["fresh:both+nonsense"], {}, "features must be one of"),
        (["lossless", "lossless"], {}, "different methods"),
        (["diversed"], {}, "needs a head"),
        (["upstream"], {"batch_sizes": (2,)}, "only batch size"),
        (["lossless"], {"context_lengths": (100,)}, "<= 128, the positions.*got 164"),
    ],
)
def test_benchmark_refuses(pair, methods, settings, words):
    """Catches errors that would occur only after minutes."""
    with pytest.raises(ValueError, match=words):
        benchmark(*pair, methods, BenchmarkSettings(**{"context_lengths": (8,), **settings}))

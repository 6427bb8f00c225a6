"""`python -m benchmarks.speed` on models of a few kilobytes: what is timed, the comparisons, and the errors."""

import json

import pytest
import torch

from benchmarks.speed import SyntheticVerifier, main
from hf_diversed import LosslessVerifier, StaticEnsembleVerifier
from tests import tiny
from tests.verifier_cases import make_block


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run the command on models with random weights and read its report."""
    config = tiny.tiny_model("llama").config
    config.num_hidden_layers = 1
    config.save_pretrained(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    small = f"--target-config {tmp_path}/config.json --draft-config {tmp_path}/config.json --device cpu --repeats 2"
    small += " --context-length 8 --draft-length 3 --max-new-tokens 16 --backend eager"

    def run(options: str) -> dict:
        main([*small.split(), *options.split(), "--output", str(tmp_path / "new" / "report.json")])
        assert "…" not in capsys.readouterr().out
        return json.loads((tmp_path / "new" / "report.json").read_text())

    return run


def record(report: dict, method: str, batch_size: int = 1) -> dict:
    (found,) = [row for row in report["records"] if (row["method"], row["batch_size"]) == (method, batch_size)]
    return found


@pytest.mark.parametrize("verifier", [LosslessVerifier(), StaticEnsembleVerifier(0.5)])
def test_a_synthetic_rate_is_conditional_and_the_verifier_still_runs(verifier):
    """Catches unconditional rates, and a residual of another verifier."""
    draft, target = make_block(rows=2)
    verdict = SyntheticVerifier(verifier, 0.9)(None, draft, target)
    assert (verdict.accept_prob == 0.9).all()
    positions = torch.zeros(2, dtype=torch.long)
    torch.testing.assert_close(verdict.replacement(positions), verifier(None, draft, target).replacement(positions))


def test_records(run):
    """Catches missing methods, upstream at an unsupported batch size, ratios to another method, and rounds that are
    tokens."""
    methods = ["target", "upstream", "upstream:0.7", "lossless", "static:0.7"]
    report = run(f"--methods {','.join(methods)} --batch-sizes 1,3")
    places = {(row["method"], row["batch_size"]) for row in report["records"]}
    assert places == {(name, size) for name in methods for size in (1, 3) if size == 1 or "upstream" not in name}
    assert record(report, "upstream")["ratios"].keys() == {"target"}
    assert record(report, "static:0.7", 3)["ratios"].keys() == {"target", "upstream"}
    lossless, static = record(report, "lossless"), record(report, "static:0.7")
    assert lossless["ratios"]["upstream"]["ms_per_round"]["median"] > 0
    assert static["num_assistant_tokens"] == 3
    assert 1 <= static["block_efficiency"] <= 4
    upstream = record(report, "upstream")
    num_rounds = upstream["seconds"]["median"] / upstream["ms_per_round"]["median"] * 1e3
    assert 16 / 4 <= num_rounds < 16  # 16 new tokens, at most 4 per round
    assert sum(upstream["shares"].values()) == pytest.approx(1.0)
    assert min(upstream["shares"].values()) > 0
    assert record(report, "target")["shares"]["draft"] == 0
    assert record(report, "target")["num_assistant_tokens"] is None
    assert report["provenance"]["benchmark"]["batch_sizes"] == [1, 3]


def test_compiled_methods_run_compiled(run):
    """Catches a compiled method that decodes eagerly, and an acceptance that applies to one engine only."""
    report = run("--methods static:0.7,compiled:static:0.7 --batch-sizes 1 --acceptance 1.0")
    eager, ours = record(report, "static:0.7"), record(report, "compiled:static:0.7")
    assert (eager["engine"], ours["engine"][:8]) == ("eager", "compiled")
    assert ours["acceptance_rate"] == eager["acceptance_rate"] == 1.0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--target-config", "qwen3-8b"], "go together"),
        (["--acceptance", "0.5", "--temperature", "0"], "greedy"),
        (["--methods", "compiled:upstream"], "no static cache"),
    ],
)
def test_bad_options_are_messages(options, words, capsys):
    """Catches tracebacks for user errors."""
    with pytest.raises(SystemExit) as raised:
        main(options)
    assert raised.value.code == 2
    assert words in capsys.readouterr().err

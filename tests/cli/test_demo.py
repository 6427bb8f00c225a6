"""`hf-diversed demo` on the embedded pair."""

import json
import re
from unittest.mock import Mock

import pytest

from hf_diversed.cli import demo as module
from tests.commands import succeed


SHORT = ("demo", "--num-examples", "2", "--max-new-tokens", "8", "--repeats", "1")


def test_a_row_per_method_and_a_coloured_answer():
    """Catches a method that fails or is missing in the table, and an answer without its prompt."""
    result = succeed(*SHORT, "--no-compile")
    for name in ("target", "upstream:0.7", "lossless", "static:0.7", "static:0.3", "lenience:0.05", "diversed"):
        assert re.search(rf"^{name} +1 +(-|[0-9.]+%) ", result.stdout, re.MULTILINE), name
    assert len(re.findall(r"^(?:target|diversed) +8 ", result.stdout, re.MULTILINE)) == 2
    assert "compiled" not in result.output
    assert result.stdout.index("Question:") < result.stdout.index("accepted draft")


def test_json_and_compiled_methods(monkeypatch):
    """Catches a speedup over the target at another batch size, and compiled methods compared with the eager target."""
    from hf_diversed.generation.warmup import default_compile_config

    eager = Mock(side_effect=lambda device: default_compile_config(device, "eager"))
    monkeypatch.setattr("hf_diversed.generation.warmup.default_compile_config", eager)
    rows = json.loads(succeed(*SHORT, "--json").stdout)
    keyed = {(row["method"], row["batch_size"]): row for row in rows}
    assert len(keyed) == len(rows) == 11
    for name, size, reference in (
        ("lossless", 1, "target"),
        ("diversed", 8, "target"),
        ("compiled:diversed", 1, "compiled:target"),
    ):
        (speed,), (other,) = (keyed[key, size]["tokens_per_second"] for key in (name, reference))
        assert keyed[name, size]["speedup"] == pytest.approx(speed / other)
        assert keyed[reference, size]["speedup"] is None


def test_without_a_compiler(monkeypatch):
    """Catches a demo that fails where compilation is not possible, and a failure that is not reported."""
    from hf_diversed.generation.warmup import default_compile_config

    wrong = Mock(side_effect=lambda device: default_compile_config(device, "no-such-backend"))
    monkeypatch.setattr("hf_diversed.generation.warmup.default_compile_config", wrong)
    result = succeed(*SHORT)
    assert "Compilation failed on this machine" in result.stderr
    assert "accepted draft" in result.stdout


def test_methods_alternate_prompt_by_prompt():
    """Catches a method that is timed after another one has finished, while the machine's load changes."""
    calls = []

    def decoder(size):
        def decode(method, batch, seed):
            calls.append((method, size, len(batch), seed))
            return Mock(seconds=1.0, tokens=[[1, 2]] * len(batch), stats=None)

        return Mock(side_effect=decode, sampling=Mock(batch_size=size))

    rows = [module.Row("a", decoder(1)), module.Row("b", decoder(2))]
    module._measure(rows, [[0], [1], [2]], 10, 2)
    turn = [("a", 1, 1, 10), ("b", 2, 2, 10), ("a", 1, 1, 11), ("a", 1, 1, 12), ("b", 2, 1, 12)]
    assert calls == turn * 2
    assert [row.tokens_per_second for row in rows] == [[2.0, 2.0], [3.0, 3.0]]

"""`hf-diversed demo` on the embedded pair."""

import json
import re
from unittest.mock import Mock

import pytest

from hf_diversed.cli import demo as module
from hf_diversed.evaluation.decoder import Method
from tests.commands import succeed


SHORT = ("demo", "--num-examples", "1", "--max-new-tokens", "8", "--repeats", "1")
METHODS = ("target", "transformers", "lossless", "static:0.3", "lenience:0.05", "diversed")


def test_a_row_per_method_and_a_coloured_answer():
    """Catches a method that fails or is missing, an answer without its prompt, and output that fills a screen."""
    result = succeed(*SHORT)
    for name in METHODS:
        assert re.search(rf"^{name} +(-|[0-9.]+%) ", result.stdout, re.MULTILINE), name
    assert result.stdout.index("Question:") < result.stdout.index("accepted draft")
    assert all(command in result.stdout for command in module.NEXT)
    assert len(result.stdout.splitlines()) <= 25


def test_json():
    """Catches a speedup over another method than the target."""
    keyed = {row["method"]: row for row in json.loads(succeed(*SHORT, "--json").stdout)}
    assert tuple(keyed) == METHODS
    (speed,), (other,) = (keyed[name]["tokens_per_second"] for name in ("lossless", "target"))
    assert keyed["lossless"]["speedup"] == pytest.approx(speed / other)
    assert keyed["target"]["speedup"] == 1.0


def test_methods_alternate_prompt_by_prompt():
    """Catches a method that is timed after another one has finished, while the machine's load changes."""
    calls = []

    def decode(method, batch, seed, **kwargs):
        calls.append((method.label, batch, seed, *kwargs.values()))
        return Mock(seconds=1.0, tokens=[[1, 2]], stats=None)

    rows = [module.Row(Method("a")), module.Row(Method("b"))]
    module._measure(Mock(side_effect=decode), rows, [[0], [1]], 10, 2)
    assert calls[:2] == [("a", [[0]], 10, 8), ("b", [[0]], 10, 8)]  # eight tokens to warm up
    assert calls[2:] == [("a", [[0]], 10), ("b", [[0]], 10), ("a", [[1]], 11), ("b", [[1]], 11)] * 2
    assert [row.tokens_per_second for row in rows] == [[2.0, 2.0], [2.0, 2.0]]

"""`hf-diversed demo` on the embedded pair."""

import json
import re

import pytest

from hf_diversed.cli import demo as module
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

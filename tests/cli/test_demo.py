"""`hf-diversed demo` on the embedded pair."""

import re

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


SECONDS = {"target": [2.0, 4.0], "lossless": [0.5, 1.0]}


def test_speedup():
    """Catches a speedup over another method than the target."""
    rows = [module.Row(Method(label), num_tokens=4, seconds=seconds) for label, seconds in SECONDS.items()]
    assert [module._speedup(rows, row) for row in rows] == [1.0, 4.0]

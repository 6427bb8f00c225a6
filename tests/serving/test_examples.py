"""The client of the serving docs."""

import ast
import re
from pathlib import Path

from hf_diversed.serving.vllm.deployment import PREFIX, SETTINGS


ROOT = Path(__file__).parents[2]


def test_the_client_sends_known_fields():
    """Catches a field that the server refuses."""
    source = (ROOT / "examples" / "serving" / "client.py").read_text()
    ast.parse(source)
    sent = set(re.findall(rf'"{PREFIX}(\w+)"', source))
    assert sent
    assert sent <= {"verifier", *SETTINGS}

"""The parts of a name."""

import pytest

from hf_diversed.verifiers.names import base_name, family


@pytest.mark.parametrize(
    ("text", "name", "expected", "value"),
    [
        ("target", "target", "target", None),
        ("static:0.7", "static", "static", 0.7),
        ("spec_cascade:token_v3:0.5", "spec_cascade", "spec_cascade:token_v3", 0.5),
        ("diversed", "diversed", "diversed", 0.5),
        ("diversed@0.25", "diversed", "diversed", 0.25),
        ("diversed:org/head@main", "diversed", "diversed:org/head@main", 0.5),
        ("diversed:org/head@main@0.7", "diversed", "diversed:org/head@main", 0.7),
    ],
)
def test_parts_of_a_name(text, name, expected, value):
    """Catches a revision read as a strictness, and a rule of SpecCascade read as its parameter."""
    assert base_name(text) == name
    assert family(text) == (expected, value)

"""Families of methods: their names, values and errors."""

import pytest

from hf_diversed.evaluation.frontier import FAMILIES, expand
from hf_diversed.harness.methods import build_methods
from hf_diversed.method_names import MethodName


def test_families_expand_into_methods():
    """Catches a strictness written as a parameter, missing references, and values that the verifier refuses."""
    assert expand(["static:0.3:0.7", "diversed:0.25", "spec_cascade:0.5", "spec_cascade:opt:-0.1"]) == [
        *("target", "lossless", "static:0.3", "static:0.7", "diversed@0.25"),
        *("spec_cascade:token_v3:0.5", "spec_cascade:opt:-0.1"),
    ]
    for family, values in FAMILIES.items():
        methods = expand([family])
        assert [MethodName.parse(method).family for method in methods[2:]] == [(family, value) for value in values]
        if family != "diversed":
            assert len(build_methods(methods)) == len(values) + 2


@pytest.mark.parametrize(
    ("families", "words"),
    [
        ([], ["at least one", "static"]),
        (["magic"], ["magic", "lenience"]),
        (["spec_cascade:v9:0.5"], ["spec_cascade:v9", "token_v3"]),
        (["static:0.5:high"], ["numbers", "static:0.5:high"]),
        (["static:0.5", "static:0.5"], ["static:0.5", "more than once"]),
        (["spec_cascade", "spec_cascade:token_v3"], ["more than once"]),
    ],
)
def test_refused_families(families, words):
    with pytest.raises(ValueError) as error:
        expand(families)
    assert all(word in str(error.value) for word in words)

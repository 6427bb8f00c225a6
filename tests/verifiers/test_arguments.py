"""What the rules refuse, and how they print."""

from dataclasses import replace

import pytest

from hf_diversed.verifiers import LenientVerifier, SpecCascadeVerifier, StaticEnsembleVerifier, build_verifier
from tests.verifier_cases import make_block


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: StaticEnsembleVerifier(1.2), r"`weight` must lie in \[0, 1\], got 1.2. 1 is lossless"),
        (lambda: StaticEnsembleVerifier(float("nan")), r"`weight` must lie in \[0, 1\], got nan"),
        (lambda: LenientVerifier(-0.1), r"`lenience` must lie in \[0, 1\], got -0.1"),
        (lambda: LenientVerifier(0), r"`lenience` must lie in \(0, 1\], got 0. It must be above 0"),
        (lambda: SpecCascadeVerifier("token_v4"), "`rule` must be one of chow, .*, token_v3, got 'token_v4'"),
        (lambda: SpecCascadeVerifier("chow", -0.1), r"`alpha` must lie in \[0, 1\], got -0.1"),
        (lambda: SpecCascadeVerifier("diff", 1.1), r"`alpha` must lie in \[-1, 1\], got 1.1"),
        (lambda: SpecCascadeVerifier("opt", float("nan")), r"`alpha` must lie in \[-inf, inf\], got nan"),
    ],
)
def test_refuses_values_out_of_range(make, message: str):
    """Catches a setting that makes v no law, found only once the output looks odd."""
    with pytest.raises(ValueError, match=message):
        make()


def test_cascade_asks_for_raw_logits():
    """Catches gates that fall back to processed laws when nobody kept the raw ones."""
    draft, target = make_block("random")
    assert SpecCascadeVerifier.needs_raw_logits
    for blocks in ((replace(draft, raw_logits=None), target), (draft, replace(target, raw_logits=None))):
        with pytest.raises(ValueError, match="needs raw logits"):
            SpecCascadeVerifier()(draft.tokens, *blocks)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("lossless", "LosslessVerifier()"),
        ("static:0.7", "StaticEnsembleVerifier(weight=0.7)"),
        ("spec_cascade:chow:0.3", "SpecCascadeVerifier(rule='chow', alpha=0.3)"),
    ],
)
def test_builds_a_rule_from_text(spec: str, expected: str):
    """Catches a parameter that a command line passes on as text, or to another rule."""
    assert repr(build_verifier(spec)) == expected


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("strict", "unknown verifier 'strict'; registered are diversed, lenience, lossless"),
        ("static", "verifier 'static' lacks or has wrong parameters"),
        ("lossless:1", "verifier 'lossless:1' lacks or has wrong parameters"),
        ("static:2", r"`weight` must lie in \[0, 1\], got 2.0"),
        ("diversed:org/head", "head must be a DiversedHead, got str"),
    ],
)
def test_refuses_text_that_names_no_rule(spec: str, message: str):
    """Catches a typing error on the command line that runs some other rule, or ends in a traceback from inside."""
    with pytest.raises(ValueError, match=message):
        build_verifier(spec)


def test_prints_its_settings():
    """Catches results that cannot be told apart in a log: the setting is what a reader needs."""
    assert repr(SpecCascadeVerifier("opt", 0.25)) == "SpecCascadeVerifier(rule='opt', alpha=0.25)"

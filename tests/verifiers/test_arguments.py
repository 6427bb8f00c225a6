"""Invalid arguments of verifiers, verifiers from text, and the parts of a name."""

from dataclasses import replace

import pytest

from hf_diversed.verifiers import (
    ContrastiveVerifier,
    DiversedVerifier,
    FLyVerifier,
    FuzzyVerifier,
    LenientVerifier,
    LosslessVerifier,
    LossyVerifier,
    MarsVerifier,
    PhaseVerifier,
    SpecCascadeVerifier,
    StaticEnsembleVerifier,
    TopKRelaxedVerifier,
    TypicalAcceptanceVerifier,
    build_verifier,
)
from hf_diversed.verifiers.names import base_name, family
from tests.verifier_cases import make_block, random_head


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: StaticEnsembleVerifier(1.2), r"`weight` must lie in \[0, 1\], got 1.2. 1 is lossless"),
        (lambda: LenientVerifier(0), r"`lenience` must lie in \(0, 1\], got 0. A value of 1 is lossless"),
        (lambda: SpecCascadeVerifier("token_v4"), "`rule` must be one of chow, .*, token_v3, got 'token_v4'"),
        (lambda: SpecCascadeVerifier("chow", -0.1), r"`alpha` must lie in \[0, 1\], got -0.1"),
        (lambda: SpecCascadeVerifier("diff", 1.1), r"`alpha` must lie in \[-1, 1\], got 1.1"),
        (lambda: LossyVerifier(1.0), r"`alpha` must lie in \[0, 1\), got 1.0. A value of 0 is lossless"),
        (lambda: LossyVerifier(0.5, 0.4), r"`beta` must lie in \[0.5, inf\], got 0.4. None balances the mass"),
        (lambda: FuzzyVerifier(-0.1), r"`threshold` must lie in \[0, inf\], got -0.1"),
        (lambda: FuzzyVerifier(0.1, "kl", 1.5), r"`confidence` must lie in \[0, 1\], got 1.5"),
        (lambda: FuzzyVerifier(0.1, "renyi"), "`divergence` must be one of kl, reverse_kl, js, tv, got 'renyi'"),
        (lambda: ContrastiveVerifier(-1.0), r"`beta` must lie in \[0, 1000\], got -1.0"),
        (lambda: ContrastiveVerifier(0.5, 2), r"`alpha` must lie in \[0, 1\], got 2"),
        (lambda: TypicalAcceptanceVerifier(1.1), r"`epsilon` must lie in \[0, 1\], got 1.1"),
        (lambda: TypicalAcceptanceVerifier(delta=-1), r"`delta` must lie in \[0, inf\], got -1"),
        (lambda: TopKRelaxedVerifier(0), "`top_k` must be an integer >= 1, got 0"),
        (lambda: TopKRelaxedVerifier(3, 1.5), r"`delta` must lie in \[0, 1\], got 1.5"),
        (lambda: MarsVerifier(1.1), r"`theta` must lie in \[0, 1\], got 1.1"),
        (lambda: SpecCascadeVerifier("opt", float("nan")), r"`alpha` must lie in \[-inf, inf\], got nan"),
        (lambda: DiversedVerifier(random_head(), 1.5), r"`strictness` must lie in \[0, 1\], got 1.5. 0 accepts every"),
        (
            lambda: DiversedVerifier(random_head(), []),
            "`strictness` must be one value or one per row, got an empty list",
        ),
        (
            lambda: DiversedVerifier(random_head(), max_bias=-0.1),
            r"`max_bias` must lie in \[0, 1\], got -0.1. 0 is loss",
        ),
        (
            lambda: DiversedVerifier(random_head(), max_ratio=0.5),
            r"`max_ratio` must lie in \[1, inf\], got 0.5. .* 2 all",
        ),
        (lambda: PhaseVerifier(LosslessVerifier(), begin=1, end=1), "different tokens, got 1 for both"),
        (lambda: PhaseVerifier(LosslessVerifier(), begin=-1, end=1), "`begin` must be a token id, got -1"),
        (lambda: FLyVerifier(window_size=0), "`window_size` must be an integer >= 1, got 0"),
    ],
)
def test_refuses_values_out_of_range(make, message: str):
    """Catches a setting for which v is not a distribution, and which would only show in the output."""
    with pytest.raises(ValueError, match=message):
        make()


def test_cascade_needs_raw_logits():
    """Catches a gate that falls back to processed distributions if raw logits are missing."""
    draft, target = make_block("random")
    assert SpecCascadeVerifier.needs_raw_logits
    for blocks in ((replace(draft, raw_logits=None), target), (draft, replace(target, raw_logits=None))):
        with pytest.raises(ValueError, match="needs `raw_logits`"):
            SpecCascadeVerifier()(draft.tokens, *blocks)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("lossless", "LosslessVerifier()"),
        ("fuzzy:0.2:kl:0.9", "FuzzyVerifier(threshold=0.2, divergence='kl', confidence=0.9)"),
        ("fly", "FLyVerifier(entropy_threshold=0.3, window_size=None, top_k=3)"),
        ("static:0.7:1:3", "StaticEnsembleVerifier(max_bias=[1.0], max_ratio=[3.0], weight=0.7)"),
        ("block:static:0.7", "BlockVerifier(verifier=StaticEnsembleVerifier(weight=0.7))"),
    ],
)
def test_builds_a_verifier_from_text(spec: str, expected: str):
    """Catches a parameter that a command line passes on as text, or to another verifier."""
    assert repr(build_verifier(spec)) == expected


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("strict", "unknown verifier 'strict' .*; known verifiers: lossless, static, .*, phase"),
        ("static", r"verifier 'static' needs a value, for example static:0.7 \(the form is static:weight"),
        ("lenienc:0.3", r"unknown verifier 'lenienc' \(did you mean lenience\?\)"),
        ("lossless:1", "verifier 'lossless:1' has the wrong number of parameters, 1; write for example lossless"),
        ("block:lenienc:0.3", r"unknown verifier 'lenienc' \(did you mean lenience\?\)"),
        ("block:0.5", "verifier 'block:0.5' cannot be built: BlockVerifier takes"),
        ("phase:static:0.7", "verifier 'phase:static:0.7' cannot be built from text"),
        ("block:lossy:0.5", "needs a verifier with an emitted distribution"),
        ("diversed:org/head", "verifier 'diversed:org/head' needs a head: pass diversed_head= instead"),
    ],
)
def test_refuses_text_without_a_known_verifier(spec: str, message: str):
    """Catches a typing error on the command line that selects another verifier, or ends in a traceback."""
    with pytest.raises(ValueError, match=message):
        build_verifier(spec)


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

"""Methods by name, and errors."""

import pytest
import torch

from hf_diversed import DiversedHead, DiversedHeadConfig
from hf_diversed.harness.decode import Decoder
from hf_diversed.harness.methods import Method, build_methods
from hf_diversed.harness.sampling import Sampling
from hf_diversed.method_names import MethodName
from hf_diversed.verifiers import (
    DiversedVerifier,
    LosslessVerifier,
    SpecCascadeVerifier,
    StaticEnsembleVerifier,
)
from tests.evaluation.fakes import tiny_pair


@pytest.fixture
def head() -> DiversedHead:
    torch.manual_seed(0)
    return DiversedHead(DiversedHeadConfig(4, 4)).eval()


@pytest.mark.parametrize(
    ("text", "family", "value"),
    [
        ("target", "target", None),
        ("lossless", "lossless", None),
        ("static:0.7", "static", 0.7),
        ("spec_cascade:token_v3:0.5", "spec_cascade:token_v3", 0.5),
        ("target:top_p=0.9", "target:top_p=0.9", None),
        ("upstream:0.7", "upstream", 0.7),
        ("compiled:static:0.7", "compiled:static", 0.7),
        ("diversed", "diversed", 0.5),
        ("diversed@0.25", "diversed", 0.25),
        ("diversed@v2", "diversed@v2", None),
        ("diversed:org/head@main", "diversed:org/head@main", 0.5),
        ("diversed:org/head@main@0.7", "diversed:org/head@main", 0.7),
        ("compiled:diversed:org/head@0.7", "compiled:diversed:org/head", 0.7),
        ("mine", "mine", None),
        ("lossless, compiled", "lossless, compiled", None),
    ],
)
def test_parts_of_a_name(text, family, value):
    """Catches a revision read as a strictness, and a name that parsing changes."""
    assert MethodName.parse(text).family == (family, value)
    assert str(MethodName.parse(text)) == text


def test_names(head):
    """Catches a name that builds another verifier, a strictness of 0 that is ignored, and missing static points."""
    names = ["target", "lossless", "static:0.7", "spec_cascade:token_v3:0.5"]
    names += ["diversed", "diversed@0.25", "diversed@0"]
    methods = build_methods([*names, ("mine", StaticEnsembleVerifier(0.2))], head)
    assert [method.label for method in methods] == [*names, "mine"]
    kinds = [type(None), LosslessVerifier, StaticEnsembleVerifier, SpecCascadeVerifier]
    assert [type(method.verifier) for method in methods[:4]] == kinds
    assert [method.static_weight for method in methods] == [None, 1.0, 0.7, None, None, None, None, 0.2]
    assert [method.verifier.strictness for method in methods[4:7]] == [[0.5], [0.25], [0.0]]
    assert build_methods(methods) == methods


def test_a_calibrated_head_is_measured_as_trained(head, caplog):
    """Catches a user who measures another strictness than `generate` uses, without a warning."""
    head.config.strictness = 0.25
    assert build_methods(["diversed@0.25"], head)[0].verifier.strictness == [0.25]
    assert not caplog.records
    assert build_methods(["diversed"], head)[0].verifier.strictness == [0.5]
    assert "write diversed@0.25" in caplog.text


def test_prompt_lookup_copies_as_many_tokens_as_the_head_was_trained_with():
    """Catches a default that replaces the head's number of draft tokens."""
    head = DiversedHead(DiversedHeadConfig(features="distribution", num_assistant_tokens=7))
    method = Method("diversed", DiversedVerifier(head))
    assert method.generate_kwargs(None, None)["prompt_lookup_num_tokens"] == 7
    assert method.generate_kwargs(None, 3)["prompt_lookup_num_tokens"] == 3
    assert Method("lossless", LosslessVerifier()).generate_kwargs(None, None)["prompt_lookup_num_tokens"] == 5


def test_truncated_target(head):
    """Catches a truncation without effect, results that are mixed with others, and a misspelled option."""
    pair, plain = tiny_pair(), build_methods(["target", "target:top_k=1:top_p=0.9"])
    assert plain[1].generate_kwargs(None, 5) == {"top_k": 1, "top_p": 0.9}
    assert [method.definition for method in plain] == ["plain", "plain:top_k=1:top_p=0.9"]
    decoder = Decoder(pair, Sampling(max_new_tokens=6))
    first, best = (decoder(plain[1], [[5, 6, 7]], seed=seed).tokens for seed in (0, 1))
    assert first == best  # only the most likely token is left
    with pytest.raises(ValueError, match="needs a temperature above 0"):
        Decoder(pair, Sampling(temperature=0.0, max_new_tokens=6))(plain[1], [[5, 6, 7]], seed=0)
    outside = [f"target:{part}" for part in ("top_p=0", "top_p=2", "typical_p=3", "min_p=-1", "top_k=-1")]
    for wrong in ("target:top_q=0.9", "target:top_p", "target:top_p=x", *outside):
        with pytest.raises(ValueError, match="must have the form target, or target:<name>=<value>"):
            build_methods([wrong])


def test_heads_by_name(head, tmp_path):
    """Catches a revision used as a strictness, and the given head used instead of the named one."""
    folder = tmp_path / "head@v2"
    head.save_pretrained(folder)
    plain, strict = build_methods([f"diversed:{folder}", f"diversed:{folder}@0.75"], DiversedHead(head.config))
    for method, strictness in ((plain, 0.5), (strict, 0.75)):
        assert isinstance(method.verifier, DiversedVerifier)
        assert method.verifier.strictness == [strictness]
        assert torch.equal(next(method.verifier.head.parameters()), next(head.parameters()))
    assert build_methods(["diversed"], folder)[0].verifier.head is plain.verifier.head


def test_descriptions_identify_the_head(head):
    """Catches results of one head continued with another: equal descriptions must mean equal decoding."""
    before = build_methods(["diversed"], head)[0].definition
    assert build_methods(["diversed"], head)[0].definition == before
    assert build_methods(["diversed@0.6"], head)[0].definition != before
    with torch.no_grad():
        next(head.parameters()).add_(1e-3)
    assert build_methods(["diversed"], head)[0].definition != before


def test_bounded_weights_are_not_on_the_static_curve():
    """Catches a curve through points whose weight differs from their label."""
    methods = build_methods(["static:0.3", "static:0.3:0.1"])
    assert [method.static_weight for method in methods] == [0.3, None]


@pytest.mark.parametrize(
    ("specs", "words"),
    [
        ([], ["at least one", "none"]),
        (["lossless", "lossless"], ["different labels", "lossless"]),
        (["nucleus:0.7"], ["nucleus:0.7", "target", "static"]),
        (["static"], ["static", "needs a value"]),
        (["static:1.5"], ["weight", "1.5"]),
        (["static:0.7@0.5"], ["weight", "0.7@0.5"]),
        (["target:1"], ["target:1"]),
        (["target:top_k=0.5"], ["target:top_k=0.5", "an integer top_k"]),
        (["target:top_k=inf"], ["target:top_k=inf", "an integer top_k"]),
        (["compiled:static:0.7"], ["compiled:static:0.7", "benchmarks.rounds"]),
        (["compiled:diversed"], ["compiled:diversed", "benchmarks.rounds"]),
        (["diversed"], ["needs a head", "head="]),
        (["diversed@0.5"], ["needs a head"]),
        (["diversed:"], ["diversed:<folder"]),
        (["diversed@high"], ["diversed@high", "strictness"]),
        (["diversed@1.5"], ["strictness", "1.5"]),
        ([("target", LosslessVerifier())], ["target", "reserved"]),
        ([("mine", "static:0.7")], ["mine", "Verifier", "str"]),
    ],
)
def test_refusals(specs, words, head):
    with pytest.raises((ValueError, TypeError)) as error:
        build_methods(specs, head if specs == ["diversed@1.5"] else None)
    assert all(word in str(error.value) for word in words), str(error.value)

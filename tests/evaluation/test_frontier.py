"""Families into methods and back, and a sweep over several draft lengths."""

import json

import pytest

from hf_diversed.evaluation import EvaluationSettings
from hf_diversed.evaluation.frontier import FAMILIES, expand, frontier
from hf_diversed.running.methods import MethodName, build_methods
from tests.evaluation.fakes import LetterTask, examples, tiny_pair


def test_families_expand_into_methods():
    """Catches a dial written as a rule's parameter, lost references and values that are not the family's own."""
    assert expand(["static:0.3:0.7", "diversed:0.25", "spec_cascade:0.5", "spec_cascade:opt:-0.1"]) == [
        *("target", "lossless", "static:0.3", "static:0.7", "diversed@0.25"),
        *("spec_cascade:token_v3:0.5", "spec_cascade:opt:-0.1"),
    ]
    for family, values in FAMILIES.items():
        methods = expand([family])
        assert [MethodName.parse(method).family for method in methods[2:]] == [(family, value) for value in values]
        if family != "diversed":
            assert len(build_methods(methods)) == len(values) + 2  # every default lies in its rule's range


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ([], ["at least one", "static"]),
        (["magic"], ["magic", "lenience"]),
        (["spec_cascade:v9:0.5"], ["spec_cascade:v9", "token_v3"]),
        (["static:0.5:high"], ["numbers", "static:0.5:high"]),
        (["static:0.5", "static:0.5"], ["static:0.5", "more than once"]),
        (["spec_cascade", "spec_cascade:token_v3"], ["more than once"]),
    ],
)
def test_refused_rules(rules, words):
    with pytest.raises(ValueError) as error:
        expand(rules)
    assert all(word in str(error.value) for word in words)


def test_sweep_over_draft_lengths(tmp_path):
    """Catches rules at the wrong draft length, records of one length under another's name, and lost points."""
    settings = EvaluationSettings(batch_size=4, num_assistant_tokens=9)
    arguments = (tiny_pair(), LetterTask(), examples(4), ["static:0:0.5", "lenience:0.5"], settings)
    records = frontier(*arguments, num_assistant_tokens=[2, 5], output=tmp_path)
    found = [(record["num_assistant_tokens"], record["family"], record["parameter"]) for record in records]
    static = [("target", None), ("lossless", None), ("static", 0.0), ("static", 0.5)]
    assert found == [(5, *point) for point in [*static, ("lenience", 0.5)]] + [(2, *point) for point in static]
    for record in records[1:]:
        assert record["method"] == "target" or len(record["accepted_per_position"]) <= record["num_assistant_tokens"]
    written = json.loads((tmp_path / "frontier.json").read_text())
    assert written["records"] == records
    assert written["provenance"]["evaluation"]["settings"]["num_assistant_tokens"] == 5
    task = LetterTask()
    again = frontier(arguments[0], task, *arguments[2:], num_assistant_tokens=[2, 5], output=tmp_path)
    assert again == records
    assert task.num_calls == 0
    for lengths in ([], [5, 5]):
        with pytest.raises(ValueError, match="num_assistant_tokens"):
            frontier(*arguments, num_assistant_tokens=lengths)

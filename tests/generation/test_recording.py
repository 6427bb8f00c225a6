"""Statistics of rounds: the expected number of accepted draft tokens, given the acceptance probabilities."""

import pytest
import torch

from hf_diversed.evaluation import EvaluationSettings, evaluate
from hf_diversed.generation import recording
from hf_diversed.generation.recording import RecordedRound, sum_up
from hf_diversed.harness.pair import Pair
from hf_diversed.head import DiversedHead, DiversedHeadConfig
from hf_diversed.theory import expected_accepted
from hf_diversed.verifiers import DiversedVerifier
from tests.evaluation.fakes import LetterTask, examples, tiny_pair
from tests.tiny import SAMPLED, ragged_batch


@pytest.fixture(scope="module")
def pair() -> Pair:
    return tiny_pair()


@pytest.fixture(scope="module")
def head() -> DiversedHead:
    """Weights all over (0, 1)."""
    torch.manual_seed(0)
    head = DiversedHead(DiversedHeadConfig(32, 32)).eval()
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return head


def measure(pair: Pair, head: DiversedHead, **changes) -> dict[str, dict]:
    """Run each method on 1,000 rows (by default) of the tiny pair in one call; return statistics by method."""
    stop_strings = changes.pop("stop_strings", [])
    methods = changes.pop("methods", ["lossless", "static:0.3", "diversed"])
    options = EvaluationSettings(**{"num_examples": 1000, "batch_size": 1000, "num_assistant_tokens": 4} | changes)
    task = LetterTask(stop_strings=stop_strings, max_new_tokens=12)
    records = evaluate(pair, task, examples(10) * 100, methods, options, head=head)
    return {record["method"]: record for record in records}


def test_expected_by_hand():
    """Catches draft tokens after a rejection that are omitted, a row's expectation stored under another row, draft
    tokens after EOS or the maximum length that are expected, and rounds after a row's end that are counted."""
    rounds = []
    accept = torch.tensor([[0.5, 1.0, 0.5], [1.0, 0.5, 1.0], [0.5, 0.5, 0.5]])
    # Row 0 rejects at once, row 2 drafts one token, row 1 keeps all three but ends behind the second one.
    for starts, drafted, accepted, probabilities in (
        ([10, 10, 10], [3, 1, 3], [0, 1, 3], accept[[0, 2, 1]]),
        ([11, 12, 14], [3, 3, 3], [1, 0, 2], accept),
    ):
        rounds.append(RecordedRound([0, 2, 1], starts, drafted, accepted, [1, 1, 1], probabilities))
    rounds.append(RecordedRound([0, 2], [13, 13], [0, 0], [0, 0], [1, 1]))
    stats = sum_up(rounds, [14, 12, 14], forwards=(3, 6))
    first, second, third = (row.expected_accepted_sum for row in stats.per_row)
    assert first == pytest.approx((0.5 + 0.5 + 0.25) + (0.5 + 0.5 + 0.25))
    assert second == pytest.approx((1.0 + 0.5 + 0.5) - 1.0)
    assert third == pytest.approx(0.5 + (1.0 + 0.5 + 0.5))
    assert [row.num_accepted for row in stats.per_row] == [1, 2, 1]
    assert [row.num_rounds for row in stats.per_row] == [3, 1, 3]
    assert stats.expected_accepted_length == pytest.approx((first + second + third) / 7)


def test_greedy_expectation_is_exact(pair, head):
    """Catches an expectation from other distributions than those that decide."""
    records = measure(pair, head, temperature=0, num_examples=10)
    for record in records.values():
        assert record["accepted_length_exact"] == record["accepted_length"]
        assert record["accepted_length_z"] == 0.0
    assert 0.0 < records["static:0.3"]["accepted_length"] < 4.0


@pytest.mark.parametrize("stop_strings", [[], list("abcdefghijklm")], ids=["eos", "stop strings"])
def test_measured_and_expected_length_agree(pair, head, stop_strings):
    """Catches acceptance that does not follow min(1, v / q), and draft tokens that a stop, EOS or the length removes
    from one of both numbers only. False alarms: |z| > 4 in one of 16,000 for each of six figures, 4e-4 in all; the
    seed is fixed."""
    for record in measure(pair, head, stop_strings=stop_strings).values():
        assert abs(record["accepted_length_z"]) <= 4.0, record
        assert record["accepted_length_exact"] == pytest.approx(record["accepted_length"], abs=0.1)


def test_wrong_expectations_are_detected(pair, head, monkeypatch):
    """Catches a z that is small for any prediction, here of draft tokens after EOS and the maximum length."""
    monkeypatch.setattr(recording, "expected_accepted", lambda probs, _: expected_accepted(probs))
    assert measure(pair, head, methods=["static:0.3"])["static:0.3"]["accepted_length_z"] < -4.0


def test_bias_per_token_is_estimated_without_bias_and_recorded_exactly(pair):
    """Catches an estimate of something other than TV(v, p), and records that contain it instead of TV(v, p). False
    alarms: the two sums over some ten thousand positions differ by 4.5 standard errors once in 150,000 times; the seed
    is fixed."""
    config = DiversedHeadConfig(32, 32, features="distribution", token_features=True)
    by_token = DiversedHead(config).eval()
    by_token.start_lenient(0.3)
    verifier, batch = DiversedVerifier(by_token), ragged_batch(batch_size=4)
    batch = {name: values.repeat_interleave(200, 0) for name, values in batch.items()}
    sums = []
    for with_records in (False, True):
        torch.manual_seed(0)
        call = {**batch, **SAMPLED, "return_dict_in_generate": True, "output_token_records": with_records}
        out = pair.target.generate(**call, assistant_model=pair.draft, verifier=verifier)
        sums.append(out.stats.bias_sum / out.stats.bias_count)
    bias = out.token_records.bias
    assert out.stats.bias_count == out.stats.num_accepted + out.stats.num_rejected == (~bias.isnan()).sum()
    assert sums[1] == pytest.approx(bias.nanmean().item(), rel=1e-4)
    assert sums[0] != sums[1]
    # An estimate lies in [0, 1] and has the exact bias as its mean.
    assert abs(sums[0] - sums[1]) < 4.5 * (sums[1] * (1.0 - sums[1]) / out.stats.bias_count) ** 0.5
    assert (out.token_records.strict_prob.isnan() == bias.isnan()).all()

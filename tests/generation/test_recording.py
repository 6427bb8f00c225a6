"""Statistics of rounds: the expected number of accepted draft tokens, given the acceptance probabilities.

`tests/fuzz` compares the sums of every row with a naive reference.
"""

import pytest
import torch

from hf_diversed.evaluation import EvaluationSettings, evaluate
from hf_diversed.harness.pair import Pair
from hf_diversed.head import DiversedHead, DiversedHeadConfig
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

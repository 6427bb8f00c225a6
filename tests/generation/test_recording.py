"""Statistics of rounds: accepted draft tokens against the verdicts of their rounds, and biases.

`tests/fuzz` compares the sums of every row with a naive reference.
"""

import pytest
import torch

from hf_diversed.generation.recording import Recorder
from hf_diversed.head import DiversedHead, DiversedHeadConfig
from hf_diversed.outputs import GenerateDiversedOutput
from hf_diversed.verifiers import DiversedVerifier
from hf_diversed.zoo.loader import Pair
from tests.evaluation.fakes import tiny_pair
from tests.tiny import SAMPLED, ragged_batch, tiny_head


@pytest.fixture(scope="module")
def pair() -> Pair:
    return tiny_pair()


def run(pair: Pair, monkeypatch, **settings) -> tuple[GenerateDiversedOutput, torch.Tensor, torch.Tensor]:
    """Return the output of a call with 1,000 rows, its accepted draft tokens per row, and their expectations.

    The expectation is `sum_n prod_{t <= n} a_t` over the draft tokens of each round, with a from the verdicts. Both
    numbers contain draft tokens that a stop string then removes.
    """
    measured, expected = torch.zeros(2, 1000, dtype=torch.float64)
    add = Recorder.add

    def adding(self, recorded, round):
        add(self, recorded, round)
        if round.verdict is not None:
            drafted = torch.arange(round.verdict.accept_prob.shape[1]) < round.num_drafted[:, None]
            survival = round.verdict.accept_prob.double().cumprod(dim=1).masked_fill(~drafted, 0.0)
            running = torch.tensor(recorded.emitted) > 0
            rows = torch.tensor(recorded.rows)[running]
            measured[rows] += round.num_accepted[running]
            expected[rows] += survival.sum(dim=1)[running]

    monkeypatch.setattr(Recorder, "add", adding)
    batch = {name: values.repeat(250, 1) for name, values in ragged_batch(batch_size=4).items()}
    torch.manual_seed(0)
    call = {**SAMPLED, "num_assistant_tokens": 4, "return_dict_in_generate": True, "output_token_records": True}
    return pair.target.generate(**batch, **call | settings, assistant_model=pair.draft), measured, expected


@pytest.mark.parametrize(
    ("verifier", "stop_strings"),
    [("lossless", list("abcdefghijklm")), ("static:0.3", None), (DiversedVerifier(tiny_head()), None)],
    ids=["lossless, stop strings", "static", "diversed"],
)
def test_acceptance_agrees_with_its_expectation(pair, monkeypatch, verifier, stop_strings):
    """Catches acceptance that does not follow the verdict, uniforms that are not uniform or depend on the draft
    tokens, and counts of draft tokens after a stop string. False alarms: |z| > 4 in one of 16,000 for each of three
    figures, 2e-4 in all; the seed is fixed."""
    settings = {"stop_strings": stop_strings, "tokenizer": pair.tokenizer}
    out, measured, expected = run(pair, monkeypatch, verifier=verifier, **settings)
    excess = measured - expected
    assert excess.std() > 0
    assert abs(excess.mean()) <= 4.0 * excess.std() / len(excess) ** 0.5
    counted = [row.num_accepted for row in out.stats.per_row]
    assert counted == (out.token_records.source == 0).sum(dim=1).tolist()
    assert (sum(counted) < measured.sum()) == (stop_strings is not None)


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

"""Draft blocks that end early: what the rules decide, and that decoding is otherwise the same."""

import math
import random

import pytest
import torch
from transformers.generation.stopping_criteria import ConfidenceCriteria

from hf_diversed.generation.confidence import ConfidenceRule, ThresholdRule, logit
from hf_diversed.generation.drafting import DiversedCandidateGenerator
from hf_diversed.generation.measurements import ConfidenceFit
from hf_diversed.verifiers import build_verifier
from tests.engines.modes import STATIC
from tests.tiny import Listener, generate, ragged_batch


GREEDY = {"do_sample": False, "max_new_tokens": 40}
RULES = [{"num_assistant_tokens_schedule": "confidence"}, {"assistant_confidence_threshold": 0.1}]
RULES += [{"num_assistant_tokens_schedule": "adaptive"}]


@pytest.fixture
def widths(monkeypatch) -> list[int]:
    """The number of draft tokens of each round, in order."""
    found, propose = [], DiversedCandidateGenerator.propose

    def watched(self, counts):
        draft, counts = propose(self, counts)
        found.append(0 if draft is None else draft.tokens.shape[1])
        return draft, counts

    monkeypatch.setattr(DiversedCandidateGenerator, "propose", watched)
    return found


def test_a_block_ends_where_the_next_draft_token_does_not_pay():
    """Catches rows that are not averaged, finished rows that count, and rows at their limit that ask for more."""
    numbers, fit = random.Random(0), ConfidenceFit()
    decisions = set()
    for _ in range(200):
        cost, limits = numbers.uniform(0.05, 1.0), [numbers.choice([0, 1, 2, 6]) for _ in range(3)]
        rule = ConfidenceRule(fit, cost)
        rule.begin(limits)
        alive, running = [1.0] * 3, [row for row in range(3) if limits[row]]
        for step in range(1, max(limits) + 1):
            confidences = [numbers.random() for _ in limits]
            for row in range(3):
                odds = math.exp(fit.parameters[0] + fit.parameters[1] * logit(confidences[row]))
                alive[row] *= odds / (1 + odds)
            gain = sum(alive[row] for row in running if limits[row] > step) / len(running)
            pays = gain * fit.mean_acceptance > fit.rate(cost) * cost
            assert rule.stops(confidences) is not pays
            decisions.add(pays)
            if not pays:
                break
        rule.update([min(limit, numbers.randint(0, step)) for limit in limits])
    assert decisions == {True, False}


@pytest.mark.parametrize("true", [(1.67, 0.66), (-1.0, 1.5)])
def test_the_fit_finds_the_acceptance(true):
    """Catches a fit that does not converge, and draft tokens after a rejection that are counted as rejected."""
    numbers, fit = random.Random(1), ConfidenceFit()
    for _ in range(3000):
        rule, values = ConfidenceRule(fit), [numbers.uniform(0.02, 0.98) for _ in range(4)]
        rule.begin([4])
        for value in values:
            rule.stops([value])
        count = 0
        while count < 4 and numbers.random() < 1 / (1 + math.exp(-true[0] - true[1] * logit(values[count]))):
            count += 1
        rule.update([count])
    for value in (0.1, 0.5, 0.9):
        expected = 1 / (1 + math.exp(-true[0] - true[1] * logit(value)))
        assert fit.acceptance(logit(value)) == pytest.approx(expected, abs=0.06)


def test_tokens_after_an_eos_are_not_learned():
    fit = ConfidenceFit()
    rule = ConfidenceRule(fit)
    before = fit.parameters
    rule.begin([3, 3])
    rule.stops([0.0, 0.0])
    rule.update([0, 0])
    assert fit.parameters == before


def test_a_threshold_ends_a_block_after_the_unlikely_token():
    """Catches a token that is dropped, and a batch that waits for its last row."""
    rule = ThresholdRule(0.5)
    rule.begin([5, 5, 5, 0])
    assert not rule.stops([0.5, 0.4, 0.9, 0.0])
    assert rule.stops([0.9, 0.9, 0.4, 0.0]), "two of three running rows were below the threshold once"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: next(iter(rule.values())))
@pytest.mark.parametrize("batch_size", [1, 3])
def test_greedy_lossless_decoding_is_unchanged(pair, widths, rule, batch_size):
    """Catches caches that are rewound by the requested instead of the drafted number of tokens."""
    plain = pair[0].generate(**ragged_batch(batch_size), **GREEDY)
    for _ in range(3):  # the adaptive schedule remembers
        found = pair[0].generate(
            **ragged_batch(batch_size), **GREEDY, **rule, assistant_model=pair[1], verifier="lossless"
        )
        assert torch.equal(found, plain)
    assert len(set(widths)) >= 2


def test_a_seed_determines_the_output(pair):
    """Catches measurements of earlier calls, and of times, that change the lengths."""
    call = {"num_assistant_tokens_schedule": "confidence", "verifier": "static:0.5"}
    first = generate(pair, **call, max_new_tokens=30)
    generate(pair, **call, max_new_tokens=30, **ragged_batch(2, seed=5))
    torch.manual_seed(0)
    first = generate(pair, **call, max_new_tokens=30)
    torch.manual_seed(0)
    again = generate(pair, **call, max_new_tokens=30)
    assert torch.equal(first.sequences, again.sequences)
    assert first.stats.num_drafted == again.stats.num_drafted


@pytest.mark.parametrize("verifier", ["lossless", "block:static:0.5", "lenience:0.3"])
def test_counts_follow_the_drafted_tokens(pair, widths, verifier):
    """Catches draft tokens that are counted but were not drafted, and records of the requested length."""
    streamer = Listener()
    out = generate(
        pair, verifier=verifier, num_assistant_tokens_schedule="confidence", output_token_records=True,
        streamer=streamer, **ragged_batch(1), max_new_tokens=40,
    )  # fmt: skip
    stats, source = out.stats, out.token_records.source
    assert len(set(widths)) >= 2
    assert stats.num_rounds == len(widths)
    assert stats.num_drafted <= sum(widths)
    assert stats.num_accepted == int((source == 0).sum()) == sum(stats.accepted_per_position)
    assert stats.draft_forwards - 1 == sum(widths)
    assert sum(part.num_drafted for _, part in streamer.rounds) == stats.num_drafted


@pytest.mark.parametrize("do_sample", [False, True])
def test_a_threshold_ends_blocks_as_in_transformers(pair, monkeypatch, do_sample):
    """Catches another probability, such as the largest instead of the token's, and an off-by-one."""
    drafts, propose = [], DiversedCandidateGenerator.propose

    def watched(self, counts):
        draft, counts = propose(self, counts)
        drafts.extend([] if draft is None else [draft])
        return draft, counts

    monkeypatch.setattr(DiversedCandidateGenerator, "propose", watched)
    config = pair[1].generation_config
    monkeypatch.setattr(config, "assistant_confidence_threshold", 0.2)
    generate(
        pair, **ragged_batch(1), verifier="lossless", num_assistant_tokens=6, max_new_tokens=60, do_sample=do_sample
    )
    ends = ConfidenceCriteria(config.assistant_confidence_threshold)
    for draft in drafts[:-1]:  # the last block ends at the length limit
        steps = [ends(draft.tokens[:, : n + 1], [draft.scores[:, n]]) for n in range(draft.tokens.shape[1])]
        assert not any(steps[:-1])
        assert steps[-1] or len(steps) == 6
    assert len({draft.tokens.shape[1] for draft in drafts}) >= 3


def test_a_threshold_of_the_call_comes_before_the_draft_model(pair, widths, monkeypatch):
    monkeypatch.setattr(pair[1].generation_config, "assistant_confidence_threshold", 1.0)
    call = {**ragged_batch(1), **GREEDY, "assistant_model": pair[1], "verifier": "lossless", "num_assistant_tokens": 4}
    pair[0].generate(**call)
    assert set(widths) <= {0, 1}
    widths.clear()
    pair[0].generate(**call, assistant_confidence_threshold=0.0)
    assert widths[0] == 4


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan, "0.5", True])
def test_bad_thresholds_are_refused(pair, value):
    with pytest.raises((TypeError, ValueError), match="assistant_confidence_threshold"):
        generate(pair, verifier="lossless", assistant_confidence_threshold=value)


@pytest.mark.parametrize("rule", RULES[:2], ids=str)
def test_prompt_lookup_has_no_confidence(pair, rule):
    with pytest.raises(ValueError, match="needs the probabilities of a draft model"):
        generate(pair, assistant_model=None, prompt_lookup_num_tokens=3, verifier="lossless", **rule)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"verifier": build_verifier("fly:0.3")}, "does not allow early stops"),
        (STATIC, "compiled rounds have a constant"),
    ],
    ids=["fly", "static"],
)
def test_where_no_block_may_end_early_the_length_is_constant(pair, caplog, setting, words):
    """Catches a setting that is ignored without a word."""
    call = {
        "verifier": "lossless",
        "num_assistant_tokens_schedule": "confidence",
        "num_assistant_tokens": 3,
        **setting,
    }
    out = generate(pair, **ragged_batch(1), **call, max_new_tokens=20, do_sample=False)
    assert out.stats.draft_forwards >= 3 * (out.stats.num_rounds - 2)
    assert words in caplog.text

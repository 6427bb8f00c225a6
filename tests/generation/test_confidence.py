"""Draft blocks that end where the draft model is unsure: the rules, their fit, and decoding with them."""

import itertools
import math
import random
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from transformers import GenerationConfig

from hf_diversed import load_demo_pair
from hf_diversed.generation.confidence import MAX_CONFIDENT_TOKENS, ConfidenceFit, ConfidenceRule, ThresholdRule, logit
from hf_diversed.generation.drafting import ModelDrafter
from tests.generation.modes import STATIC
from tests.generation.test_transfers import counted
from tests.tiny import generate, ragged_batch, tiny_model


CONFIDENCE = {"num_assistant_tokens_schedule": "confidence"}
GREEDY = {"do_sample": False, "max_new_tokens": 30}


def naive_stop(blocks: list[list[float]], limits: list[int], fit: ConfidenceFit, cost: float) -> bool:
    """Whether blocks end, from the confidence of each row's draft tokens so far."""
    survivals = []
    for confidences, limit in zip(blocks, limits):
        survival = 1.0 if limit > len(confidences) else 0.0
        for value in confidences:
            survival *= 0.0 if value == 0.0 else 1.0 / (1.0 + math.exp(-(0.64 + 0.5 * logit(value))))
        survivals.append(survival)
    running = [survival for survival, limit in zip(survivals, limits) if limit > 0]
    return sum(running) / len(running) * fit.mean_acceptance <= fit.rate(cost) * cost


@pytest.mark.parametrize("batch_size", [1, 4])
def test_rule_is_its_definition(batch_size: int):
    """Catches a sum over finished rows, and rows at their limit or after an EOS that count."""
    generator, ends = random.Random(0), Counter()
    for _ in range(300):
        limits = [generator.choice([0, 2, 5, 8]) for _ in range(batch_size)]
        limits[0] = 8
        rule, blocks = ConfidenceRule(cost=0.25), [[] for _ in range(batch_size)]
        rule.begin(limits)
        for step in range(8):
            values = [generator.choice([generator.random(), 0.97, 0.999, 0.0]) for _ in range(batch_size)]
            for block, value in zip(blocks, values):
                block.append(value)
            stops = rule.stops(values)
            assert stops == naive_stop(blocks, limits, rule.fit, rule.cost)
            if stops:
                ends[step] += 1
                break
    assert len(ends) >= 5


def test_rule_learns_from_verified_tokens_only():
    """Catches tokens after a rejection, limits and EOS counted as rejections, and confidences of another position."""
    rule, seen = ConfidenceRule(cost=0.3), []
    rule.fit = SimpleNamespace(
        acceptance=lambda value: 0.9, mean_acceptance=0.9, rate=lambda cost: 1.0,
        update=lambda value, accepted: seen.append((round(value, 6), accepted)),
        add_round=lambda tokens, drafted: seen.append((tokens, drafted)),
    )  # fmt: skip
    rule.begin([3, 2, 3, 0, 3])
    steps = [[0.6, 0.7, 0.8, 0.5, 0.9], [0.61, 0.71, 0.0, 0.5, 0.91], [0.62, 0.72, 0.5, 0.5, 0.92]]
    for values in steps:
        rule.stops(values)
    rule.update([1, 2, 1, 0, 3])
    expected = [(0.6, True), (0.61, False), (0.7, True), (0.71, True), (0.8, True)]
    expected += [(0.9, True), (0.91, True), (0.92, True)]
    tokens = (2 + 3 + 2 + 4) / 4
    assert seen == [*((round(logit(value), 6), accepted) for value, accepted in expected), (tokens, 3)]


def test_cost_is_the_ratio_of_the_weights(monkeypatch):
    """Catches a cost that is the same for all pairs, the inverse ratio, and a cost of 0."""
    costs, build = [], ConfidenceRule.__init__
    monkeypatch.setattr(ConfidenceRule, "__init__", lambda rule, cost: costs.append(cost) or build(rule, cost))
    pair = load_demo_pair()
    generate((pair.target, pair.draft), **ragged_batch(1), max_new_tokens=4, verifier="lossless")
    assert costs == [pair.draft.num_parameters() / pair.target.num_parameters()]
    assert ConfidenceRule.for_models(tiny_model(), pair.target).cost == 0.05


def test_fit_stays_finite():
    """Catches a singular fit, where all confidences are equal, and parameters that never stop growing."""
    for accepted in (True, False):
        fit = ConfidenceFit()
        for _ in range(20_000):
            fit.update(logit(1.0), accepted)
        assert 0.0 < fit.acceptance(logit(1.0)) < 1.0
        assert all(abs(value) < 20.0 for value in fit.parameters)


def test_threshold_of_a_batch():
    """Catches a row that counts as confident again after its first unsure token, and finished rows that count."""
    rule = ThresholdRule(0.5)
    rule.begin([4])
    assert [rule.stops([value]) for value in (0.5, 0.9, 0.49)] == [False, False, True]
    rule.begin([4, 4, 4, 0])
    assert [rule.stops(values) for values in ([0.9, 0.1, 0.9, 0.9], [0.9, 0.9, 0.9, 0.9])] == [False, False]
    assert rule.stops([0.1, 0.9, 0.9, 0.9])


# Decoding.


def test_counts_are_those_of_the_blocks(pair, monkeypatch):
    """Catches drafted tokens that are counted for the maximum length of a block, or for rows that had fewer."""
    blocks, propose = [], ModelDrafter.propose

    def watched(self, counts):
        draft, drafted = propose(self, counts)
        blocks.append((counts.host, 0 if draft is None else draft.tokens.shape[1]))
        return draft, drafted

    monkeypatch.setattr(ModelDrafter, "propose", watched)
    for batch_size in (1, 4):
        blocks.clear()
        call = {**ragged_batch(batch_size), **CONFIDENCE, "max_new_tokens": 30, "eos_token_id": None}
        stats = generate(pair, **call, verifier="static:0.6").stats
        widths = {width for _, width in blocks}
        assert len(widths) >= 3
        assert max(widths) <= MAX_CONFIDENT_TOKENS
        assert stats.num_drafted == sum(min(count, width) for counts, width in blocks for count in counts)
        assert stats.draft_forwards == 1 + sum(width for _, width in blocks)


def test_a_seed_determines_the_output(pair):
    """Catches decisions that depend on earlier calls."""
    outputs = []
    for _ in range(2):
        torch.manual_seed(0)
        outputs.append(generate(pair, **CONFIDENCE, max_new_tokens=40, verifier="static:0.4"))
        generate(pair, **CONFIDENCE, max_new_tokens=20, verifier="static:0.4")
    assert all(torch.equal(out.sequences, outputs[0].sequences) for out in outputs)
    assert all(out.stats == outputs[0].stats for out in outputs)


def drafted(pair, **given) -> int:
    """The longest block of a call whose draft tokens are all accepted; confidence 1 ends no block."""
    call = {**ragged_batch(1), **GREEDY, "eos_token_id": None, "verifier": "static:0"}
    return len(generate(pair, **call | given).stats.accepted_per_position)


def test_maximum_length_and_sources(pair, monkeypatch):
    """Catches a maximum of 5 where nothing sets it, and a constant schedule that the draft's config overrides."""
    monkeypatch.setattr(ConfidenceRule, "stops", lambda self, confidences: False)
    monkeypatch.setattr(ConfidenceRule, "update", lambda self, accepted: None)
    assert drafted(pair) == MAX_CONFIDENT_TOKENS  # the default of a single row
    assert drafted(pair, num_assistant_tokens=5) == 5
    assert drafted(pair, **ragged_batch(2)) == 5
    assert drafted(pair, **CONFIDENCE) == MAX_CONFIDENT_TOKENS
    assert drafted(pair, **CONFIDENCE, num_assistant_tokens=7) == 7
    assert drafted(pair, **CONFIDENCE, **STATIC) == 5
    monkeypatch.setattr(pair[1].generation_config, "num_assistant_tokens_schedule", "confidence", raising=False)
    assert drafted(pair) == MAX_CONFIDENT_TOKENS
    assert drafted(pair, num_assistant_tokens_schedule="constant") == 5
    config = GenerationConfig(**GREEDY, num_assistant_tokens_schedule="constant")
    assert drafted(pair, generation_config=config) == 5


def test_one_transfer_per_draft_token(pair, monkeypatch):
    """Catches a second number per draft token that the host waits for."""
    rounds: list[Counter] = []
    widths, stops = [], ConfidenceRule.stops
    monkeypatch.setattr(
        ConfidenceRule, "stops", lambda self, values: widths.append(len(rounds)) or stops(self, values)
    )
    with counted(monkeypatch, rounds):
        generate(pair, **CONFIDENCE, verifier="lossless", max_new_tokens=32)
    per_round = [after["reads"] - before["reads"] for before, after in itertools.pairwise(rounds)]
    assert per_round == [1 + widths.count(number) for number in range(1, len(rounds))]
    assert all(total["uploads"] == rounds[0]["uploads"] for total in rounds)

"""Adaptive draft lengths: what is measured in rounds, what is chosen, and that decoding is otherwise the same."""

import copy
import gc
import itertools
import random
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

from hf_diversed import StaticEnsembleVerifier, model_facts, record_stats
from hf_diversed.engines import static
from hf_diversed.engines.compiling import clear_compiled
from hf_diversed.generation import checks, measurements
from hf_diversed.generation.measurements import RoundTimes, Survival, recall
from hf_diversed.generation.schedules import MAX_GAMMA, AdaptiveSchedule
from hf_diversed.theory import ForwardTimes, best_gamma
from hf_diversed.verifiers import build_verifier
from tests.engines.modes import STATIC, TRACED, keep_functions_untraced
from tests.evaluation.fakes import character_tokenizer
from tests.tiny import Listener, ragged_batch, tiny_head


PAIRS = [(0.9, 0.1), (0.6, 0.05), (0.8, 0.4), (0.97, 0.2)]  # acceptance, cost of a draft in target forwards


@dataclass
class Machine:
    """Stands for models and rows: accepts each draft token with one probability, and takes the given time.

    `rows` and `engine` at once, of calls of 60 tokens per row; `disturb` maps a round's number and time to its time.
    """

    rate: float
    times: ForwardTimes
    batch_size: int = 1
    lengths: tuple[int, ...] = tuple(range(1, MAX_GAMMA + 1))
    disturb: Callable[[int, float], float] = lambda number, seconds: seconds

    def __post_init__(self) -> None:
        self.random = random.Random(0)
        self.now, self.rounds = 0.0, []
        self.known, self.survival, self.rule = {}, Survival(), None

    @property
    def running(self) -> list[int]:
        return [row for row, left in enumerate(self.left) if left > 0]

    def draft_limit_on_host(self, gamma: int) -> list[int]:
        return [max(0, min(gamma, left - 1)) for left in self.left]

    def decode(self, calls: int, start: int = 5) -> list[int]:
        """The lengths chosen in so many calls."""
        first = len(self.rounds)
        for _ in range(calls):
            self.left = [60] * self.batch_size
            schedule = self.schedule(start)
            while self.running:
                self._round(schedule)
        return self.rounds[first:]

    def schedule(self, start: int) -> AdaptiveSchedule:
        ready, known = lambda gamma, _: gamma in self.lengths, lambda rows: self.known.setdefault(rows, RoundTimes())
        return AdaptiveSchedule(
            start, max(start, MAX_GAMMA), self, ready, known, self.survival, lambda: self.now, self.rule
        )

    def draft(self, limits: list[int]) -> tuple[int, list[int]]:
        """Return the length of a block with room for `limits` tokens, and how many are accepted."""
        draws = [[self.random.random() < self.rate for _ in range(count)] for count in limits]
        return max(limits), [(*drawn, False).index(False) for drawn in draws]

    def _round(self, schedule: AdaptiveSchedule) -> None:
        gamma = schedule.next(None)
        width, accepted = self.draft(self.draft_limit_on_host(gamma))
        self.left = [left - count - 1 for left, count in zip(self.left, accepted)]
        self.now += self.disturb(len(self.rounds), self.times.round(width))
        self.rounds.append(gamma)
        schedule.update(SimpleNamespace(tokens=torch.empty(self.batch_size, width)) if width else None, accepted)


def promised(rate: float, times: ForwardTimes, gamma: int) -> float:
    return best_gamma([rate**n for n in range(1, MAX_GAMMA + 1)], times, [gamma])[1] if gamma else 1.0


def share_of_best(machine: Machine, gammas: list[int]) -> float:
    """Mean over rounds of what theory promises of their lengths, over what it promises of the best."""
    best = best_gamma([machine.rate**n for n in range(1, MAX_GAMMA + 1)], machine.times)[1]
    return sum(promised(machine.rate, machine.times, gamma) for gamma in gammas) / len(gammas) / best


@pytest.mark.parametrize(("rate", "ratio"), PAIRS)
@pytest.mark.parametrize("batch_size", [1, 4])
def test_it_finds_the_best_length(rate, ratio, batch_size):
    """Catches a cost ratio upside down, a round's cost taken per row, and an acceptance that never moves."""
    machine = Machine(rate, ForwardTimes(0.02, 0.02 * ratio), batch_size)
    machine.decode(calls=30)
    later = [gamma for _ in range(10) for gamma in machine.decode(calls=1)[:3]]  # those with room
    assert share_of_best(machine, later) > 0.97
    assert machine.known[batch_size].costs.draft == pytest.approx(ratio, rel=1e-6)


@pytest.mark.parametrize(
    "disturb",
    {
        "every fifth round waits": lambda number, seconds: seconds * (3.0 if number % 5 == 4 else 1.0),
        "compiles at first": lambda number, seconds: seconds + (80.0 if number < 3 else 0.0),
        "slow for a while": lambda number, seconds: seconds * (2.0 if number // 97 % 2 else 1.0),
        "the text grows": lambda number, seconds: seconds * (1.0 + number / 100),
    }.values(),
)
@pytest.mark.parametrize(("rate", "ratio"), PAIRS)
def test_disturbed_rounds_do_not_mislead(rate, ratio, disturb):
    """Catches means in place of quartiles, and slow rounds of one length held against fast ones of another."""
    machine = Machine(rate, ForwardTimes(0.02, 0.02 * ratio), disturb=disturb)
    machine.decode(calls=40)
    later = [gamma for _ in range(20) for gamma in machine.decode(calls=1)[:3]]
    assert share_of_best(machine, later) > 0.95


def test_it_follows_a_change():
    """Catches an acceptance over all of the past, and costs that were measured once."""
    machine = Machine(0.95, ForwardTimes(0.02, 0.002))
    machine.decode(calls=30)
    machine.rate, machine.times = 0.5, ForwardTimes(0.02, 0.01)
    machine.decode(calls=30)
    assert share_of_best(machine, machine.decode(calls=10)) > 0.95


def test_no_row_is_given_drafts_it_has_no_room_for():
    """Catches a last round of a compiled engine that pays for drafts behind the maximal length."""
    machine = Machine(0.97, ForwardTimes(0.02, 0.002))
    machine.decode(calls=30)
    machine.left = [3]
    assert machine.schedule(5).next(None) <= 2


def test_what_is_known_of_a_pair_goes_with_it():
    """Catches models kept alive by what was measured of them, and measurements mixed up between pairs."""
    target, draft = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    first = recall(target, target, Survival, 0)
    assert recall(target, target, Survival, 0) is first
    assert isinstance(recall(target, target, RoundTimes, 0), RoundTimes)
    assert recall(target, draft, Survival, 0) is not first
    gone = weakref.ref(draft)
    del draft
    gc.collect()
    assert gone() is None


# In the loop.


@pytest.fixture
def lengths(monkeypatch):
    """Every length that the loop's schedules choose, in order, by a clock that counts forwards of the models."""
    chosen = []

    class Watched(AdaptiveSchedule):
        def __init__(self, *arguments, **named):
            super().__init__(*arguments, **named)
            engine = self.ready.__self__
            self.clock = lambda: engine.forwards[0] + 0.1 * engine.forwards[1]

        def next(self, verifier_state):
            chosen.append(super().next(verifier_state))
            return chosen[-1]

    monkeypatch.setattr("hf_diversed.generation.planning.AdaptiveSchedule", Watched)
    monkeypatch.setattr(measurements, "pairs", weakref.WeakKeyDictionary())  # as in a new process
    return chosen


CALL = {"num_assistant_tokens_schedule": "adaptive", "max_new_tokens": 40, "do_sample": False}


@pytest.mark.parametrize("new_tokens", [1, 2, 17])
def test_it_ends_at_the_maximal_length(pair, lengths, new_tokens):
    """Catches draft tokens beyond the maximal length, from a schedule that chooses the length of every round."""
    target, draft = pair
    call = {**ragged_batch(), **CALL, "max_new_tokens": new_tokens}
    plain = target.generate(**ragged_batch(), max_new_tokens=new_tokens, do_sample=False)
    for start in (1, 30):
        for engine in ({}, STATIC):
            lengths.clear()
            out = target.generate(
                **call,
                **engine,
                assistant_model=draft,
                verifier="lossless",
                num_assistant_tokens=start,
                return_dict_in_generate=True,
            )
            assert torch.equal(out.sequences, plain)
            assert len(lengths) == out.stats.target_forwards - 1  # but the prompt's


def test_drafts_configuration_is_read(pair, lengths, monkeypatch):
    """Catches the place where upstream reads the schedule, ignored without a word; and a warning of no effect."""
    target, draft = pair
    warnings = []
    monkeypatch.setattr(checks.logger, "warning_once", warnings.append)
    monkeypatch.setattr(draft.generation_config, "num_assistant_tokens_schedule", "adaptive", raising=False)
    target.generate(**ragged_batch(1), max_new_tokens=40, assistant_model=draft, verifier="lossless")
    assert lengths
    assert warnings == []


def test_measurements_outlast_a_call_with_stop_strings(pair, lengths, monkeypatch):
    """Catches measurements stored under the shallow copy of the target, which is freed after the call."""
    target, draft = pair
    monkeypatch.setattr(target.generation_config, "stop_strings", ["never"])
    call = {**ragged_batch(1), **CALL, "assistant_model": draft, "verifier": "lossless"}
    target.generate(**call, tokenizer=character_tokenizer())
    gc.collect()
    assert len(measurements.pairs) == 1


def test_each_head_has_measurements_of_its_own(pair, lengths):
    """Catches the acceptance with one head that determines the draft lengths with another head."""
    target, draft = pair
    call = {**ragged_batch(1), **CALL, "assistant_model": draft}
    counts = []
    for head in (first := tiny_head(0), tiny_head(1), first):
        target.generate(**call, diversed_head=head)
        (kept,) = measurements.pairs[model_facts.weak_key(target)].values()
        counts.append(sum(isinstance(found, Survival) for found in kept.values()))
    assert counts == [1, 2, 2]


@pytest.mark.parametrize("drafts", [{"prompt_lookup_num_tokens": 4}, {"assistant_early_exit": 1}])
def test_drafts_without_a_draft_model(pair, lengths, drafts):
    """Catches lookups that are cut at the start value, and rounds without any drafts."""
    target, _ = pair
    plain = target.generate(**ragged_batch(), max_new_tokens=40, do_sample=False)
    assert torch.equal(target.generate(**ragged_batch(), **CALL, **drafts, verifier="lossless"), plain)
    assert len(set(lengths)) >= 3


@pytest.mark.parametrize("engine", [{}, STATIC], ids=["eager", "static"])
def test_counts_and_records_of_mixed_lengths(pair, lengths, engine):
    """Catches positions of short rounds counted for long ones, and records cut or padded at a fixed width."""
    target, draft = pair
    streamer = Listener()
    returned = {"return_dict_in_generate": True, "output_token_records": True, "streamer": streamer}
    call = {**ragged_batch(1), **CALL, **engine, **returned}
    with record_stats() as summed:
        out = target.generate(**call, assistant_model=draft, verifier="static:0.4")
    stats, records = out.stats, out.token_records
    assert len(set(lengths)) >= 3
    assert stats.num_rounds == len(lengths) == stats.target_forwards - 1  # but the prompt's
    assert stats.num_drafted <= sum(lengths)
    assert sum(stats.accepted_per_position) == stats.num_accepted == int((records.source == 0).sum())
    assert stats.accepted_per_position == sorted(stats.accepted_per_position, reverse=True)
    assert len(stats.accepted_per_position) <= max(lengths)
    assert torch.equal(records.tokens, out.sequences[:, 9:])
    assert sum(part.tokens.shape[1] for part, _ in streamer.rounds) == stats.num_emitted == summed.num_emitted
    assert sum(part.num_drafted for _, part in streamer.rounds) == stats.num_drafted


VERIFIERS = {
    "one function": StaticEnsembleVerifier(0.4, bias_budget=1.0),  # remembers, so the first round is another function
    "parts": StaticEnsembleVerifier(0.4),
    "forwards": build_verifier("fly:0.3:1"),  # reads the ids so far
}


@pytest.mark.parametrize("name", VERIFIERS)
def test_nothing_is_compiled_on_the_way(pair, lengths, monkeypatch, name):
    """Catches lengths that are taken without being compiled, for any kind of round, and those that are never found."""
    keep_functions_untraced(monkeypatch)
    if name == "parts":
        monkeypatch.setattr(static, "MAX_LAYERS", 0)
    target, draft = pair
    call = {**ragged_batch(1), **CALL, **TRACED, "num_assistant_tokens": 1, "return_dict_in_generate": True}
    call |= {"assistant_model": draft, "verifier": VERIFIERS[name]}
    clear_compiled()
    try:
        first = target.generate(**call)
        assert set(lengths) == {0, 1}
        assert first.stats.compile.num_compiled > 0
        target.generate(**{**call, "num_assistant_tokens_schedule": "constant", "num_assistant_tokens": 3})
        lengths.clear()
        second = target.generate(**call)
        assert 3 in lengths
        assert set(lengths) <= {0, 1, 3}
        assert second.stats.compile.num_compiled == 0
    finally:
        clear_compiled()


def test_drafting_stops_where_it_does_not_pay_and_resumes():
    """Catches draft tokens that are never accepted, probes above 2%, and a draft model that is never retried."""
    machine = Machine(0.02, ForwardTimes(0.02, 0.006), lengths=tuple(range(MAX_GAMMA + 1)))
    machine.decode(calls=5)
    began = machine.now
    later = machine.decode(calls=100)
    assert 0 < sum(gamma > 0 for gamma in later) < 0.02 * len(later)
    assert machine.now - began < 1.02 * 100 * 60 * 0.02
    machine.rate = 0.95
    machine.decode(calls=200)
    assert share_of_best(machine, [gamma for _ in range(10) for gamma in machine.decode(calls=1)[:2]]) > 0.9


@pytest.mark.parametrize(("engine", "batch_size"), [({}, 1), ({}, 4), (STATIC, 1), (STATIC, 4)])
def test_rounds_without_draft_tokens_change_no_token(pair, monkeypatch, batch_size, engine):
    """Catches a draft cache without the tokens of rounds that had no draft tokens."""
    target, draft = pair[0], copy.deepcopy(pair[0])
    gammas = itertools.chain([0] * 14, itertools.cycle([4, 0, 2, 2, 0, 0, 0]))
    monkeypatch.setattr(AdaptiveSchedule, "next", lambda self, verifier_state: next(gammas))
    monkeypatch.setattr(AdaptiveSchedule, "update", lambda *round: None)
    call = {**ragged_batch(batch_size), "max_new_tokens": 40, "do_sample": False}
    if batch_size > 1:
        call["eos_token_id"] = target.generate(**call)[0, 10].item()
    # Finished rows stay in the batch where scores are returned.
    returned = {"return_dict_in_generate": True, "output_scores": True}
    adaptive = {"num_assistant_tokens_schedule": "adaptive", "assistant_model": draft, "verifier": "lossless"}
    out = target.generate(**call, **engine, **returned, **adaptive)
    assert torch.equal(out.sequences, target.generate(**call))
    assert out.sequences.shape[1] > 30
    assert out.stats.num_accepted == out.stats.num_drafted > 0

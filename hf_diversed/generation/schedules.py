"""Gamma that adapts to measured times and acceptance."""

import os
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import torch

from hf_diversed.blocks import DraftOutput
from hf_diversed.generation.confidence import ConfidenceRule
from hf_diversed.generation.measurements import RoundTimes, Survival
from hf_diversed.generation.rows import RaggedRows
from hf_diversed.theory import best_gamma
from hf_diversed.verifiers.base import VerifierState


MAX_GAMMA = 16  # draft tokens per round, unless the call sets a larger number
# The fit of round times needs different values: alternating in the first rounds, then occasionally.
_EXPLORE = 18  # rounds
_TRY_ANOTHER_EVERY = 24  # rounds


@dataclass(eq=False)
class AdaptiveSchedule:
    """Gamma with the highest expected throughput of the batch, in tokens per second: `theory.best_gamma`.

    It is 0, a step of the target alone, where drafting is not expected to be faster, except for rare probes.

    The time of a round does not depend on which rows accept draft tokens, so the mean number of accepted tokens
    decides. Other values are tried until at least two have been timed, and occasionally later.

    With `rule`, it chooses the maximum gamma, and the rule ends blocks earlier, at the measured cost.

    Attributes:
        start: gamma until enough rounds have been measured. max_gamma: maximum gamma.
        ready: whether a round with a given gamma can start without compilation; only such values are chosen, and
            `start` and 0.
        times_for: returns the measured times for a number of rows. survival: acceptance by position.
        clock: returns seconds. rule: ends draft blocks early; None if rounds have the chosen length.
    """

    start: int
    max_gamma: int
    rows: RaggedRows
    ready: Callable[[int, VerifierState], bool]
    times_for: Callable[[int], RoundTimes]
    survival: Survival
    clock: Callable[[], float]
    rule: ConfidenceRule | None = None
    _gamma: int = field(default=0, init=False)  # of the last round
    _stopped: bool = field(default=False, init=False)  # the last round had no draft tokens, as they do not pay
    _limits: list[int] = field(default_factory=list, init=False)
    _began: float = field(default=0.0, init=False)

    def next(self, verifier_state: VerifierState) -> int:
        """Return gamma for the round that starts now. It depends only on earlier rounds, so outputs are unbiased."""
        self._began = self.clock()
        self._limits = self.rows.draft_limit_on_host(self.max_gamma)
        times = self.times_for(len(self._limits))
        if self._stopped and not times.may_probe:  # nothing has been measured that would change the choice
            return 0
        always = (0, self.start)
        gammas = [n for n in range(self.max_gamma + 1) if n in always or self.ready(n, verifier_state)]
        self._gamma = self._choose(gammas, times)
        return self._gamma

    def update(self, draft: DraftOutput | None, accepted: list[int]) -> None:
        """Record the round that has ended: its draft block, and the number of accepted tokens per row."""
        num_drafted = 0 if draft is None else draft.tokens.shape[1]
        if num_drafted:
            self.survival.update(accepted, [min(num_drafted, limit) for limit in self._limits])
        self.times_for(len(self._limits)).update(self._gamma, num_drafted, self.clock() - self._began)

    def _choose(self, gammas: list[int], times: RoundTimes) -> int:
        costs, best, self._stopped = times.costs, self.start, False
        if self.rule is not None and costs is not None:
            self.rule.cost = costs.draft
        explores = costs is None or times.num_rounds < _EXPLORE
        if costs is not None and not explores and not self.survival.is_new:
            if self.rule is None:
                best, speedup = best_gamma(self._useful(), costs, [gamma for gamma in gammas if gamma])
            else:
                best, speedup = max(gammas), self.rule.fit.rate(costs.draft)
            if speedup <= 1.0:
                self._stopped = not times.may_probe
                return 0 if self._stopped else best
        if not explores and times.num_rounds % _TRY_ANOTHER_EVERY:
            return best
        others = neighbours(best, [gamma for gamma in gammas if gamma <= max(self._limits)])
        counts = times.rounds_by_gamma()
        return min([best, *others], key=counts.__getitem__)

    def _useful(self) -> list[float]:
        """Expected fraction of running rows that accept their nth draft token, within the limit of each row."""
        running = self.rows.running
        fitting = [sum(self._limits[row] > n for row in running) / len(running) for n in range(self.max_gamma)]
        return [alive * share for alive, share in zip(self.survival.curve(self.max_gamma), fitting)]


def clock_for(device: torch.device) -> Callable[[], float]:
    """Return the clock for round times, in seconds.

    On the CPU this is the calling thread's CPU time, which other processes do not affect. On Windows its resolution is
    coarser than a round, so wall-clock time is used.
    """
    return time.thread_time if device.type == "cpu" and os.name == "posix" else time.perf_counter


def neighbours(gamma: int, gammas: Collection[int]) -> list[int]:
    """Return the element of `gammas` below `gamma` nearest to half of it, and the one above nearest to double."""
    sides = {
        gamma / 2: [other for other in gammas if other < gamma],
        gamma * 2: [other for other in gammas if other > gamma],
    }
    return [min(side, key=lambda other: abs(other - aim)) for aim, side in sides.items() if side]

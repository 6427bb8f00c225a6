"""How many tokens a round drafts: always as many, or as many as pay."""

import os
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Protocol

import torch

from hf_diversed.generation.experience import RoundTimes, Survival
from hf_diversed.generation.rows import RaggedRows
from hf_diversed.generation.verification import Round, Tally
from hf_diversed.theory import best_gamma
from hf_diversed.verifiers.base import Memory


ADAPTIVE = "adaptive"  # what `num_assistant_tokens_schedule` calls it
LONGEST = 16  # drafts per round; a longer round has to be asked for
# The line through the durations of rounds needs different lengths: at first in turns, then one now and then.
_EXPLORE = 18  # rounds
_TRY_ANOTHER_EVERY = 24  # rounds


class Schedule(Protocol):
    """Chooses the draft length of each round, from earlier rounds alone: a law must not depend on its own draws."""

    def next(self, memory: Memory) -> int:
        """gamma of the round that begins now."""

    def learn(self, round: Round, tally: Tally) -> None:
        """Hear how that round ended."""


@dataclass(frozen=True)
class ConstantLength:
    """The same in every round."""

    gamma: int

    def next(self, memory: Memory) -> int:
        return self.gamma

    def learn(self, round: Round, tally: Tally) -> None:
        pass


@dataclass(eq=False)
class AdaptiveLength:
    """The length that promises the most tokens per second of the whole batch: `theory.best_gamma`.

    A round of B rows takes as long whichever of them keep their drafts, so what counts is how many drafts they keep on
    average. Lengths are tried on purpose until two or more have been timed, and now and then later on.

    Attributes:
        start: the length until enough is known; always allowed. longest: up to which lengths are considered.
        ready: whether a round of a length could start at once; see `Engine.ready`.
        times_for: the durations of rounds of so many rows. survival: of the drafts that the rule judges.
        clock: in seconds.
    """

    start: int
    longest: int
    rows: RaggedRows
    ready: Callable[[int, Memory], bool]
    times_for: Callable[[int], RoundTimes]
    survival: Survival
    clock: Callable[[], float]
    _gamma: int = field(default=0, init=False)
    _room: list[int] = field(default_factory=list, init=False)
    _began: float = field(default=0.0, init=False)

    def next(self, memory: Memory) -> int:
        self._began = self.clock()
        self._room = self.rows.room_on_host(self.longest)
        lengths = [gamma for gamma in range(1, self.longest + 1) if gamma == self.start or self.ready(gamma, memory)]
        self._gamma = self._choose(lengths, self.times_for(len(self._room)))
        return self._gamma

    def learn(self, round: Round, tally: Tally) -> None:
        drafts = 0 if round.draft is None else round.draft.tokens.shape[1]
        self.survival.learn(tally.accepted, [min(drafts, room) for room in self._room])
        self.times_for(len(self._room)).learn(self._gamma, drafts, self.clock() - self._began)

    def _choose(self, lengths: list[int], times: RoundTimes) -> int:
        explores = times.costs is None or times.num_rounds < _EXPLORE
        best = self.start
        if times.costs is not None and not explores and not self.survival.is_new:
            best, _ = best_gamma(self._useful(), times.costs, lengths)
        if not explores and times.num_rounds % _TRY_ANOTHER_EVERY:
            return best
        others = neighbours(best, [gamma for gamma in lengths if gamma <= max(self._room)])
        asked = times.asked()
        return min([best, *others], key=asked.__getitem__)

    def _useful(self) -> list[float]:
        """The mean share of running rows whose nth draft is kept: none has a use for more than it has room for."""
        running = self.rows.running
        fitting = [sum(self._room[row] > n for row in running) / len(running) for n in range(self.longest)]
        return [alive * share for alive, share in zip(self.survival.curve(self.longest), fitting)]


def clock_for(device: torch.device) -> Callable[[], float]:
    """What rounds are timed by, in seconds.

    Where the models run on the host, the time that the calling thread was running, so that other processes do not
    count; Windows has it in steps longer than a round.
    """
    return time.thread_time if device.type == "cpu" and os.name == "posix" else time.perf_counter


def neighbours(gamma: int, lengths: Collection[int]) -> list[int]:
    """Of `lengths` those nearest to half and to double `gamma`, below and above it."""
    sides = {
        gamma / 2: [other for other in lengths if other < gamma],
        gamma * 2: [other for other in lengths if other > gamma],
    }
    return [min(side, key=lambda other: abs(other - aim)) for aim, side in sides.items() if side]

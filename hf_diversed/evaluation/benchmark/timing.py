"""Time on the device's own timeline: rounds, and the phases they consist of.

The loop is not touched: forward hooks, and wrappers around methods for the length of a `with`. Marks on a CUDA
device are events, so nothing waits for it before the run has ended.
"""

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from transformers import LogitsProcessor, PreTrainedModel

from hf_diversed.blocks import DraftOutput, TargetOutput, Verdict
from hf_diversed.cache import RaggedCache, RaggedLayer
from hf_diversed.evaluation.benchmark.synthetic import OuterVerifier
from hf_diversed.generation.drafting import DiversedCandidateGenerator
from hf_diversed.generation.observing import Watchers
from hf_diversed.generation.ragged_model import RaggedModel
from hf_diversed.verifiers import DiversedVerifier, Verifier


# Parts of a round. A phase inside another counts for itself only: "cache" is masks, bookkeeping and writing keys and
# values, which happens inside of forwards; "head" lies inside of "verify"; "sampling" is the drafting around the
# draft's forwards (processors, softmax, drawing); "other" the rest: acceptance, next token, sync, bookkeeping.
PHASES = ("draft_forward", "sampling", "target_forward", "verify", "head", "cache", "other")
_BEFORE_ROUNDS = ("setup", "prefill")

_METHODS: tuple[tuple[type, str, str], ...] = (
    (RaggedModel, "prefill", "prefill"),
    (RaggedCache, "open", "cache"),
    (RaggedCache, "mask", "cache"),
    (RaggedCache, "keep", "cache"),
    (RaggedLayer, "update", "cache"),
    (DiversedVerifier, "weights", "head"),
)


class Stopwatch:
    """Marks in time on one device."""

    def __init__(self, device: torch.device):
        self.device = device

    def mark(self) -> Any:
        """A CUDA event, or seconds."""
        if self.device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            return event
        if self.device.type == "mps":
            torch.mps.synchronize()
        return time.perf_counter()

    def milliseconds(self, marks: list) -> list[float]:
        """Times between neighbouring marks; waits for the device."""
        if self.device.type != "cuda":
            return [(after - before) * 1e3 for before, after in pairwise(marks)]
        torch.cuda.synchronize(self.device)
        return [before.elapsed_time(after) for before, after in pairwise(marks)]


@contextmanager
def forward_ends(model: PreTrainedModel, watch: Stopwatch) -> Iterator[list]:
    """Collect a mark at the end of every forward pass: an eager round lasts from one such end to the next."""
    marks: list = []
    with _removed(model.register_forward_hook(lambda *_: marks.append(watch.mark()))):
        yield marks


@contextmanager
def round_ends(watch: Stopwatch) -> Iterator[list]:
    """Collect a mark at the end of every round of our loop, whichever engine runs it. Not for several threads."""
    marks: list = []
    saw = Watchers.saw

    def saw_and_marked(*args, **kwargs) -> None:
        marks.append(watch.mark())
        saw(*args, **kwargs)

    with _replaced(Watchers, "saw", saw_and_marked):
        yield marks


class Marker(LogitsProcessor):
    """Collects a mark for every token of plain decoding: a hook would become part of what is compiled."""

    def __init__(self, watch: Stopwatch):
        self.watch = watch
        self.marks: list = []

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        self.marks.append(self.watch.mark())
        return scores


@dataclass(frozen=True)
class Phases:
    """Milliseconds of one run by phase, in all its rounds; `before_ms` is what came before the first one."""

    ms: dict[str, float]
    rounds: int
    before_ms: float

    @property
    def round_ms(self) -> float:
        return sum(self.ms.values()) / self.rounds


class PhaseTimer:
    """Attributes every moment between the first mark and the last to the innermost phase that is open."""

    def __init__(self, watch: Stopwatch):
        self.watch = watch
        self.rounds = 0
        self._open = ["setup"]
        self._names = ["setup"]
        self._marks = [watch.mark()]

    def begin_round(self) -> None:
        self.rounds += 1
        self._open[0] = "other"

    def enter(self, phase: str) -> None:
        # A prefill's forwards and cache belong to no round.
        self._open.append("prefill" if self._open[-1] == "prefill" else phase)
        self._mark()

    def leave(self) -> None:
        self._open.pop()
        self._mark()

    def _mark(self) -> None:
        self._marks.append(self.watch.mark())
        self._names.append(self._open[-1])

    def timed(self, function: Callable, phase: str) -> Callable:
        """The function, its time attributed to `phase`."""

        @functools.wraps(function)
        def wrapped(*args, **kwargs):
            self.enter(phase)
            try:
                return function(*args, **kwargs)
            finally:
                self.leave()

        return wrapped

    def finish(self) -> Phases:
        """Close the last round and add up."""
        self._mark()
        totals = dict.fromkeys((*_BEFORE_ROUNDS, *PHASES), 0.0)
        for name, milliseconds in zip(self._names, self.watch.milliseconds(self._marks)):
            totals[name] += milliseconds
        before = sum(totals.pop(name) for name in _BEFORE_ROUNDS)
        return Phases(totals, self.rounds, before)


class _TimedVerifier(OuterVerifier):
    """Times the rule, and the replacement law that it leaves to be computed later."""

    def __init__(self, inner: Verifier, timer: PhaseTimer):
        super().__init__(inner)
        self._timer = timer

    def __call__(
        self,
        input_ids: torch.Tensor,
        draft: DraftOutput,
        target: TargetOutput,
        state: torch.Tensor | None = None,
        dials: dict[str, torch.Tensor] | None = None,
    ) -> Verdict:
        verdict = self._timer.timed(super().__call__, "verify")(input_ids, draft, target, state, dials)
        return replace(verdict, replacement=self._timer.timed(verdict.replacement, "verify"))


@contextmanager
def timed_phases(
    target: PreTrainedModel, draft: PreTrainedModel, verifier: Verifier, timer: PhaseTimer
) -> Iterator[Verifier]:
    """Time the phases of one `diversed_decoding` call; yields the rule to decode with. Not for several threads."""
    with ExitStack() as stack:
        for model, phase in ((draft, "draft_forward"), (target, "target_forward")):
            # Ahead of and behind other hooks, so that these count for the model.
            stack.enter_context(_removed(model.register_forward_pre_hook(_entering(timer, phase), prepend=True)))
            stack.enter_context(_removed(model.register_forward_hook(lambda *_: timer.leave())))
        for owner, name, phase in _METHODS:
            stack.enter_context(_replaced(owner, name, timer.timed(getattr(owner, name), phase)))
        propose = timer.timed(DiversedCandidateGenerator.propose, "sampling")

        def propose_in_new_round(*args, **kwargs):
            timer.begin_round()
            return propose(*args, **kwargs)

        stack.enter_context(_replaced(DiversedCandidateGenerator, "propose", propose_in_new_round))
        yield _TimedVerifier(verifier, timer)


def _entering(timer: PhaseTimer, phase: str) -> Callable:
    return lambda *_: timer.enter(phase)


@contextmanager
def _removed(handle) -> Iterator[None]:
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def _replaced(owner: type, name: str, value: Callable) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)

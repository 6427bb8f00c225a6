"""Times of rounds and of the modules in them.

Marks on a CUDA device are events, so the host does not wait for the device before the run has ended.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from transformers import LogitsProcessor, PreTrainedModel

from hf_diversed.generation.recording import Recorder


# Modules that run in a round; "other": sampling, verification, caches, transfers, bookkeeping.
PHASES = ("draft", "target", "head", "other")
_ROUND_END = "round end"


class Stopwatch:
    """Time marks on one device."""

    def __init__(self, device: torch.device):
        self.device = device

    def mark(self) -> Any:
        """Return a CUDA event, or seconds."""
        if self.device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            return event
        if self.device.type == "mps":
            torch.mps.synchronize()
        return time.perf_counter()

    def milliseconds(self, marks: list) -> list[float]:
        """Return the times between neighbouring marks; waits for the device."""
        if self.device.type != "cuda":
            return [(after - before) * 1e3 for before, after in pairwise(marks)]
        torch.cuda.synchronize(self.device)
        return [before.elapsed_time(after) for before, after in pairwise(marks)]


@contextmanager
def forward_ends(model: PreTrainedModel, watch: Stopwatch) -> Iterator[list]:
    """Collect a mark after every forward pass; in upstream's decoding these delimit the rounds."""
    marks: list = []
    handle = model.register_forward_hook(lambda *_: marks.append(watch.mark()))
    try:
        yield marks
    finally:
        handle.remove()


@contextmanager
def at_round_ends(function: Callable[[], None]) -> Iterator[None]:
    """Call `function` at the end of every round of our loop, in either engine. Not thread-safe.

    The loop has no public callback for rounds of a batch, so this wraps the method that records them.
    """
    original = Recorder.add

    def add(*args, **kwargs) -> None:
        function()
        original(*args, **kwargs)

    Recorder.add = add
    try:
        yield
    finally:
        Recorder.add = original


@contextmanager
def round_ends(watch: Stopwatch) -> Iterator[list]:
    """Collect a mark at the end of every round of our loop."""
    marks: list = []
    with at_round_ends(lambda: marks.append(watch.mark())):
        yield marks


class Marker(LogitsProcessor):
    """Collects a mark per token of target decoding; a forward hook would be compiled with the model."""

    def __init__(self, watch: Stopwatch):
        self.watch = watch
        self.marks: list = []

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        self.marks.append(self.watch.mark())
        return scores


@dataclass(frozen=True)
class Phases:
    """Milliseconds by phase, summed over the whole rounds of one run: all but the first, which follows the prefill."""

    ms: dict[str, float]
    rounds: int


class PhaseTimer:
    """Times the forward passes of modules within the rounds of one call of our eager loop."""

    def __init__(self, watch: Stopwatch):
        self.watch = watch
        self._marks: list[tuple[str, Any]] = []

    @contextmanager
    def timed(self, modules: dict[str, torch.nn.Module]) -> Iterator[None]:
        """Time calls of `modules`, whose keys are from `PHASES` and which do not contain each other."""
        with ExitStack() as stack:
            for name, module in modules.items():
                # The first pre-hook and the last hook, so that the time of other hooks counts for the module.
                first = module.register_forward_pre_hook(self._marker("other"), prepend=True)
                last = module.register_forward_hook(self._marker(name))
                for handle in (first, last):
                    stack.callback(handle.remove)
            stack.enter_context(at_round_ends(self._marker(_ROUND_END)))
            yield

    def _marker(self, ended: str) -> Callable[..., None]:
        """Return a function that marks the end of a phase."""
        return lambda *_: self._marks.append((ended, self.watch.mark()))

    def finish(self) -> Phases:
        """Sum the phases between the first round's end and the last one's."""
        ends = [index for index, (name, _) in enumerate(self._marks) if name == _ROUND_END]
        whole = self._marks[ends[0] : ends[-1] + 1]
        totals = dict.fromkeys(PHASES, 0.0)
        for (name, _), milliseconds in zip(whole[1:], self.watch.milliseconds([mark for _, mark in whole])):
            totals["other" if name == _ROUND_END else name] += milliseconds
        return Phases(totals, len(ends) - 1)

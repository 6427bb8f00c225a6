"""Decoding that yields tokens as they are generated, and the timed comparison with the target model alone."""

import math
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import torch
from choice import COMPILED, Choice, max_positions
from pieces import Piece, PieceStreamer
from torch._dynamo.callback import callback_handler
from torch._dynamo.exc import TorchDynamoException
from transformers import StoppingCriteriaList

from hf_diversed import SpeculativeStats, Verifier
from hf_diversed.engines.buffers import capacity_for
from hf_diversed.evaluation.decoder import Decoder, Method, Sampling
from hf_diversed.generation.warmup import default_compile_config
from hf_diversed.zoo.loader import Pair


COMPILING, OCCUPIED = "compiling", "occupied"
SECONDS_PER_FRAME, MAX_SILENCE = 0.05, 0.25
LEAST_REPEATS, MOST_REPEATS = 6, 18  # timed runs of each method; the first run of each warms up and is not timed
MOST_SECONDS = 20.0  # after the first run of each
NARROW = 0.1  # width of the interval of the speedup, relative to the speedup, at which timing ends
one_at_a_time = threading.Lock()  # a run that was stopped may still be compiling


@dataclass(frozen=True)
class Spread:
    """A median with an interval, and the number of measurements."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Return the median and range of at least one measurement."""
        return cls(median(values), min(values), max(values), len(values))


@dataclass
class Run:
    """The state of one decoding run.

    Attributes:
        seconds: from the start to the latest token, without compilation.
        waits_for: `COMPILING`, `OCCUPIED` (a stopped run has not ended yet), or "".
    """

    pieces: list[Piece] = field(default_factory=list)
    stats: SpeculativeStats = field(default_factory=SpeculativeStats)
    seconds: float = 0.0
    waits_for: str = ""

    @property
    def tokens_per_second(self) -> float:
        return self.stats.num_emitted / self.seconds if self.seconds else float("nan")


@dataclass
class Comparison:
    """A method and plain decoding on one prompt, with one seed.

    Attributes:
        run, plain: the first run of each; None until it starts. The same run if the method is plain decoding.
        speeds, plain_speeds: tokens per second of each timed run, in the order measured.
        repeat: 0 in the first runs, then the number of the timed run.
        waits_for: `Run.waits_for` of the current run. done: whether all runs have ended.
    """

    run: Run | None = None
    plain: Run | None = None
    speeds: list[float] = field(default_factory=list)
    plain_speeds: list[float] = field(default_factory=list)
    repeat: int = 0
    waits_for: str = ""
    done: bool = False

    @property
    def ratio(self) -> Spread:
        """The median of the speeds' ratios by run, with its 95% interval."""
        return median_with_interval([speed / plain for speed, plain in zip(self.speeds, self.plain_speeds)])

    @property
    def is_precise(self) -> bool:
        """Whether the interval of `ratio` is narrow enough to show the ratio."""
        return self.ratio.high - self.ratio.low <= NARROW * self.ratio.median


def median_with_interval(values: Sequence[float]) -> Spread:
    """Return the median with its 95% interval between order statistics, which assumes no distribution. The interval is
    unbounded for fewer than six values."""
    ordered, count, outside, tail = sorted(values), len(values), 0, 0.0
    while outside < count // 2 and 2 * (tail := tail + math.comb(count, outside) / 2**count) <= 0.05:
        outside += 1
    if outside == 0:
        return Spread(median(values) if values else math.nan, 0.0, math.inf, count)
    return Spread(median(values), ordered[outside - 1], ordered[-outside], count)


def compare(pair: Pair, prompt: list[int], verifier: Verifier | None, choice: Choice) -> Iterator[Comparison]:
    """Decode with the verifier and with the target alone, alternately; yield the same `Comparison` as it grows.

    Timed runs end when the interval of the speedup is narrow, and at the latest after `MOST_REPEATS` runs of each or
    `MOST_SECONDS`. The target alone is compared with nothing and runs `LEAST_REPEATS` times.
    """
    both, most = Comparison(), LEAST_REPEATS if verifier is None else MOST_REPEATS
    sides = [None] if verifier is None else [verifier, None]
    for both.repeat in range(1 + most):
        for side in sides:
            for run in decode(pair, prompt, side, choice):
                both.waits_for = run.waits_for
                if both.repeat == 0:
                    both.plain = run if side is None else both.plain
                    both.run = run if side is verifier else both.run
                yield both
            if both.repeat > 0:
                (both.plain_speeds if side is None else both.speeds).append(run.tokens_per_second)
        if both.repeat == 0:
            began = time.perf_counter()
        elif time.perf_counter() - began > MOST_SECONDS or (both.repeat >= LEAST_REPEATS and both.is_precise):
            break
    both.speeds = both.speeds or both.plain_speeds
    both.done = True
    yield both


def decode(pair: Pair, prompt: list[int], verifier: Verifier | None, choice: Choice) -> Iterator[Run]:
    """Decode in a thread and yield the same `Run` as it grows, at least every `MAX_SILENCE` seconds, so that the
    generator can be closed at any time. Closing it makes the thread stop at its next round; it does not wait."""
    run, events, abandoned = Run(), queue.SimpleQueue(), threading.Event()

    def wait(what: str) -> None:
        events.put(([], SpeculativeStats(), run.seconds, what))

    def receive(pieces: list[Piece], stats: SpeculativeStats) -> None:
        if abandoned.is_set():
            raise InterruptedError
        events.put((pieces, stats, clock.seconds, ""))

    def work() -> None:
        try:
            streamer = PieceStreamer(pair.tokenizer, receive, target_alone=verifier is None)
            if one_at_a_time.locked():
                wait(OCCUPIED)
            with one_at_a_time, clock:
                decoder(method, [prompt], choice.seed, streamer=streamer, **options)
            events.put(None)
        except TorchDynamoException as error:
            reason = str(error).splitlines()[0]
            events.put(ValueError(f"This could not be compiled: {reason}. Choose the eager engine."))
        except Exception as error:  # raised again in the thread that called `decode`
            events.put(error)

    sampling = Sampling(choice.temperature, num_assistant_tokens=choice.gamma, max_new_tokens=choice.max_new_tokens)
    decoder, method, options = Decoder(pair, sampling), Method(choice.method, verifier), {}
    clock = Clock(lambda: wait(COMPILING))
    if choice.engine == COMPILED:
        method = replace(method, compile_config=default_compile_config(pair.target.device))
        options = _static_room(pair, len(prompt), choice.max_new_tokens) if method.verifier is None else {}
    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    try:
        while (event := _next(events)) is not None:
            if isinstance(event, Exception):
                raise event
            if event:
                pieces, stats, run.seconds, run.waits_for = event
                run.pieces += pieces
                run.stats.add(stats)
            if events.empty():  # events that have already arrived share a frame
                yield run
                time.sleep(SECONDS_PER_FRAME)
        yield run
    finally:
        abandoned.set()


def _next(events: queue.SimpleQueue):
    """Return the next event, or an empty tuple after `MAX_SILENCE` seconds without one."""
    try:
        return events.get(timeout=MAX_SILENCE)
    except queue.Empty:
        return ()


class Clock:
    """Seconds since the start of the `with` block, without compilation, which plain `generate` does not report.

    Args:
        on_compiling: called when compilation starts.
    """

    def __init__(self, on_compiling: Callable[[], None]):
        self._on_compiling = on_compiling

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._began

    def __enter__(self) -> None:
        callback_handler.register_start_callback(self._pause)
        callback_handler.register_end_callback(self._resume)
        self._began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        callback_handler.remove_start_callback(self._pause)
        callback_handler.remove_end_callback(self._resume)

    def _pause(self, *_: object) -> None:
        self._paused = time.perf_counter()
        self._on_compiling()

    def _resume(self, *_: object) -> None:
        self._began += time.perf_counter() - self._paused


def _static_room(pair: Pair, length: int, max_new_tokens: int) -> dict[str, Any]:
    """Return arguments that give plain decoding a static cache of the same capacity as the library's. By default the
    capacity is the length of the call, so that each longer prompt would be compiled again."""
    end = length + max_new_tokens
    room = min(capacity_for(end), max_positions(pair)) - length
    stop = lambda ids, *_, **__: ids.new_full((len(ids),), ids.shape[1] >= end, dtype=torch.bool)  # noqa: E731
    return {"max_new_tokens": room, "stopping_criteria": StoppingCriteriaList([stop])}

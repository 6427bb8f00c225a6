"""Decode one prompt with several verifiers at once, round by round in turns, each with its own clock."""

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from pieces import Piece, PieceStreamer

from hf_diversed import SpeculativeStats, Verifier
from hf_diversed.evaluation.decoder import Decoder, Method, Sampling
from hf_diversed.zoo.loader import Pair


SECONDS_PER_FRAME = 0.1


@dataclass
class Lane:
    """One verifier's state: what it has emitted, and its own seconds.

    Attributes:
        text: the completion, once it has ended.
    """

    verifier: Verifier
    pieces: list[Piece] = field(default_factory=list)
    stats: SpeculativeStats = field(default_factory=SpeculativeStats)
    seconds: float = 0.0
    text: str | None = None

    @property
    def tokens_per_second(self) -> float:
        return self.stats.num_emitted / self.seconds if self.seconds else 0.0


class Turns:
    """Let one of several threads run at a time, until it passes the turn to the one with the fewest seconds.

    Each thread has its own state of torch's random numbers, so it draws what it would draw alone.
    """

    def __init__(self, lanes: Sequence[Lane]):
        self._lanes = lanes
        self._condition = threading.Condition()
        self._states: list[torch.Tensor | None] = [None] * len(lanes)
        self._ended: set[int] = set()
        self._turn: int | None = 0
        self._stopped = False

    def wait(self, index: int) -> None:
        """Wait for the turn. Raises InterruptedError once the race was stopped."""
        with self._condition:
            self._condition.wait_for(lambda: self._stopped or self._turn == index)
        if self._stopped:
            raise InterruptedError
        if (state := self._states[index]) is not None:
            torch.set_rng_state(state)
        self._began = time.perf_counter()

    def count(self, index: int) -> None:
        """Add the seconds since the turn began, or since the last call."""
        now = time.perf_counter()
        self._lanes[index].seconds += now - self._began
        self._began = now

    def give(self, index: int, ended: bool = False) -> None:
        """End the turn."""
        self._states[index] = torch.get_rng_state()
        with self._condition:
            if ended:
                self._ended.add(index)
            running = [other for other in range(len(self._lanes)) if other not in self._ended]
            self._turn = min(running, key=lambda other: self._lanes[other].seconds, default=None)
            self._condition.notify_all()

    def stop(self) -> None:
        with self._condition:
            self._stopped = True
            self._condition.notify_all()


def race(
    pair: Pair, prompt: list[int], verifiers: Sequence[Verifier], sampling: Sampling, seed: int = 0
) -> Iterator[list[Lane]]:
    """Decode with all verifiers; yield their lanes as they grow. Closing the generator ends the threads at their next
    round, and waits for it."""
    decoder, lanes = Decoder(pair, sampling), [Lane(verifier) for verifier in verifiers]
    turns, errors = Turns(lanes), list[Exception]()

    def work(index: int, lane: Lane) -> None:
        def receive(pieces: list[Piece], stats: SpeculativeStats) -> None:
            turns.count(index)
            lane.pieces += pieces
            lane.stats.add(stats)
            turns.give(index)
            turns.wait(index)

        try:
            turns.wait(index)
            streamer = PieceStreamer(pair.tokenizer, receive)
            decoded = decoder(Method("lane", lane.verifier), [prompt], seed, streamer=streamer)
            lane.text = decoder.text(decoded.tokens[0])
            turns.give(index, ended=True)
        except InterruptedError:
            return
        except Exception as error:  # raised again in the thread that reads the lanes
            errors.append(error)
            turns.stop()

    threads = [threading.Thread(target=work, args=pair_, daemon=True) for pair_ in enumerate(lanes)]
    for thread in threads:
        thread.start()
    try:
        while any(thread.is_alive() for thread in threads):
            yield lanes
            time.sleep(SECONDS_PER_FRAME)
        if errors:
            raise errors[0]
        yield lanes
    finally:
        turns.stop()
        for thread in threads:
            thread.join()

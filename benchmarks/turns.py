"""Time calls in alternating turns, so that a change in machine load affects all of them equally."""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple


class Timed(NamedTuple):
    """A result and the CPU seconds of the process while it was computed."""

    result: Any
    seconds: float


def timed(call: Callable[[int], Any], turn: int) -> Timed:
    """Run `call(turn)` and time it.

    CPU time is used because the machine may be shared. With one thread it equals wall time on an idle machine.
    """
    began = time.process_time()
    result = call(turn)
    return Timed(result, time.process_time() - began)


def take_turns(calls: Mapping[str, Callable[[int], Any]], turns: int) -> Iterator[dict[str, Timed]]:
    """Yield the results of all calls in each turn, by name in the order of `calls`.

    Each turn starts with another call. The calls of a turn receive its number, from 0, for example as a seed.
    """
    names = list(calls)
    for turn in range(turns):
        first = turn % len(names)
        results = {name: timed(calls[name], turn) for name in names[first:] + names[:first]}
        yield {name: results[name] for name in names}


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Return the median and quartiles of at least one value: `{"median": float, "quartiles": [low, high]}`."""
    if len(values) == 1:
        return {"median": values[0], "quartiles": [values[0], values[0]]}
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": median, "quartiles": [low, high]}

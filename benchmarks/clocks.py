"""How long calls take: contestants in turns, by the clock on the wall or by what this thread was given of a core."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Generic, TypeVar

Clock = Callable[[], float]
WALL: Final[Clock] = time.perf_counter
"""All that a caller waits for, others too."""
THREAD: Final[Clock] = time.thread_time
"""Only what this thread does: whatever else the machine does meanwhile isn't counted."""

_Item = TypeVar("_Item")


def interleaved(
    contestants: Mapping[str, Callable[[], float]], rounds: int, *, warm: bool = True
) -> dict[str, list[float]]:
    """Has every contestant measure once a round, beginning with another one each time, so that whatever the machine
    does meanwhile falls on all of them; {name: one measurement a round}. A first round that doesn't count warms up."""
    names = list(contestants)
    measured: dict[str, list[float]] = {name: [] for name in names}
    for number in range(-1 if warm else 0, rounds):
        at = number % len(names)
        for name in names[at:] + names[:at]:
            figure = contestants[name]()
            if number >= 0:
                measured[name].append(figure)
    return measured


def seconds_each(work: Callable[[], object], clock: Clock, *, least_s: float = 0.05) -> float:
    """Seconds that one call takes, of as many as take so long together, and one at least."""
    calls, start = 0, clock()
    while (spent_s := clock() - start) < least_s or not calls:
        work()
        calls += 1
    return spent_s / calls


class Turns(Generic[_Item]):
    """Calls a function with one batch after the other, from wherever it was left."""

    def __init__(self, batches: Sequence[_Item], clock: Clock, *, burst: int = 1) -> None:
        self._following, self._count = itertools.cycle(batches), len(batches)
        self._clock, self._burst = clock, burst

    def seconds(self, work: Callable[[_Item], object], *, least_s: float = 0.02) -> float:
        """Seconds a call, of as many as take so long together; the clock is read once a burst."""

        def burst() -> None:
            for batch in itertools.islice(self._following, self._burst):
                work(batch)

        return seconds_each(burst, self._clock, least_s=least_s) / self._burst

    def seconds_of(self, work: Callable[[_Item], object], calls: int) -> float:
        """Seconds a call, of so many: ranks stay in step by doing equally many."""
        start = self._clock()
        for batch in itertools.islice(self._following, calls):
            work(batch)
        return (self._clock() - start) / calls

    def p50(self, work: Callable[[_Item], object], *, least: int = 5, most_s: float = 0.1) -> float:
        """The median of single calls: so many at least, and then no more than fit, nor than there are batches."""
        begin, seconds = self._clock(), []
        for batch in itertools.islice(self._following, self._count):
            start = self._clock()
            work(batch)
            end = self._clock()
            seconds.append(end - start)
            if len(seconds) >= least and end - begin > most_s:
                break
        return statistics.median(seconds)

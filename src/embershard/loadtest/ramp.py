"""The highest rate that a service keeps: sought in growing steps, and then between the last two."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from embershard.errors import InvalidInput
from embershard.loadtest.plan import MOST_REQUESTS, Demand
from embershard.loadtest.tally import ANSWERED, milliseconds

if TYPE_CHECKING:
    from embershard.loadtest.fleet import Measured
    from embershard.loadtest.tally import Tally

GROWTH: Final = 2.0
CLOSE: Final = 1.05
"""The search ends where the lowest rate that is too high is no more than this times the highest that isn't."""
LOWEST: Final = 1.0
"""Requests a second; and a step asks for one at least."""
UNANSWERED: Final = 0.001
"""The share of requests that may remain without an answer."""
LATE: Final = 0.01
"""The share that may be answered after the end, beyond what is in flight at any time: more is a queue that grows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One rate that was tried."""

    measured: Measured
    """What it showed."""
    passed: bool
    """Whether that is within the budget."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ramp:
    """What a search has found."""

    p99_ms: float
    """The budget."""
    best: Measured
    """The highest step that passed, or the last one if none did; one that was ended early only if there is no other."""
    highest: float | None
    """Its rate; None: none passed."""
    steps: tuple[Step, ...]
    """All that weren't ended early, in turn."""
    interrupted: bool
    """Whether the search was ended early."""


def climb(run: Callable[[Demand], Measured], first: Demand, p99_ms: float) -> Ramp:
    """Has `run` try one rate after the other, the first as `first` says, and each that fails once more before that
    counts. Ctrl-C ends the search with what there is.

    Raises:
        InvalidInput: the first step has no rate.
        KeyboardInterrupt: there is nothing yet.
    """
    if first.rate is None:
        raise InvalidInput("a ramp is for open loops: give the rate of its first step")
    steps: list[Step] = []

    def passes(rate: float) -> bool:
        return tried(rate) or tried(rate)

    def tried(rate: float) -> bool:
        measured = run(replace(first, rate=rate))
        step = Step(measured=measured, passed=not measured.interrupted and within(measured, p99_ms))
        steps.append(step)
        if measured.interrupted:
            raise KeyboardInterrupt
        return step.passed

    interrupted = False
    try:
        search(passes, first.rate, 0.99 * MOST_REQUESTS / first.whole_s, max(LOWEST, 1 / first.seconds))
    except KeyboardInterrupt:
        if not steps:
            raise
        interrupted = True
    passed = [step.measured for step in steps if step.passed]
    whole = [step for step in steps if not step.measured.interrupted]
    best = max(passed, key=lambda measured: measured.demand.rate or 0, default=(whole or steps)[-1].measured)
    return Ramp(
        p99_ms=p99_ms,
        best=best,
        highest=best.demand.rate if passed else None,
        steps=tuple(whole),
        interrupted=interrupted,
    )


def search(passes: Callable[[float], bool], first: float, highest: float, lowest: float = LOWEST) -> float | None:
    """The highest rate found that passes, up to `highest`; None: not even the lowest does."""
    low, high, rate = 0.0, 0.0, first
    while not (low and high) or high > CLOSE * low:
        if passes(rate):
            low = rate
        else:
            high = rate
        if not high:
            if low >= highest:
                break
            rate = min(low * GROWTH, highest)
        elif not low:
            if high <= lowest:
                return None
            rate = max(high / GROWTH, lowest)
        else:
            rate = (low * high) ** 0.5
    return low


def within(measured: Measured, p99_ms: float) -> bool:
    """Whether the p99 of every kind of request stays within a budget, nearly all are answered, and no queue grows."""
    slowest_ms = worst_p99_ms(measured)
    if slowest_ms is None or slowest_ms > p99_ms:
        return False
    return not any(
        tally.unanswered > UNANSWERED * tally.asked or _queue_grows(tally) for tally in measured.tallies.values()
    )


def _queue_grows(tally: Tally) -> bool:
    """Whether more answers came after the end than are on their way at any time, which is the rate by the mean latency
    (Little's law); one of them may be there by chance."""
    in_flight: float = tally.asked * tally.latency.get_mean_value() / 1e6 / tally.seconds
    return tally.outcomes[ANSWERED] - tally.in_time > 1 + LATE * tally.asked + in_flight


def worst_p99_ms(measured: Measured) -> float | None:
    """The p99 of the kind of request that waits longest, or the slowest of fewer than 100; None: nothing has a
    latency."""
    found = [milliseconds(tally.latency, 99) for tally in measured.tallies.values()]
    return max((p99_ms for p99_ms in found if p99_ms is not None), default=None)

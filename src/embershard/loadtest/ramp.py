"""The highest rate that a service keeps: sought in growing steps, and then between the last two."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from embershard.loadtest.tally import milliseconds

if TYPE_CHECKING:
    from embershard.loadtest.fleet import Measured

GROWTH: Final = 2.0
CLOSE: Final = 1.05
"""The search ends where the lowest rate that is too high is no more than this times the highest that isn't."""
LOWEST: Final = 1.0
"""Requests a second."""
UNANSWERED: Final = 0.001
"""The share of requests that may remain without an answer."""


def search(passes: Callable[[float], bool], first: float, highest: float) -> float | None:
    """The highest rate found that passes, up to `highest`; None: not even one a second does."""
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
            if high <= LOWEST:
                return None
            rate = max(high / GROWTH, LOWEST)
        else:
            rate = (low * high) ** 0.5
    return low


def within(measured: Measured, p99_ms: float) -> bool:
    """Whether the p99 of every kind of request stays within a budget, and nearly all are answered."""
    return all(
        (milliseconds(tally.latency, 99) or 0) <= p99_ms and tally.unanswered <= UNANSWERED * tally.asked
        for tally in measured.tallies.values()
    )

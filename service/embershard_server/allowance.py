"""What one identity may ask of a front end at once, and in a second, whatever connections it comes by."""

from __future__ import annotations

import time

from embershard.errors import Overloaded

RETRY_S = 0.05
"""When one who has too many calls may try again: calls are short, as a rule."""


class Allowance:
    """What is left to one identity; on the thread that answers calls."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls = 0
        self._most_calls: int | None = None
        self._ids_per_s: int | None = None
        self._left, self._reckoned = 0.0, time.monotonic()
        """Ids that may come at once, or by how many it has been exceeded; and when that was."""

    def limit(self, calls: int | None, ids_per_s: int | None) -> None:
        """Says how much there is from now on; None: no bound. What is under way stays."""
        if ids_per_s is not None and ids_per_s != self._ids_per_s:
            self._left, self._reckoned = float(ids_per_s), time.monotonic()
        self._most_calls, self._ids_per_s = calls, ids_per_s

    def enter(self) -> None:
        """A call begins.

        Raises:
            Overloaded: there are too many.
        """
        if self._most_calls is not None and self._calls >= self._most_calls:
            raise self._refusal(f"has {self._calls:,} calls under way, and its token has calls = {self._most_calls:,}")
        self._calls += 1

    def leave(self) -> None:
        """A call has ended."""
        self._calls -= 1

    def spend(self, ids: int) -> None:
        """A request has so many ids. One that is larger than a second's is let through whole, and others wait for it.

        Raises:
            Overloaded: what came before has used up the time until now, and more.
        """
        if self._ids_per_s is None:
            return
        now = time.monotonic()
        self._left = min(self._ids_per_s, self._left + (now - self._reckoned) * self._ids_per_s)
        self._reckoned = now
        if self._left <= 0:
            raise self._refusal(
                f"has sent more ids than its token's ids_per_s = {self._ids_per_s:,}",
                max(RETRY_S, -self._left / self._ids_per_s),
            )
        self._left -= ids

    def _refusal(self, what: str, retry_after_s: float = RETRY_S) -> Overloaded:
        refusal = Overloaded(f"{self._name!r} {what}: send less, or later")
        refusal.retry_after_s, refusal.reason = retry_after_s, "identity"
        return refusal

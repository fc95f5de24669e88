"""A client of an overloaded service keeps its surplus to itself.

To refuse a call costs a server a good part of what answering it would: one that is asked for several times what it can
do would do little else. So a client that is refused lets fewer calls be under way, and more again while they are
answered, as TCP does (additive increase, multiplicative decrease: Chiu and Jain, 1989); those beyond it end at once.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from embershard.errors import Overloaded, Unavailable

SMALLEST = 0.05
"""Least that may be under way: a call, and a pause of twenty times what the server asks for."""
PAUSE_S = 0.05
"""What is waited for where the server doesn't say."""
FORGET_S = 10.0
"""So long after the limit was last lowered there is none any more."""


class Throttle:
    """How many calls of one kind a client has under way; from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way = 0
        self._limit = math.inf
        """Calls; less than one is one, and a pause after it."""
        self._lowered, self._pause_s, self._pause_until = -math.inf, PAUSE_S, -math.inf

    @contextmanager
    def call(self, target: str, *, waits: bool = False) -> Iterator[None]:
        """Around a call; Overloaded in its place if there are too many.

        One that `waits` at the server for something to come isn't counted: it is no sign of how much there is to do.
        """
        if waits:
            yield
            return
        begun = self.begin(target)
        try:
            yield
        except BaseException as error:
            if isinstance(error, Overloaded) and error.retry_after_s is not None:
                self.refused(begun, error.retry_after_s)
            elif _was_cut_off(error):
                self.refused(begun, PAUSE_S)
            else:  # which says nothing of how much the service has to do; what is too large, for one, stays so
                self.ended()
            raise
        self.accepted()

    def begin(self, target: str) -> float:
        """Counts a call that begins, and returns when that was; Overloaded if it mayn't."""
        with self._lock:
            now = time.monotonic()
            if now > self._lowered + FORGET_S:
                self._limit, self._pause_until = math.inf, -math.inf
            if now >= self._pause_until and self._under_way < max(1, self._limit):
                self._under_way += 1
                return now
            refusal = Overloaded(
                f"{target}: not sent: the service has just refused calls of this client, which therefore has no more "
                f"than {max(1, math.ceil(self._limit)):,} under way; try again in a moment"
            )
            refusal.retry_after_s = min(max(self._pause_until - now, self._pause_s), FORGET_S)
        raise refusal

    def accepted(self) -> None:
        """A call was answered."""
        with self._lock:
            if 2 * self._under_way >= self._limit:
                self._limit += min(self._limit / 8, 1 / self._limit)
            self._end()

    def refused(self, begun: float, retry_after_s: float) -> None:
        """A call was refused, as there is too much to do; of those begun at once, one counts."""
        with self._lock:
            self._pause_s = retry_after_s
            if begun >= self._lowered:
                self._limit = max(SMALLEST, min(self._limit, self._under_way) / 2)
                self._lowered = time.monotonic()
            self._end()

    def ended(self) -> None:
        """A call has ended otherwise."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        self._under_way -= 1
        if self._limit < 1:
            self._pause_until = time.monotonic() + min(self._pause_s / self._limit, FORGET_S)


def _was_cut_off(error: BaseException) -> bool:
    """Whether gRPC ended the call before the server saw it, as too many waited there."""
    cause = error.__cause__
    return isinstance(error, Unavailable) and isinstance(cause, grpc.RpcError) and cause.code().name == "CANCELLED"

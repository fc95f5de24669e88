"""What is counted while calls are answered: plain numbers that cost next to nothing, for whoever exports them to read.

Each is written by one thread, or under a lock. Another one that reads may find a histogram one observation ahead of its
sum, and no worse.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

FAST = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Bounds in seconds of what takes less than a second, if all is well."""
SLOW = (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0)
"""Of what reads or writes all tables."""
TOGETHER = 64
"""Messages that are counted at once."""


class Histogram:
    """How many observations there were up to each bound."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float] = FAST) -> None:
        self.bounds = bounds
        """Ascending."""
        self.counts = [0] * (len(bounds) + 1)
        """Observations above the bound before and up to each bound, and above the last one."""
        self.sum = 0.0
        """Of all that was observed."""

    def observe(self, value: float) -> None:
        """Counts a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Counts how long a block takes, in seconds, however it ends."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.observe(time.monotonic() - start)


@dataclass(kw_only=True, slots=True, eq=False)
class Work:
    """Something long that may fail."""

    seconds: Histogram = field(default_factory=lambda: Histogram(SLOW))
    """How long it took, where it was done."""
    failures: int = 0
    """How often it couldn't be done."""

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Counts a block that does it."""
        start = time.monotonic()
        try:
            yield
        except Exception:
            self.failures += 1
            raise
        self.seconds.observe(time.monotonic() - start)


@dataclass(kw_only=True, slots=True, eq=False)
class EngineMeters:
    """What an engine's thread counts."""

    ticks: Histogram = field(default_factory=Histogram)
    """Seconds of each tick, the sleep between ticks apart."""
    queued: Histogram = field(default_factory=Histogram)
    """Seconds that an entry of this rank waited until it was given to the log."""
    logged: Histogram = field(default_factory=Histogram)
    """Seconds that a batch of entries was at the log."""
    applied: Histogram = field(default_factory=Histogram)
    """Seconds that it took to apply an entry of any rank."""
    entries: Counter[str] = field(default_factory=Counter)
    """Entries of all ranks that were applied, refused ones included, by kind."""


@dataclass(kw_only=True, slots=True, eq=False)
class LogMeters:
    """What the update log's thread counts."""

    appends: Histogram = field(default_factory=Histogram)
    """Seconds of each batch that was written."""
    bytes: int = 0
    """Of requests in those batches."""
    failures: int = 0
    """Batches that couldn't be written."""


@dataclass(kw_only=True, slots=True, eq=False)
class SnapshotMeters(Work):
    """Likewise of snapshots, by the engine's thread."""

    bytes: int = 0
    """Of the newest one."""
    version: int = 0
    """Of the newest one."""
    last_s: float = 0.0
    """When it was complete, in seconds since 1970; 0: there is none."""


@dataclass(kw_only=True, slots=True, eq=False)
class RpcMeters:
    """What a front end counts of one RPC."""

    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Calls that have ended, by the name of their gRPC status and who called; "": nobody in particular."""
    waits: Histogram = field(default_factory=Histogram)
    """Seconds from when a call of one message was let in until its message had come."""
    seconds: Histogram = field(default_factory=Histogram)
    """Seconds from when a message had come until its answer was made."""
    received: int = 0
    """Bytes of messages."""
    sent: int = 0
    """Bytes of answers."""
    ids: Counter[str] = field(default_factory=Counter)
    """Ids that were looked up or updated, by feature."""
    rows: int = 0
    """Vectors that were answered."""


class Answered(NamedTuple):
    """A message that has its answer; moments are in `time.monotonic()` seconds, and 0 where they never came."""

    rpc: RpcMeters
    """Of what it asked."""
    sent: int
    """Bytes of the answer."""
    begun_s: float
    """Of its call, if that is of one message."""
    come_s: float
    """When the message was there."""
    prepared_s: float
    """When a lookup was ready for the engine."""
    ticked_s: float
    """When the tick of a lookup began."""
    gathered_s: float
    """When a lookup had its vectors."""
    answered_s: float
    """When the answer was made."""


@dataclass(kw_only=True, slots=True, eq=False)
class FrontMeters:
    """What a front end counts, on the thread of its event loop."""

    examine_every: int = 0
    """Of so many lookups one is examined; 0: none is."""
    unexamined: int = 0
    """Lookups since the last one that was."""
    rpcs: dict[str, RpcMeters] = field(default_factory=dict)
    """By the name of the RPC."""
    stages: dict[str, Histogram] = field(
        default_factory=lambda: {stage: Histogram() for stage in ("prepare", "queue", "gather", "encode")}
    )
    """Seconds of each stage of a lookup; of those that needn't wait for a tick there is no `queue`."""
    refused: Counter[str] = field(default_factory=Counter)
    """Calls that were refused as a bound was reached, by which."""
    examined: dict[str, list[int]] = field(default_factory=dict)
    """{feature: ids by `Provenance`}, of the lookups that were examined."""
    pulses: Histogram = field(default_factory=Histogram)
    """Seconds that the lookups took by which readiness is told."""
    _answered: deque[Answered] = field(default_factory=deque)
    _settling: threading.Lock = field(default_factory=threading.Lock)

    def examines(self) -> bool:
        """Whether it is to be found out where the vectors of the next lookup come from."""
        self.unexamined += 1
        if self.unexamined != self.examine_every:
            return False
        self.unexamined = 0
        return True

    def answered(self, message: Answered) -> None:
        """Notes a message, which is counted later, with others: code that was just run is run fast."""
        self._answered.append(message)
        if len(self._answered) >= TOGETHER:
            self.settle()

    def settle(self) -> None:
        """Counts what was noted; from any thread."""
        with self._settling:
            while self._answered:
                self._count(self._answered.popleft())

    def _count(self, message: Answered) -> None:
        rpc, sent, begun_s, come_s, prepared_s, ticked_s, gathered_s, answered_s = message
        rpc.sent += sent
        rpc.seconds.observe(answered_s - come_s)
        if begun_s:
            rpc.waits.observe(come_s - begun_s)
        if gathered_s:
            stages = self.stages
            stages["prepare"].observe(prepared_s - come_s)
            stages["gather"].observe(gathered_s - (ticked_s or prepared_s))
            stages["encode"].observe(answered_s - gathered_s)
            if ticked_s:
                stages["queue"].observe(ticked_s - prepared_s)

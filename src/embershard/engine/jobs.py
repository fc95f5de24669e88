"""What callers want of the engine, and the bounded queue in which it waits for a tick."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from embershard.collection import IdCounts, Read
from embershard.engine.entries import Entry
from embershard.engine.lane import Lane
from embershard.errors import DeadlineExceeded, EmbershardError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from embershard.config import LimitSpec


BATCH_ENTRIES = 256
"""Entries of one rank that are logged together."""


@dataclass(kw_only=True, eq=False)
class Job:
    """Something to do in a tick."""

    deadline: float = float("inf")
    """In `time.monotonic()` seconds: dropped if not begun by then."""
    numbers: int = 0
    """What it adds to the queue's bound: numbers that it gathers or moves."""
    caller: str = ""
    """Who brings it: callers take turns."""
    queued_s: float = 0.0
    """Since when it waits, in `time.monotonic()` seconds."""
    begun_s: float = 0.0
    """When it was begun, likewise."""
    done: Future[Any] = field(default_factory=Future)
    """Its result, or the EmbershardError that refuses it."""

    def refuse(self, reason: EmbershardError) -> None:
        """Ends the job unless it has ended, or its caller has gone."""
        if not self.done.done() and (self.done.running() or self.done.set_running_or_notify_cancel()):
            self.done.set_exception(reason)

    def lapsed(self) -> bool:
        """Whether nobody waits for it any more: its caller has gone, or its time has passed, which it is then told."""
        if self.deadline <= time.monotonic():
            self.refuse(DeadlineExceeded("the deadline passed before the work began; nothing was done"))
        return self.done.done()

    def begin(self) -> bool:
        """Whether it is to be done, from which on it can't be cancelled."""
        self.begun_s = time.monotonic()
        return not self.lapsed() and self.done.set_running_or_notify_cancel()


@dataclass(kw_only=True, eq=False)
class LookupJob(Job):
    """Done with an `Answer`."""

    read: Read
    """What to gather."""
    min_version: int = 0
    """Waits for it."""
    with_counts: bool = False
    """Whether to tell what is known of the ids."""
    pinned: int = 0
    """The version of the loaded snapshot that it reads; 0: what is served."""

    def too_early(self, version: int) -> bool:
        """Whether its time has passed before its version came, which it is then told."""
        if self.deadline > time.monotonic() or self.min_version <= version:
            return self.done.done()
        self.refuse(
            DeadlineExceeded(f"version {self.min_version:,} didn't come in time; the service is at {version:,}")
        )
        return True


@dataclass(kw_only=True, eq=False)
class EntryJob(Job):
    """Done with the `Outcome` of an entry, once that is logged and applied."""

    entry: Entry
    """What to apply."""


@dataclass(kw_only=True, eq=False)
class ActionJob(Job):
    """Done with what the action returns."""

    action: str
    """The name of one of the ticker's joint actions."""
    request: Any = None
    """What it is told, on every rank."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Answer:
    """A lookup's result."""

    vectors: Sequence[Tensor | NDArray[np.float32]]
    """As `Found` has them, or as arrays."""
    counts: list[IdCounts]
    """What is known of the ids of each feature; empty unless asked for."""
    version: int
    """What was read."""


@dataclass(kw_only=True, eq=False)
class Load:
    """What one rank brings to one tick."""

    lookups: list[LookupJob] = field(default_factory=list)
    actions: list[ActionJob] = field(default_factory=list)
    more: bool = False
    """Whether lookups are left for the next tick."""

    @property
    def jobs(self) -> list[Job]:
        """All of it."""
        return [*self.lookups, *self.actions]


class JobQueue:
    """Jobs of one rank that wait for a tick: lookups, lookups that wait for a version, entries and actions, each
    bounded apart, so that none keeps out another. Put from any thread, taken by one."""

    def __init__(self, limits: LimitSpec, *, merged_lookups: int) -> None:
        self.changed = threading.Condition()
        self._merged_lookups, self._merged_numbers = merged_lookups, limits.numbers_per_request
        self._lookups = Lane("lookups", limits, most_wait_s=limits.queue_ms / 1000)
        self._early = Lane("lookups of versions to come", limits)
        self._entries, self._actions = Lane("updates", limits), Lane("actions", limits)
        self._early_deadline = float("inf")
        self._version = 0
        self.nudged = False
        """Whether something else than a job has come; whoever heeds it says no again."""
        self._closed: EmbershardError | None = None
        self._last_version: EmbershardError | None = None

    def check_lookup(self, caller: str) -> None:
        """Whether a caller may bring a lookup, before anything is made of it; from any thread.

        Raises:
            Overloaded: there is no room.
        """
        with self.changed:
            self._lookups.check(caller)

    def put(self, job: Job) -> None:
        """Queues a job.

        Raises:
            Overloaded: there is no room.
            EmbershardError: the reason for which the queue was closed.
        """
        with self.changed:
            if self._closed:
                raise self._closed
            if isinstance(job, LookupJob):
                self._put_lookup(job)
            else:
                (self._entries if isinstance(job, EntryJob) else self._actions).put(job)
            self.changed.notify()

    def put_own(self, job: LookupJob | ActionJob) -> None:
        """Queues what no caller has asked for, whatever waits.

        Raises:
            EmbershardError: the reason for which no more lookups are taken.
        """
        with self.changed:
            if isinstance(job, LookupJob):
                if self._closed:
                    raise self._closed
                job.queued_s = time.monotonic()
                self._lookups.add(job)
            else:
                self._actions.add(job)
            self.changed.notify()

    def _put_lookup(self, job: LookupJob) -> None:
        if job.min_version <= self._version:
            self._lookups.put(job)
        elif self._last_version:
            raise self._last_version
        else:
            self._early.put(job)
            self._early_deadline = min(self._early_deadline, job.deadline)

    def refuse_early(self, reason: EmbershardError) -> None:
        """Refuses lookups that wait for a version, and those that come."""
        with self.changed:
            self._last_version = reason
            early = self._early.drain()
        for job in early:
            job.refuse(reason)

    def close(self, reason: EmbershardError) -> bool:
        """Refuses what waits and whatever comes; False if it was closed before."""
        with self.changed:
            first, self._closed = self._closed is None, self._closed or reason
            lanes = (self._lookups, self._early, self._entries, self._actions)
            left: list[Job] = [job for lane in lanes for job in lane.drain()]
        for job in left:
            job.refuse(reason)
        return first

    @property
    def waiting(self) -> dict[str, tuple[int, int]]:
        """{lane: how many jobs wait, and the numbers that they touch}; from any thread."""
        lanes = {"lookups": self._lookups, "early": self._early, "updates": self._entries, "actions": self._actions}
        return {name: (len(lane), lane.numbers) for name, lane in lanes.items()}

    @property
    def has_entries(self) -> bool:
        """Whether entries wait."""
        return bool(self._entries)

    @property
    def lookups_wait(self) -> bool:
        """Whether lookups wait."""
        return bool(self._lookups)

    def nudge(self) -> None:
        """Wakes whoever waits for a change."""
        with self.changed:
            self.nudged = True
            self.changed.notify()

    def next_deadline(self) -> float:
        """When the next lookup that waits for a version comes too late; hold `changed`."""
        return self._early_deadline

    def take(self, version: int) -> Load:
        """Removes one tick's jobs, and those that have lapsed; hold `changed`."""
        if version != self._version or self._early_deadline <= time.monotonic():
            self._version = version
            for job in self._early.remove(lambda job: job.too_early(version) or job.min_version <= version):
                job.queued_s = time.monotonic()
                self._lookups.add(job)
            self._early_deadline = min((job.deadline for job in self._early), default=float("inf"))
        load = Load(lookups=self._take_lookups(), actions=[job for job in self._actions.drain() if job.begin()])
        load.more = bool(self._lookups)
        return load

    def take_entries(self) -> list[EntryJob]:
        """Removes entries for one batch, and those that have lapsed."""
        with self.changed:
            return self._take(self._entries, BATCH_ENTRIES, self._merged_numbers)

    def _take_lookups(self) -> list[LookupJob]:
        return self._take(self._lookups, self._merged_lookups, self._merged_numbers)

    @staticmethod
    def _take(lane: Lane, most: int, most_numbers: int) -> list[Any]:
        """Removes the next jobs of a lane, one at least, and begins them."""
        taken: list[Any] = []
        numbers = 0
        while lane and len(taken) < most:
            job = lane.first()
            if taken and numbers + job.numbers > most_numbers:
                break
            if lane.pop().begin():
                taken.append(job)
                numbers += job.numbers
        return taken

"""What callers want of the engine, and the bounded queue in which it waits for a tick."""

from __future__ import annotations

import threading
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from embershard.collection import Change, Read
from embershard.errors import DeadlineExceeded, EmbershardError, Overloaded

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from embershard.config import LimitSpec


@dataclass(kw_only=True, eq=False)
class Job:
    """Something to do in a tick."""

    deadline: float = float("inf")
    """In `time.monotonic()` seconds: dropped if not begun by then."""
    ids: int = 0
    """What it adds to the queue's bound."""
    done: Future[Any] = field(default_factory=Future)
    """Its result, or the EmbershardError that refuses it."""

    def refuse(self, reason: EmbershardError) -> None:
        """Ends the job unless it has ended, or its caller has gone."""
        if not self.done.done() and (self.done.running() or self.done.set_running_or_notify_cancel()):
            self.done.set_exception(reason)


@dataclass(kw_only=True, eq=False)
class LookupJob(Job):
    """Done with an `Answer`."""

    read: Read
    """What to gather."""
    min_version: int = 0
    """Waits for it."""
    with_provenance: bool = False
    """Whether to tell where vectors come from."""


@dataclass(kw_only=True, eq=False)
class UpdateJob(Job):
    """Done with the version that it made."""

    change: Change
    """What to apply."""


@dataclass(kw_only=True, eq=False)
class ActionJob(Job):
    """Done with what the action returns."""

    action: str
    """The name of one of the ticker's joint actions."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Answer:
    """A lookup's result."""

    vectors: list[Tensor]
    """float32 [outputs, D] for each feature of the request."""
    provenance: list[NDArray[np.uint8]]
    """uint8 [N] for each feature; empty unless asked for."""
    version: int
    """What was read."""


@dataclass(kw_only=True, eq=False)
class Load:
    """What one rank brings to one tick."""

    lookups: list[LookupJob] = field(default_factory=list)
    update: UpdateJob | None = None
    actions: list[ActionJob] = field(default_factory=list)
    more: bool = False
    """Whether something is left for the next tick."""

    @property
    def jobs(self) -> list[Job]:
        """All of it."""
        return [*self.lookups, *([self.update] if self.update else []), *self.actions]


class JobQueue:
    """Jobs of one rank that wait for a tick; bounded by requests and by ids. Put from any thread, taken by one."""

    def __init__(self, limits: LimitSpec, *, merged_lookups: int) -> None:
        self.changed = threading.Condition()
        self._limits = limits
        self._merged_lookups = merged_lookups
        self._lookups: deque[LookupJob] = deque()
        self._updates: deque[UpdateJob] = deque()
        self._actions: deque[ActionJob] = deque()
        self._ids = 0
        self._closed: EmbershardError | None = None

    def put(self, job: Job) -> None:
        """Queues a job.

        Raises:
            Overloaded: the queue is full.
            EmbershardError: the reason for which the queue was closed.
        """
        with self.changed:
            if self._closed:
                raise self._closed
            waiting = len(self._lookups) + len(self._updates) + len(self._actions)
            most, most_ids = self._limits.queued_requests, self._limits.queued_ids
            if waiting >= most or (self._ids and self._ids + job.ids > most_ids):
                raise Overloaded(
                    f"{waiting:,} requests with {self._ids:,} ids wait already, and limits.queued_requests = {most:,}, "
                    f"limits.queued_ids = {most_ids:,}; try again in a moment"
                )
            self._ids += job.ids
            if isinstance(job, LookupJob):
                self._lookups.append(job)
            elif isinstance(job, UpdateJob):
                self._updates.append(job)
            elif isinstance(job, ActionJob):
                self._actions.append(job)
            self.changed.notify()

    def close(self, reason: EmbershardError) -> bool:
        """Refuses what waits and whatever comes; False if it was closed before."""
        with self.changed:
            first, self._closed = self._closed is None, self._closed or reason
            left: list[Job] = [*self._lookups, *self._updates, *self._actions]
            for queue in (self._lookups, self._updates, self._actions):
                queue.clear()
        for job in left:
            job.refuse(reason)
        return first

    def next_deadline(self) -> float:
        """When the next waiting lookup comes too late; hold `changed`."""
        return min((job.deadline for job in self._lookups), default=float("inf"))

    def take(self, version: int) -> Load:
        """Removes one tick's jobs, and those that came too late; hold `changed`."""
        now, load, ids = time.monotonic(), Load(), 0
        waiting: deque[LookupJob] = deque()
        for job in self._lookups:
            if job.deadline > now and job.min_version > version:
                waiting.append(job)
            elif len(load.lookups) == self._merged_lookups or (
                load.lookups and ids + job.ids > self._limits.ids_per_request
            ):
                waiting.append(job)
                load.more = True
            elif self._begin(job, now):
                load.lookups.append(job)
                ids += job.ids
        self._lookups = waiting
        while self._updates and load.update is None:
            if self._begin(update := self._updates.popleft(), now):
                load.update = update
        load.actions = [job for job in self._actions if self._begin(job, now)]
        self._actions.clear()
        load.more = load.more or bool(self._updates)
        return load

    def _begin(self, job: Job, now: float) -> bool:
        self._ids -= job.ids
        if job.deadline <= now:
            job.refuse(DeadlineExceeded("the deadline passed before the work began; nothing was done"))
            return False
        return job.done.set_running_or_notify_cancel()

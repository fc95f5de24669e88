"""Jobs of one kind that wait: bounded by how many, by what they touch, and by how long they wait; callers take turns.

While there is no room, who has less waiting than the greediest caller gets the room of that one's newest job. So one
greedy client can't starve the others, and what has waited for longest is what is done.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

from embershard.errors import Overloaded

if TYPE_CHECKING:
    from embershard.config import LimitSpec
    from embershard.engine.jobs import Job

_SWEEP_S = 0.05
"""A full lane looks so often for jobs that have lapsed."""
_REQUEST = 2_000
"""A turn costs a caller the numbers that its request touches, and so many for the request itself."""


class _Caller:
    """What one caller has waiting."""

    def __init__(self, turn: float) -> None:
        self.jobs: deque[Any] = deque()
        self.numbers = 0
        self.turn = turn
        """Numbers that it has had, as if it had always been there; who has had least comes next."""


class Lane:
    """Not safe for threads; `name` says what waits."""

    def __init__(self, name: str, limits: LimitSpec, *, most_wait_s: float = float("inf")) -> None:
        self._name, self._limits, self._most_wait_s = name, limits, most_wait_s
        self._callers: dict[str, _Caller] = {}
        self._turns: list[tuple[float, str]] = []
        self._count, self._numbers, self._now = 0, 0, 0.0
        self._waited_s, self._next_sweep = 0.0, 0.0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Any]:
        return (job for caller in self._callers.values() for job in caller.jobs)

    @property
    def numbers(self) -> int:
        """That all of them touch."""
        return self._numbers

    def check(self, name: str) -> None:
        """Whether a caller may bring something, before anything is made of it; Overloaded if it surely mayn't."""
        mine = self._callers.get(name)
        if self._full(0) and (len(mine.jobs) if mine else 0) * len(self._callers) >= self._count:
            raise self._refusal()

    def put(self, job: Job) -> None:
        """Adds a job; Overloaded if there is no room for one more of its caller."""
        job.queued_s = time.monotonic()
        if self._full(job.numbers) and job.queued_s >= self._next_sweep:
            self._next_sweep = job.queued_s + _SWEEP_S
            self.remove(lambda waiting: waiting.lapsed())
        while self._full(job.numbers):
            mine = self._callers.get(job.caller)
            greediest = max(self._callers.values(), key=self._share)
            if mine is greediest or self._share(mine, job) >= self._share(greediest):
                raise self._refusal()
            self._forget(greediest, newest := greediest.jobs.pop())
            newest.refuse(self._refusal())
        self.add(job)

    def add(self, job: Job) -> None:
        """Adds a job that had room before."""
        caller = self._callers.get(job.caller)
        if caller is None:
            caller = self._callers[job.caller] = _Caller(self._now)
            heappush(self._turns, (caller.turn, job.caller))
        caller.jobs.append(job)
        caller.numbers += job.numbers
        self._count += 1
        self._numbers += job.numbers

    def first(self) -> Any:
        """The job whose turn it is, which stays."""
        return self._next().jobs[0]

    def pop(self) -> Any:
        """Removes the job whose turn it is."""
        caller = self._next()
        _, name = heappop(self._turns)
        job = caller.jobs.popleft()
        self._forget(caller, job)
        if not self._count:
            self.drain()
            return job
        cost = job.numbers + _REQUEST
        caller.turn += cost
        heappush(self._turns, (caller.turn, name))
        self._now += cost / len(self._callers)
        self._waited_s = time.monotonic() - job.queued_s
        return job

    def drain(self) -> list[Any]:
        """Removes and returns all jobs."""
        jobs = list(self)
        self._callers, self._turns = {}, []
        self._count, self._numbers, self._waited_s = 0, 0, 0.0
        return jobs

    def remove(self, wanted: Callable[[Any], bool]) -> list[Any]:
        """Removes and returns the jobs of which `wanted` is true."""
        removed = []
        for caller in self._callers.values():
            for job in [job for job in caller.jobs if wanted(job)]:
                caller.jobs.remove(job)
                self._forget(caller, job)
                removed.append(job)
        if not self._count:
            self.drain()
        return removed

    def _next(self) -> _Caller:
        """Whose turn it is; who has nothing more is forgotten once it would be its turn, so that it gains nothing by
        coming back at once."""
        while not (caller := self._callers[self._turns[0][1]]).jobs:
            self._now = max(self._now, caller.turn)
            del self._callers[heappop(self._turns)[1]]
        return caller

    def _forget(self, caller: _Caller, job: Job) -> None:
        caller.numbers -= job.numbers
        self._count -= 1
        self._numbers -= job.numbers

    def _full(self, numbers: int) -> bool:
        """Whether there is no room for these; a job that is alone has room."""
        limits = self._limits
        return self._count > 0 and (
            self._count >= limits.queued_requests
            or self._numbers + numbers > limits.queued_numbers
            or self._waited_s > self._most_wait_s
        )

    def _share(self, caller: _Caller | None, job: Job | None = None) -> float:
        """Which part of the bounds a caller has, with one more job."""
        count = (len(caller.jobs) if caller else 0) + (job is not None)
        numbers = (caller.numbers if caller else 0) + (job.numbers if job else 0)
        return max(count / self._limits.queued_requests, numbers / self._limits.queued_numbers)

    def _refusal(self) -> Overloaded:
        limits = self._limits
        refusal = Overloaded(
            f"{self._count:,} {self._name} that touch {self._numbers:,} numbers wait already, the last one that was "
            f"begun for {self._waited_s * 1000:,.0f} ms, and limits.queued_requests = {limits.queued_requests:,}, "
            f"limits.queued_numbers = {limits.queued_numbers:,}, limits.queue_ms = {limits.queue_ms:,}; try again in a "
            "moment"
        )
        refusal.retry_after_s, refusal.reason = limits.queue_ms / 1000, "queue"
        return refusal

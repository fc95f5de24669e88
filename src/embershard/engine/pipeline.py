"""Entries on their way: they wait in the queue, are logged in batches, and are applied one after the other.

A batch is written to the log by a thread of its own, once for all ranks, while ticks go on: lookups don't wait for a
disk, and what arrives meanwhile makes the next batch. What can't be logged is refused, and has changed nothing. Every
rank knows the same of batches, since they are advanced jointly.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from embershard.engine.entries import Entry, Kind, sightings_entry
from embershard.engine.reservation import release, reserve
from embershard.errors import EmbershardError

if TYPE_CHECKING:
    from embershard.collection import Read
    from embershard.config import Config
    from embershard.engine.jobs import EntryJob, JobQueue
    from embershard.engine.replica import Replica

_PENDING, _LOGGED, _REFUSED = range(3)
"""What rank 0 knows of the batch that is being logged."""
_PATIENCE_S, _TICKS = 0.001, 5
"""How long the ranks wait for the log, awake, before they sleep until it is done: so long, and so often."""
_TICK_S = 0.005
"""About as long as one tick applies entries, so that lookups that arrive meanwhile don't wait for more."""
_CREDIT_S = 0.05
"""Most time that entries save up while lookups have all of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """An entry as it is logged."""

    version: int
    """The version that it makes."""
    kind: Kind
    """What it does."""
    now_s: int
    """The time of its tick, in seconds since 1970."""
    request: bytes
    """What it asks for."""


class Brought(NamedTuple):
    """What ranks bring to the agreement of a tick, added up."""

    waiting: int
    """Ranks that have entries."""
    logged: int
    """How the log has fared with its batch; rank 0 knows."""
    quota: int
    """How many entries are applied now; rank 0 says."""


class Log(Protocol):
    """Where entries are kept; rank 0 has it."""

    def append(self, records: Sequence[Record]) -> Future[None]:
        """Done once they are as safe as the log's mode promises; fails, with nothing kept, if they can't be."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Step:
    """One entry of a batch."""

    entry: Entry
    """As this rank knows it."""
    rank: int
    """Which brings it."""
    now_s: int
    """The time of its tick."""
    job: EntryJob | None
    """Who waits for it here."""

    def refuse(self, reason: EmbershardError) -> None:
        """Tells whoever waits for it."""
        if self.job:
            self.job.refuse(reason)


class Pipeline:
    """The entries of all ranks, from their queues to the replica; what is said to be joint, all ranks do together."""

    def __init__(self, replica: Replica, queue: JobQueue, log: Log | None, config: Config) -> None:
        self._replica, self._world = replica, replica.engine.world
        self._queue, self._log, self._meters = queue, log, replica.meters
        self._instant = config.durability.log == "none"
        self._pace = _Pace(config.limits.update_share)
        self._sighted: list[Read] = []
        self._most_sighted = config.limits.numbers_per_request
        self._batch: list[_Step] = []
        """What is being logged."""
        self._logging: Future[None] = Future()
        self._ticks_of_batch, self._written_s = 0, 0.0
        self._logged: deque[_Step] = deque()
        """What is to be applied."""
        self.applied_s = 0.0
        """Time that applying entries has taken, in seconds."""

    @property
    def idle(self) -> bool:
        """Joint: whether nothing is on its way."""
        return not self._batch and not self._logged

    @property
    def busy(self) -> bool:
        """Joint: whether the next tick follows at once: it has entries to apply, or the log will soon have written its
        batch."""
        return bool(self._logged) or (bool(self._batch) and self._ticks_of_batch < _TICKS)

    def wait_s(self) -> float:
        """How long this rank waits for its log, or for lookups, before it begins the next tick, if that is to follow
        at once: the others wait for it there, and can't begin another."""
        waits = self._batch and not self._logged and self._world.rank == 0 and not self._logging.done()
        return _PATIENCE_S if waits else 0.0

    @property
    def due(self) -> bool:
        """Whether this rank wants a tick: it has entries, and can bring them, or the log has written its batch."""
        if self._batch:
            return self._world.rank == 0 and self._logging.done()
        return bool(self._sighted) or self._queue.has_entries

    @property
    def sighted(self) -> bool:
        """Whether lookups have sighted ids that aren't counted yet."""
        return bool(self._sighted)

    def note(self, reads: Sequence[Read], seconds: float) -> None:
        """Lookups were answered, in this time: some of their ids may be sightings, which are logged next.

        While too many wait for the log, more aren't counted.
        """
        self._pace.earn(seconds)
        sighted = [read for read in reads if any(part.table.counts_lookups for part in read.parts)]
        if sighted and sum(read.numbers for read in self._sighted) < self._most_sighted:
            self._sighted += sighted

    def brings(self, *, lookups: bool) -> Brought:
        """What this rank brings to the agreement of a tick; `lookups` tells whether lookups wait."""
        waiting = int(bool(self._sighted) or self._queue.has_entries)
        if self._world.rank:
            return Brought(waiting, _PENDING, 0)
        logged = _PENDING
        if self._batch and self._logging.done():
            logged = _REFUSED if self._logging.exception() else _LOGGED
        return Brought(waiting, logged, self._pace.quota(lookups=lookups))

    def advance(self, brought: Brought, now_s: int) -> None:
        """Joint: one tick's share of the way."""
        waiting, logged, quota = brought
        self._ticks_of_batch += 1
        if logged:
            batch, self._batch = self._batch, []
            self._meters.logged.observe(time.monotonic() - self._written_s)
            if logged == _LOGGED:
                self._logged += batch
            else:
                self._refuse(batch)
        if waiting and not self._batch and len(self._logged) <= quota:
            self._collect(now_s)
        start, applied = time.perf_counter(), 0
        while self._logged and applied < quota:
            self._apply(self._logged.popleft())
            applied += 1
        spent_s = time.perf_counter() - start
        self.applied_s += spent_s
        self._pace.spend(spent_s, applied)

    def end(self, reason: EmbershardError) -> None:
        """Tells all who wait that the engine has failed."""
        for step in (*self._batch, *self._logged):
            step.refuse(reason)

    def _collect(self, now_s: int) -> None:
        """Joint: makes a batch of what waits on all ranks, and has it logged."""
        jobs: list[EntryJob | None] = [*self._queue.take_entries()]
        self._written_s = time.monotonic()
        for job in jobs:
            if job:
                self._meters.queued.observe(self._written_s - job.queued_s)
        mine = [job.entry for job in jobs if job]
        if self._sighted:
            mine.append(sightings_entry(self._replica.collection, self._sighted))
            jobs.append(None)
            self._sighted = []
        for rank, told in enumerate(self._world.gather([entry.told() for entry in mine])):
            here = rank == self._world.rank
            self._batch += [
                _Step(entry=mine[at] if here else entry, rank=rank, now_s=now_s, job=jobs[at] if here else None)
                for at, entry in enumerate(told)
            ]
        self._batch = [step for step in self._batch if self._possible(step)]
        self._ticks_of_batch = 0
        if self._instant:
            self._logged += self._batch
            self._batch = []
        elif self._batch:
            self._write(now_s)

    def _possible(self, step: _Step) -> bool:
        """Joint: whether an entry can be done, as far as can be told: no log knows how much memory there was."""
        try:
            reserve(self._replica, step.entry)
        except EmbershardError as refusal:  # on every rank
            step.refuse(refusal)
            return False
        return True

    def _write(self, now_s: int) -> None:
        """Joint: rank 0 logs what all have brought."""
        if self._log is None:
            return
        first = self._replica.version + len(self._logged) + 1
        self._logging = self._log.append(
            [
                Record(version=first + at, kind=step.entry.kind, now_s=now_s, request=step.entry.request)
                for at, step in enumerate(self._batch)
            ]
        )
        self._logging.add_done_callback(lambda _: self._queue.nudge())

    def _refuse(self, batch: Sequence[_Step]) -> None:
        """Joint: tells every rank why its entries weren't logged."""
        reason = self._logging.exception() if self._world.rank == 0 else None
        told: BaseException = self._world.gather(reason)[0]
        if not isinstance(told, EmbershardError):
            self._batch = [*batch]  # `end` tells its callers
            raise told
        for step in batch:
            release(self._replica, step.entry)
            step.refuse(told)

    def _apply(self, step: _Step) -> None:
        """Joint: makes the next version."""
        start = time.monotonic()
        try:
            outcome = self._replica.apply(step.entry, step.now_s, mine=step.rank == self._world.rank)
        except BaseException:
            self._logged.appendleft(step)  # `end` tells its caller
            raise
        self._meters.applied.observe(time.monotonic() - start)
        self._meters.entries[step.entry.kind.name.lower()] += 1
        if step.job and outcome.refusal:
            step.job.refuse(outcome.refusal)
        elif step.job:
            step.job.done.set_result(outcome)


class _Pace:
    """Shares the engine's time between lookups and entries: while lookups wait, entries get what they have earned."""

    def __init__(self, share: float) -> None:
        self._rate = share / (1 - share)
        self._credit_s, self._entry_s = 0.0, _TICK_S

    def earn(self, lookups_s: float) -> None:
        """Lookups have had the engine for so long."""
        self._credit_s = min(self._credit_s + lookups_s * self._rate, _CREDIT_S)

    def spend(self, entries_s: float, count: int) -> None:
        """So many entries have had it."""
        self._credit_s -= entries_s
        if count:
            self._entry_s += 0.2 * (entries_s / count - self._entry_s)

    def quota(self, *, lookups: bool) -> int:
        """How many entries are applied in a tick."""
        if not lookups:
            self._credit_s = max(self._credit_s, 0.0)
            return max(1, int(_TICK_S / self._entry_s))
        return 0 if self._credit_s <= 0 else max(1, int(self._credit_s / self._entry_s))

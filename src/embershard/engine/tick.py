"""The tick: one engine thread a rank, in lock-step with its peers.

In a tick all ranks first agree on what any of them brings (one small sum), then take part in the same joint steps, in
one order: lookups, gradients, values, actions. A rank that brings nothing takes part with nothing. Lookups read the
version that was there when the tick began; a tick that changes rows makes the next version.

A failure inside a tick would leave ranks in different states, so it ends the process, and its peers with it: requests
are checked before they come here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from embershard.collection import ByTable, Change
from embershard.engine.jobs import ActionJob, Answer, Job, JobQueue, Load, LookupJob, UpdateJob
from embershard.errors import EmbershardError, Unavailable

if TYPE_CHECKING:
    from embershard.config import LimitSpec
    from embershard.engine.base import Engine

HEARTBEAT_S = 1.0
"""A sleeping group of several ranks ticks this often, so that a dead peer is noticed."""
MERGED_LOOKUPS = 64
"""Lookups of one rank that share a tick where a tick is joint; alone, merging gains nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Agreement:
    """What the ranks bring together."""

    gather: frozenset[str]
    """Tables of which any rank looks up rows; and so on."""
    trained: frozenset[str]
    apply: frozenset[str]
    write: frozenset[str]
    actions: frozenset[str]
    more: bool
    """Whether the next tick follows at once."""
    asked_to_leave: bool
    all_ready: bool


class Ticker:
    """Runs an engine in ticks, on a thread of its own.

    `actions` are joint: a tick that has one runs it on every rank, as `action(version)`; an EmbershardError that one
    raises must be raised on every rank, and is its callers' answer. `farewell` is one more, for the last tick.
    `asked_to_leave` is called once, from the engine's thread, when any rank wants the group to leave; `lost` once, when
    the engine can't go on.
    """

    def __init__(
        self,
        engine: Engine,
        limits: LimitSpec,
        *,
        version: int,
        actions: Mapping[str, Callable[[int], Any]],
        farewell: Callable[[int], None],
        asked_to_leave: Callable[[], None],
        lost: Callable[[BaseException], None],
    ) -> None:
        self.version = version
        self._engine, self._world = engine, engine.world
        self._actions, self._farewell = actions, farewell
        self._asked_to_leave, self._lost = asked_to_leave, lost
        self._tables = [table.name for table in engine.config.tables]
        alone = self._world.size == 1
        self._heartbeat_s = float("inf") if alone else HEARTBEAT_S
        self._queue = JobQueue(limits, merged_lookups=1 if alone else MERGED_LOOKUPS)
        self._wake = self._queue.changed
        # How often the group slept, the last sleep from which it was woken, and whether it doesn't sleep now.
        self._sleeps, self._woken, self._awake = 0, -1, False
        # Whether this rank asked the group to leave, is ready to, and hasn't told its peers yet.
        self._asks, self._ready, self._news, self._told = False, False, False, False
        self._thread = threading.Thread(target=self._run, name="engine")

    def start(self) -> None:
        """Begins to tick."""
        self._world.listen(self._hear, self._fail)
        self._thread.start()

    def join(self) -> None:
        """Waits until the group has left or failed."""
        self._thread.join()

    def submit(self, job: Job) -> Future[Any]:
        """Queues a job for a tick; from any thread.

        Raises:
            Overloaded: the queue is full.
            Unavailable: the engine has ended.
        """
        self._queue.put(job)
        return job.done

    def leave(self, *, ready: bool) -> None:
        """Asks all ranks to leave. A rank that brings nothing more is ready, and the group leaves once all are."""
        with self._wake:
            self._asks, self._ready, self._news = True, ready, True
            self._wake.notify()

    def _run(self) -> None:
        try:
            if self._world.device.type == "cuda":
                torch.cuda.set_device(self._world.device)  # the present device is a thread's own
            while self._tick(self._next()):
                pass
            self._farewell(self.version)
            self._queue.close(Unavailable("the server is stopping; try again in a moment, or elsewhere"))
        except BaseException as error:  # ranks may differ now, whatever it was: the process must end
            self._fail(error)

    def _hear(self, number: int) -> None:
        with self._wake:
            self._woken = number
            self._wake.notify()

    def _fail(self, error: BaseException) -> None:
        if self._queue.close(Unavailable("the server's engine has failed and must start again; try again later")):
            self._lost(error)

    def _next(self) -> Load:
        """What this rank brings to the next tick; sleeps until any rank brings something."""
        with self._wake:
            load = self._queue.take(self.version)
            if self._awake:
                return load
            heartbeat = time.monotonic() + self._heartbeat_s
            while not (load.jobs or self._news or self._woken >= self._sleeps):
                wait_s = min(heartbeat, self._queue.next_deadline()) - time.monotonic()
                if heartbeat <= time.monotonic():
                    break
                self._wake.wait(None if wait_s == float("inf") else min(max(wait_s, 0), threading.TIMEOUT_MAX))
                load = self._queue.take(self.version)
            self._news = False
        return load

    def _tick(self, load: Load) -> bool:
        """One joint tick; False once all ranks have left."""
        try:
            if not self._awake and self._woken < self._sleeps:
                self._world.wake(self._sleeps)
            agreed = self._agree(load)
            self._look_up(load.lookups, agreed)
            self._update(load.update, agreed)
            for name in sorted(agreed.actions):
                self._act(name, [job for job in load.actions if job.action == name])
        except BaseException:
            for job in load.jobs:
                job.refuse(Unavailable("the server's engine failed in the tick of this request; it must start again"))
            raise
        if agreed.asked_to_leave and not self._told:
            self._told = True
            self._asked_to_leave()
        self._awake = agreed.more
        self._sleeps += not agreed.more
        return not agreed.all_ready

    def _agree(self, load: Load) -> _Agreement:
        """Joint: adds up what all ranks bring."""
        change = load.update.change if load.update else None
        names = {
            "gather": {table for job in load.lookups for table in job.read.rows},
            "trained": {table for job in load.lookups if job.with_provenance for table in job.read.rows},
            "apply": set(change.rows) if change else set(),
            "write": set(change.written) if change else set(),
        }
        columns = [(step, table) for step in names for table in self._tables]
        columns += [("actions", name) for name in self._actions]
        names["actions"] = {job.action for job in load.actions}
        flags = [name in names[step] for step, name in columns]
        sums = self._world.sum(torch.tensor([load.more, self._asks, self._ready, *flags], dtype=torch.int64)).tolist()
        brought = [column for column, count in zip(columns, sums[3:], strict=True) if count]
        return _Agreement(
            **{step: frozenset(name for of, name in brought if of == step) for step in names},
            more=sums[0] > 0,
            asked_to_leave=sums[1] > 0,
            all_ready=sums[2] == self._world.size,
        )

    def _look_up(self, jobs: Sequence[LookupJob], agreed: _Agreement) -> None:
        """Joint: one gather for all lookups of all ranks."""
        gathered = self._engine.gather(_merged([job.read.rows for job in jobs]), agreed.gather)
        curious = [job for job in jobs if job.with_provenance]
        trained = self._engine.trained(_merged([job.read.rows for job in curious]), agreed.trained)
        vectors = _shared_out(gathered, [job.read.rows for job in jobs])
        flags = iter(_shared_out(trained, [job.read.rows for job in curious]))
        for job, of_job in zip(jobs, vectors, strict=True):
            answer = Answer(
                vectors=job.read.answer(of_job),
                provenance=job.read.provenance(next(flags)) if job.with_provenance else [],
                version=self.version,
            )
            job.done.set_result(answer)

    def _update(self, job: UpdateJob | None, agreed: _Agreement) -> None:
        """Joint: one step of the optimizers for the gradients of all ranks, then their values."""
        change = job.change if job else Change.nothing()
        self._engine.apply(change.rows, change.gradients, agreed.apply)
        self._engine.write(change.written, change.values, agreed.write)
        self.version += bool(agreed.apply or agreed.write)
        if job:
            job.done.set_result(self.version)

    def _act(self, name: str, jobs: Sequence[ActionJob]) -> None:
        """Joint: runs an action once, for all who asked for it."""
        try:
            result = self._actions[name](self.version)
        except EmbershardError as refusal:
            for job in jobs:
                job.refuse(refusal)
        else:
            for job in jobs:
                job.done.set_result(result)


def _merged(of_jobs: Sequence[ByTable]) -> ByTable:
    """The rows of several lookups as one, table by table."""
    if len(of_jobs) == 1:
        return of_jobs[0]
    tables = {table for rows in of_jobs for table in rows}
    return {table: torch.cat([rows[table] for rows in of_jobs if table in rows]) for table in tables}


def _shared_out(merged: ByTable, of_jobs: Sequence[ByTable]) -> list[ByTable]:
    """What was gathered for merged lookups, as it belongs to each of them."""
    if len(of_jobs) == 1:
        return [merged]
    pieces = {
        table: iter(found.split([len(rows[table]) for rows in of_jobs if table in rows]))
        for table, found in merged.items()
    }
    return [{table: next(pieces[table]) for table in rows} for rows in of_jobs]

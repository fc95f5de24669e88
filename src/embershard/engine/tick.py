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

from embershard.change import Change
from embershard.engine.jobs import ActionJob, Answer, Job, JobQueue, Load, LookupJob, UpdateJob
from embershard.engine.steps import look_up, update
from embershard.engine.work import Agreement, Work, work_of_change, work_of_reads
from embershard.errors import EmbershardError, Unavailable

if TYPE_CHECKING:
    from embershard.config import LimitSpec
    from embershard.engine.base import Engine

HEARTBEAT_S = 1.0
"""A sleeping group of several ranks ticks this often, so that a dead peer is noticed."""
MERGED_LOOKUPS = 64
"""Lookups of one rank that share a tick where a tick is joint; alone, merging gains nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Action:
    """Something that all ranks do together in a tick, as `run(version, request)`.

    An EmbershardError that it raises must be raised on every rank, and is its caller's answer.
    """

    run: Callable[[int, Any], Any]
    """Called on every rank, with what the caller of one of them said."""
    changes: bool = False
    """Whether a new version comes of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Agreed:
    """What the ranks bring together."""

    work: Work
    now_s: int
    """The time on rank 0's clock, in seconds since 1970."""
    more: bool
    """Whether the next tick follows at once."""
    asked_to_leave: bool
    all_ready: bool


class Ticker:
    """Runs an engine in ticks, on a thread of its own.

    A tick that has one of the `actions` runs it on every rank; `farewell` is one more, for the last tick.
    `asked_to_leave` is called once, from the engine's thread, when any rank wants the group to leave; `lost` once, when
    the engine can't go on.
    """

    def __init__(
        self,
        engine: Engine,
        limits: LimitSpec,
        *,
        version: int,
        actions: Mapping[str, Action],
        farewell: Callable[[int], None],
        asked_to_leave: Callable[[], None],
        lost: Callable[[BaseException], None],
    ) -> None:
        self.version = version
        self._engine, self._world = engine, engine.world
        self._actions, self._farewell = actions, farewell
        self._asked_to_leave, self._lost = asked_to_leave, lost
        self._agreement = Agreement(engine, list(actions))
        self._now_s = 0
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
            for name in sorted(agreed.work.action):
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

    def _agree(self, load: Load) -> _Agreed:
        """Joint: adds up what all ranks bring."""
        reads = [job.read for job in load.lookups]
        curious = [job.read for job in load.lookups if job.with_counts]
        mine = work_of_reads(self._engine, reads, curious)
        mine |= Work(action=frozenset(job.action for job in load.actions))
        mine |= work_of_change(load.update.change) if load.update else Work()
        self._now_s = max(self._now_s, int(time.time()))  # a clock that is set back makes nothing younger
        work, now_s, (more, asks, ready) = self._agreement(mine, self._now_s, load.more, self._asks, self._ready)
        return _Agreed(
            work=work, now_s=now_s, more=more > 0, asked_to_leave=asks > 0, all_ready=ready == self._world.size
        )

    def _look_up(self, jobs: Sequence[LookupJob], agreed: _Agreed) -> None:
        """Joint: one gather for all lookups of all ranks."""
        reads = [job.read for job in jobs]
        curious = [job.read for job in jobs if job.with_counts]
        for job, found in zip(jobs, look_up(self._engine, reads, curious, agreed.work, agreed.now_s), strict=True):
            job.done.set_result(Answer(vectors=found.vectors, counts=found.counts, version=self.version))

    def _update(self, job: UpdateJob | None, agreed: _Agreed) -> None:
        """Joint: what all ranks' updates change, as the next version."""
        refusal = None
        if agreed.work.updates:
            refusal = update(self._engine, job.change if job else Change.nothing(), agreed.work, agreed.now_s)
        self.version += agreed.work.changes
        if job and refusal is None:
            job.done.set_result(self.version)
        elif job and refusal:
            job.refuse(refusal)

    def _act(self, name: str, jobs: Sequence[ActionJob]) -> None:
        """Joint: does what the callers of all ranks ask for, one after the other."""
        for rank, requests in enumerate(self._world.gather([job.request for job in jobs])):
            for number, request in enumerate(requests):
                mine = jobs[number] if rank == self._world.rank else None
                try:
                    result = self._actions[name].run(self.version, request)
                except EmbershardError as refusal:
                    if mine:
                        mine.refuse(refusal)
                else:
                    self.version += self._actions[name].changes
                    if mine:
                        mine.done.set_result((result, self.version))

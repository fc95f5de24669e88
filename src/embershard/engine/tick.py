"""The tick: one engine thread a rank, in lock-step with its peers.

In a tick all ranks first agree on what any of them brings (one small sum), then take part in the same joint steps, in
one order: lookups, entries, actions. A rank that brings nothing takes part with nothing. Lookups read the version that
was there when the tick began; every entry makes the next version.

Alone, there is nobody to agree with, so that a lookup needn't be in a tick: whoever brings it may answer it at once, on
its own thread, between two ticks.

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

from embershard.engine.jobs import ActionJob, Job, JobQueue, Load, LookupJob
from embershard.engine.lookups import Lookups, work_of
from embershard.engine.pipeline import Brought, Log, Pipeline
from embershard.engine.work import Agreement, Work
from embershard.errors import EmbershardError, Unavailable

if TYPE_CHECKING:
    from embershard.collection import Collection, Read
    from embershard.engine.jobs import Answer
    from embershard.engine.replica import Replica

HEARTBEAT_S = 1.0
"""A sleeping group of several ranks ticks this often, so that a dead peer is noticed."""
MERGED_LOOKUPS = 64
"""Lookups of one rank that share a tick where a tick is joint; alone, merging gains nothing."""

Action = Callable[[Any], Any]
"""Something that all ranks do together in a tick, told what the caller of one of them said; it changes no row.

An EmbershardError that it raises must be raised on every rank, and is its caller's answer.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Agreed:
    """What the ranks bring together."""

    work: Work
    now_s: int
    """The time on rank 0's clock, in seconds since 1970."""
    more: bool
    """Whether lookups wait for the next tick."""
    asked_to_leave: bool
    all_ready: bool
    pinned: bool
    """Whether lookups name loaded snapshots."""
    entries: Brought
    """What becomes of entries."""


class Ticker:
    """Runs a replica in ticks, on a thread of its own.

    A tick that has one of the `actions` runs it on every rank; `farewell` is one more, for the last tick. Between ticks
    it does `chore`, one after the other as long as it returns True: what this rank alone has to do with its rows.
    `asked_to_leave` is called once, from the engine's thread, when any rank wants the group to leave; `lost` once, when
    the engine can't go on.
    """

    def __init__(
        self,
        replica: Replica,
        log: Log | None,
        *,
        actions: Mapping[str, Action],
        chore: Callable[[], bool],
        farewell: Callable[[], None],
        asked_to_leave: Callable[[], None],
        lost: Callable[[BaseException], None],
    ) -> None:
        self._replica, self._world = replica, replica.engine.world
        self._actions, self._chore, self._farewell = actions, chore, farewell
        self._asked_to_leave, self._lost = asked_to_leave, lost
        self._agreement = Agreement(replica.engine, list(actions))
        self._now_s = 0
        self._alone = alone = self._world.size == 1
        self._heartbeat_s = float("inf") if alone else HEARTBEAT_S
        config = replica.engine.config
        self.queue = JobQueue(config.limits, merged_lookups=1 if alone else MERGED_LOOKUPS)
        """What waits for a tick."""
        self._pipeline, self._lookups = Pipeline(replica, self.queue, log, config), Lookups(replica)
        # Whoever has it may be at the rows, unless they may be of half an update.
        self._rows, self._torn = threading.Lock(), False
        self._wake = self.queue.changed
        # How often the group slept, the last sleep from which it was woken, and whether it doesn't sleep now.
        self._sleeps, self._woken, self._awake = 0, -1, False
        # Whether lookups of any rank had to wait for this tick, or were answered before it.
        self._waited = False
        # Whether this rank asked the group to leave, is ready to, and hasn't told its peers yet.
        self._asks, self._ready, self._news, self._told = False, False, False, False
        self._thread = threading.Thread(target=self._run, name="engine")

    @property
    def version(self) -> int:
        """What lookups read now."""
        return self._replica.served

    @property
    def applied_s(self) -> float:
        """Seconds that applying entries has taken."""
        return self._pipeline.applied_s

    @property
    def collection(self) -> Collection:
        """What requests are checked against."""
        return self._replica.collection

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
        self.queue.put(job)
        return job.done

    def answer(self, read: Read, *, min_version: int, with_counts: bool) -> Answer | None:
        """A lookup of what is served, here and now, from any thread; None if it takes a tick, or something is in its
        way: then it is to be submitted.

        Raises:
            InvalidInput: tables have changed since it was prepared, and lack an id.
        """
        if not self._alone or self.queue.lookups_wait or not self._rows.acquire(blocking=False):
            return None
        try:
            if self._torn or min_version > self.version:
                return None
            start = time.perf_counter()
            read = self._lookups.fitted(read)
            answer = self._lookups.answer(read, with_counts=with_counts)
            self._waited = True
            self._pipeline.note([read], time.perf_counter() - start)
        finally:
            self._rows.release()
        if self._pipeline.sighted:
            self.queue.nudge()
        return answer

    def ask(self, job: LookupJob | ActionJob) -> Future[Any]:
        """Queues what this rank itself wants, for which there is always room: whoever ends for lack of it ends all."""
        self.queue.put_own(job)
        return job.done

    def nudge(self) -> None:
        """Tells that there are chores; from any thread."""
        self.queue.nudge()

    def leave(self, *, ready: bool) -> None:
        """Asks all ranks to leave. A rank that brings nothing more is ready, and the group leaves once all are."""
        with self._wake:
            self._asks, self._ready, self._news = True, ready, True
            self._wake.notify()
        self.queue.refuse_early(Unavailable("the server is stopping before that version; ask again, or elsewhere"))

    def _run(self) -> None:
        try:
            if self._world.device.type == "cuda":
                torch.cuda.set_device(self._world.device)  # the present device is a thread's own
            while self._tick(self._next()):
                self._work()
            self._farewell()
            self.queue.close(Unavailable("the server is stopping; try again in a moment, or elsewhere"))
        except BaseException as error:  # ranks may differ now, whatever it was: the process must end
            self._pipeline.end(
                Unavailable("the server's engine failed and must start again; this may have been applied")
            )
            self._fail(error)

    def _hear(self, number: int) -> None:
        with self._wake:
            self._woken = number
            self._wake.notify()

    def _fail(self, error: BaseException) -> None:
        if self.queue.close(Unavailable("the server's engine has failed and must start again; try again later")):
            self._lost(error)

    def _next(self) -> Load:
        """What this rank brings to the next tick; does its chores, and sleeps, until any rank brings something."""
        heartbeat = time.monotonic() + (self._pipeline.wait_s() if self._awake else self._heartbeat_s)
        working = True
        while True:
            with self._wake:
                load = self.queue.take(self.version)
                wanted = load.jobs or self._news or self._pipeline.due or self._woken >= self._sleeps
                if wanted or heartbeat <= time.monotonic():
                    self._news = False
                    return load
                if not working and not self.queue.nudged:
                    wait_s = min(heartbeat, self.queue.next_deadline()) - time.monotonic()
                    self._wake.wait(None if wait_s == float("inf") else min(max(wait_s, 0), threading.TIMEOUT_MAX))
                self.queue.nudged = False
            working = self._work()

    def _work(self) -> bool:
        with self._rows:
            return self._chore()

    def _tick(self, load: Load) -> bool:
        """One joint tick; False once all ranks have left."""
        with self._rows, self._replica.meters.ticks.timed():
            try:
                return self._joint(load)
            except BaseException:
                self._torn = True
                raise

    def _joint(self, load: Load) -> bool:
        try:
            if not self._awake and self._woken < self._sleeps:
                self._world.wake(self._sleeps)
            load.lookups = [job for job in load.lookups if self._lookups.fits(job)]
            agreed = self._agree(load)
            start = time.perf_counter()
            serving = [job for job in load.lookups if not job.pinned]
            self._lookups.serve(serving, agreed.work)
            if agreed.pinned:
                self._lookups.serve_pinned([job for job in load.lookups if job.pinned])
            self._pipeline.note([job.read for job in serving], time.perf_counter() - start)
            self._pipeline.advance(agreed.entries, agreed.now_s)
            for name in sorted(agreed.work.action):
                self._act(name, [job for job in load.actions if job.action == name])
        except BaseException:
            for job in load.jobs:
                job.refuse(Unavailable("the server's engine failed in the tick of this request; it must start again"))
            raise
        if agreed.asked_to_leave and not self._told:
            self._told = True
            self._asked_to_leave()
        left = agreed.all_ready and self._pipeline.idle
        self._waited = agreed.more or bool(agreed.work.gather)
        self._awake = agreed.more or self._pipeline.busy
        self._sleeps += not self._awake
        return not left

    def _agree(self, load: Load) -> _Agreed:
        """Joint: adds up what all ranks bring."""
        serving = [job for job in load.lookups if not job.pinned]
        mine = work_of(serving) | Work(action=frozenset(job.action for job in load.actions))
        self._now_s = max(self._now_s, int(time.time()))  # a clock that is set back makes nothing younger
        entries = self._pipeline.brings(lookups=self._waited or bool(load.lookups))
        pinned = len(load.lookups) - len(serving)
        work, now_s, (more, asks, ready, pinned, *brought) = self._agreement(
            mine, self._now_s, load.more, self._asks, self._ready, pinned, *entries
        )
        return _Agreed(
            work=work,
            now_s=now_s,
            more=more > 0,
            asked_to_leave=asks > 0,
            all_ready=ready == self._world.size,
            pinned=pinned > 0,
            entries=Brought(*brought),
        )

    def _act(self, name: str, jobs: Sequence[ActionJob]) -> None:
        """Joint: does what the callers of all ranks ask for, one after the other."""
        for rank, requests in enumerate(self._world.gather([job.request for job in jobs])):
            for number, request in enumerate(requests):
                mine = jobs[number] if rank == self._world.rank else None
                try:
                    result = self._actions[name](request)
                except EmbershardError as refusal:
                    if mine:
                        mine.refuse(refusal)
                else:
                    if mine:
                        mine.done.set_result(result)

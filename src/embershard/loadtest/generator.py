"""One client process: sends what is due when it is due, and notes what becomes of it."""

from __future__ import annotations

import asyncio
import gc
import selectors
import time
from bisect import bisect
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, Any, Final

import grpc
import grpc.aio

from embershard.errors import EmbershardError, Unavailable
from embershard.loadtest.arrivals import arrivals, updates_among
from embershard.loadtest.lanes import Lane, Lanes
from embershard.loadtest.plan import LOOKUP, UPDATE, Load, Plan, shares
from embershard.loadtest.pool import check_answer, pools
from embershard.loadtest.tally import ANSWERED, CUT_OFF, DEADLINE_PASSED, NEVER_SENT, REFUSED, Tally, encoded

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping
    from multiprocessing.connection import Connection

    from embershard.loadtest.pool import Pools

GRACE_S: Final = 1.0
"""For what is in flight when a run is ended early."""
CHECKED: Final = 8
"""The first answers of each kind, which are parsed; of all others bytes are counted."""
PROGRESS_S: Final = 1.0
_KINDS: Final = 2**16
"""Requests of a closed loop, after which it is decided anew in the same way which are updates."""
READY: Final = "ready"
STOP: Final = "stop"
now: Final = time.monotonic
"""The clock of all processes of a machine, and of asyncio."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """What there is to tell while it runs."""

    seconds: float
    """Measured so far; less than 0 while it warms up."""
    asked: int
    """Requests that have fallen due so far."""
    answered: int
    """Of these."""
    ended: int
    """Those that came to another end."""
    latency: tuple[str, ...]
    """Histograms so far."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished:
    """What one process has to tell."""

    tallies: Mapping[str, Any]
    """{lookup or update: its tally as a document}."""
    cpu: float
    """CPU time of the process by time, while it was measured."""


class Run:
    """One load, as far as it is this process's."""

    def __init__(self, plan: Plan, load: Load, number: int, made: Pools, lanes: Lanes) -> None:
        self._plan, self._load, self._lanes = plan, load, lanes
        self._tallies = {kind: Tally(load.seconds) for kind in made}
        self._pools = {kind: cycle(requests) for kind, requests in made.items()}
        self._unchecked = Counter(dict.fromkeys(made, CHECKED))
        self._callers = shares(load.callers or 0, plan.processes)[number]
        self._times: list[float] = []
        self._next = 0
        if load.rate is not None:
            # All draw the same times and kinds, and each has every n-th.
            mine = slice(number, None, plan.processes)
            times_N = arrivals(load.rate, load.whole_s, plan.seed)
            updates_N = updates_among(len(times_N), plan.updates, plan.seed)
            self._times = times_N[mine].tolist()
            self._updates = updates_N[mine].tolist()
        else:
            self._kinds = cycle(updates_among(_KINDS, plan.updates, plan.seed + number).tolist())
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()
        self._failure: BaseException | None = None

    def stop(self) -> None:
        """Sends nothing more, and ends soon."""
        self._stopping.set()

    async def run(self, start: float) -> Finished:
        """Begins at a time of the clock.

        Raises:
            InternalError: an answer isn't what was asked for.
        """
        self._origin, self._end = start + self._load.warmup_s, start + self._load.whole_s
        cpu = [time.process_time()]
        asyncio.get_running_loop().call_at(self._origin, lambda: cpu.append(time.process_time()))
        pacing = self._spawn(self._open(start) if self._load.rate is not None else self._closed(start))
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait({pacing, stopping}, return_when=asyncio.FIRST_COMPLETED)
        self._end = min(self._end, max(now(), self._origin)) if self._stopping.is_set() else self._end
        used_s = time.process_time() - cpu[-1]
        for task in (pacing, stopping):
            task.cancel()
        await asyncio.wait({pacing, stopping})
        for tally in self._tallies.values():
            tally.seconds = self._end - self._origin
        self._give_up(start)
        await self._settle()
        if self._failure:
            raise self._failure
        told = {kind: tally.document() for kind, tally in self._tallies.items()}
        measured_s = self._end - self._origin
        return Finished(tallies=told, cpu=used_s / measured_s if measured_s else 0.0)

    def progress(self) -> Progress:
        """What there is to tell by now."""
        tallies = self._tallies.values()
        answered = sum(tally.outcomes[ANSWERED] for tally in tallies)
        seconds = now() - self._origin
        due = [bisect(self._times, self._load.warmup_s + after) for after in (0, max(seconds, 0))]
        return Progress(
            seconds=seconds,
            asked=due[1] - due[0] if self._times else sum(tally.asked for tally in tallies),
            answered=answered,
            ended=sum(tally.outcomes.total() for tally in tallies) - answered,
            latency=tuple(encoded(tally.latency) for tally in tallies),
        )

    async def _open(self, start: float) -> None:
        """What is due when it is due, whatever has become of what was due before."""
        held = start
        with suppress(TimeoutError):
            async with asyncio.timeout_at(self._end):
                for at, after in enumerate(self._times):
                    due, kind = start + after, UPDATE if self._updates[at] else LOOKUP
                    # Also if it is late already: what was sent gets on only while this waits.
                    await asyncio.sleep(max(due - now(), 0))
                    late_s, waited = now() - max(due, held), False
                    while (lane := self._lanes.take(kind)) is None:
                        await self._lanes.wait()
                        held, waited = now(), True
                    self._next = at + 1
                    if due >= self._origin:
                        self._tallies[kind].send(late_s, held=waited or due < held)
                    self._spawn(self._one(kind, lane, due))

    async def _closed(self, start: float) -> None:
        """Callers who ask again once they were answered."""
        for _ in range(self._callers):
            self._spawn(self._call_again(start))
        await asyncio.sleep(self._end - now())

    async def _call_again(self, start: float) -> None:
        await asyncio.sleep(start - now())
        while not self._stopping.is_set() and (due := now()) < self._end:
            kind = UPDATE if next(self._kinds) else LOOKUP
            while (lane := self._lanes.take(kind)) is None:
                await self._lanes.wait()
            await self._one(kind, lane, due)

    async def _one(self, kind: str, lane: Lane, due: float) -> None:
        """One request, and what becomes of it."""
        request, sent, outcome, answer, message = next(self._pools[kind]), now(), CUT_OFF, None, ""
        tally, counted = self._tallies[kind], due >= self._origin
        if counted:
            tally.ask(due - self._origin)
        try:
            answer = await lane.call(request.data)
        except TimeoutError:
            outcome = DEADLINE_PASSED
        except grpc.aio.AioRpcError as error:
            refused = error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            outcome, message = REFUSED if refused else error.code().name, error.details() or ""
        except Unavailable as error:
            outcome, message = "UNAVAILABLE", str(error)
        finally:  # also of what is cut off
            self._lanes.give_back(kind, lane)
            if counted:
                times = due - self._origin, now() - self._origin
                if answer is None:
                    tally.end(outcome, *times, message)
                else:
                    tally.answer(times[0], sent - self._origin, times[1], request.rows, len(answer))
        if answer is not None and self._unchecked[kind]:
            self._unchecked[kind] -= 1
            check_answer(kind, request.data, answer, self._plan.features)

    def _give_up(self, start: float) -> None:
        """What was due, and was never sent."""
        for at in range(self._next, len(self._times)):
            due = start + self._times[at]
            if due >= self._end:
                break
            if due >= self._origin:
                tally = self._tallies[UPDATE if self._updates[at] else LOOKUP]
                tally.ask(due - self._origin)
                tally.end(NEVER_SENT, due - self._origin, self._end - self._origin)

    async def _settle(self) -> None:
        """Waits for what is in flight, as long as it may take."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=GRACE_S if self._stopping.is_set() else self._plan.timeout_s + 1)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        """What no request may end with ends the run."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self._failure = self._failure or error
            self._stopping.set()


def main(pipe: Connection, plan: Plan, number: int) -> None:
    """The process: is told loads and when to begin, and tells progress and the end; or the error that ended it."""
    # select() waits to the microsecond; what asyncio would use waits for whole milliseconds, and be late by as much.
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
        try:
            runner.run(_serve(pipe, plan, number))
        except EmbershardError as error:
            pipe.send(error)
        except BrokenPipeError:
            return  # nobody is left to be told


async def _serve(pipe: Connection, plan: Plan, number: int) -> None:
    inbox: asyncio.Queue[Any] = asyncio.Queue()
    asyncio.get_running_loop().add_reader(pipe.fileno(), _take, pipe, inbox)
    made = pools(plan, number)
    # The garbage collector would go through all of it while requests wait.
    gc.collect()
    gc.freeze()
    async with Lanes(plan, shares(plan.in_flight, plan.processes)[number]) as lanes:
        pipe.send(READY)
        while (load := await inbox.get()) is not None:
            if load == STOP:
                continue  # it came after the end
            run = Run(plan, load, number, made, lanes)
            pipe.send(READY)
            if (start := await inbox.get()) is None:
                return
            beside = asyncio.create_task(_watch(pipe, inbox, run, start))
            try:
                finished = await run.run(start)
            finally:
                beside.cancel()
                await asyncio.gather(beside, return_exceptions=True)
            pipe.send(finished)


async def _watch(pipe: Connection, inbox: asyncio.Queue[Any], run: Run, start: float) -> None:
    """Tells of progress each second, until it is told to stop."""
    while True:
        start += PROGRESS_S
        with suppress(TimeoutError):
            async with asyncio.timeout_at(start):
                told = await inbox.get()
            run.stop()
            return None if told else inbox.put_nowait(told)
        pipe.send(run.progress())


def _take(pipe: Connection, inbox: asyncio.Queue[Any]) -> None:
    try:
        inbox.put_nowait(pipe.recv())
    except (EOFError, ConnectionError):
        asyncio.get_running_loop().remove_reader(pipe.fileno())
        inbox.put_nowait(None)

"""One client process: sends what is due when it is due, and notes what becomes of it."""

from __future__ import annotations

import asyncio
import gc
import selectors
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from embershard.errors import EmbershardError
from embershard.heap import keep_freed_memory
from embershard.loadtest.lanes import Lanes
from embershard.loadtest.pacing import pacer
from embershard.loadtest.plan import Demand, Plan, dealt
from embershard.loadtest.pool import pools
from embershard.loadtest.sender import Sender, now
from embershard.loadtest.tally import ANSWERED, encoded

if TYPE_CHECKING:
    from collections.abc import Mapping
    from multiprocessing.connection import Connection

    from embershard.loadtest.pacing import Pacer
    from embershard.loadtest.pool import Pools

GRACE_S: Final = 1.0
"""For what is in flight when a run is ended early."""
PROGRESS_S: Final = 1.0
READY: Final = "ready"
STOP: Final = "stop"


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
    """One demand, as far as it is this process's, from `start` on, a time of the clock."""

    def __init__(self, plan: Plan, demand: Demand, paced: Pacer, made: Pools, lanes: Lanes, start: float) -> None:
        self._plan, self._demand, self._pacer, self._start = plan, demand, paced, start
        self._origin = start + demand.warmup_s
        self._sender = Sender(plan, made, lanes, origin=self._origin, seconds=demand.seconds)

    def stop(self) -> None:
        """Sends nothing more, and ends soon."""
        self._sender.stopping.set()

    async def run(self) -> Finished:
        """Sends, and waits for what was sent.

        Raises:
            InternalError: an answer isn't what was asked for.
        """
        sender, cpu = self._sender, [time.process_time()]
        asyncio.get_running_loop().call_at(self._origin, lambda: cpu.append(time.process_time()))
        stopping = asyncio.create_task(sender.stopping.wait())
        end = self._start + self._demand.whole_s
        pacing = sender.spawn(self._pacer.pace(sender, self._start, end))
        await asyncio.wait({pacing, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if stopping.done():
            end = min(end, max(now(), self._origin))
        used_s = time.process_time() - cpu[-1]
        pacing.cancel()
        await asyncio.wait({pacing})
        self._measured_until(end)
        await self._settle(stopping)
        told = {kind: tally.document() for kind, tally in sender.tallies.items()}
        measured_s = end - self._origin
        return Finished(tallies=told, cpu=used_s / measured_s if measured_s else 0.0)

    def progress(self) -> Progress:
        """What there is to tell by now."""
        tallies, now_s = self._sender.tallies.values(), now() - self._start
        answered = sum(tally.outcomes[ANSWERED] for tally in tallies)
        overdue = self._pacer.unsent(self._demand.warmup_s, now_s)
        return Progress(
            seconds=now_s - self._demand.warmup_s,
            asked=sum(tally.asked for tally in tallies) + sum(map(len, overdue.values())),
            answered=answered,
            ended=sum(tally.outcomes.total() for tally in tallies) - answered,
            latency=tuple(encoded(tally.latency) for tally in tallies),
        )

    def _measured_until(self, end: float) -> None:
        """What was due until then, and was never sent, is given up."""
        for tally in self._sender.tallies.values():
            tally.seconds = end - self._origin
        for kind, due_N in self._pacer.unsent(self._demand.warmup_s, end - self._start).items():
            self._sender.give_up(kind, (due_N - self._demand.warmup_s).tolist(), end - self._origin)

    async def _settle(self, stopping: asyncio.Task[Literal[True]]) -> None:
        """Waits for what is in flight, as long as it may take; once it is to stop, no longer than it must."""
        settling = asyncio.create_task(self._sender.settled())
        await asyncio.wait({settling, stopping}, timeout=self._plan.timeout_s + 1, return_when=asyncio.FIRST_COMPLETED)
        if stopping.done():
            await asyncio.wait({settling}, timeout=GRACE_S)
        stopping.cancel()
        await self._sender.close()
        await settling


def main(pipe: Connection, plan: Plan, number: int) -> None:
    """The process: is told loads and when to begin, and tells progress and the end; or the error that ended it."""
    keep_freed_memory()
    # select() waits to the microsecond; what asyncio would use waits for whole milliseconds, and be late by as much.
    with (
        suppress(ConnectionError),  # nobody is left to be told
        asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner,
    ):
        try:
            runner.run(_serve(pipe, plan, number))
        except EmbershardError as error:
            pipe.send(error)


async def _serve(pipe: Connection, plan: Plan, number: int) -> None:
    inbox: asyncio.Queue[Any] = asyncio.Queue()
    asyncio.get_running_loop().add_reader(pipe.fileno(), _take, pipe, inbox)
    made = pools(plan, number)
    # The garbage collector would go through all of it while requests wait.
    gc.collect()
    gc.freeze()
    async with Lanes(plan, dealt(plan.in_flight, plan.processes)[number]) as lanes:
        pipe.send(READY)
        while (demand := await inbox.get()) is not None:
            if demand == STOP:
                continue  # it came after the end
            paced = pacer(plan, demand, number)
            pipe.send(READY)
            if (start := await inbox.get()) is None:
                return
            run = Run(plan, demand, paced, made, lanes, start)
            beside = asyncio.create_task(_watch(pipe, inbox, run, start))
            try:
                finished = await run.run()
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
        try:
            pipe.send(run.progress())
        except ConnectionError:  # whoever began this is gone
            return run.stop()


def _take(pipe: Connection, inbox: asyncio.Queue[Any]) -> None:
    try:
        inbox.put_nowait(pipe.recv())
    except (EOFError, ConnectionError):
        asyncio.get_running_loop().remove_reader(pipe.fileno())
        inbox.put_nowait(None)

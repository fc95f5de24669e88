"""Sends the requests of one process, and notes what becomes of each."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from itertools import cycle
from typing import TYPE_CHECKING, Any, Final

import grpc
import grpc.aio

from embershard.errors import Unavailable
from embershard.loadtest.pool import check_answer
from embershard.loadtest.tally import CUT_OFF, DEADLINE_PASSED, NEVER_SENT, REFUSED, Tally

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable

    from embershard.loadtest.lanes import Lane, Lanes
    from embershard.loadtest.plan import Plan
    from embershard.loadtest.pool import Pools

CHECKED: Final = 8
"""The first answers of each kind, which are parsed; of all others bytes are counted."""
now: Final = time.monotonic
"""The clock of all processes of a machine, and of asyncio."""


class Sender:
    """Sends requests, and tallies those that are due from `origin` on, a time of the clock."""

    def __init__(self, plan: Plan, made: Pools, lanes: Lanes, *, origin: float, seconds: float) -> None:
        self.lanes = lanes
        self.tallies = {kind: Tally(seconds) for kind in made}
        self.stopping = asyncio.Event()
        """Nothing more is to be sent: it was told to end early, or has failed."""
        self._plan, self._origin = plan, origin
        self._pools = {kind: cycle(requests) for kind, requests in made.items()}
        self._unchecked = Counter(dict.fromkeys(made, CHECKED))
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Has it done beside all else."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def note(self, kind: str, due: float, late_s: float, *, held: bool) -> None:
        """A request is about to be sent, so much after it could; `held` says whether it waited for a lane."""
        if due >= self._origin:
            self.tallies[kind].send(late_s, held=held)

    async def send(self, kind: str, lane: Lane, due: float) -> None:
        """Sends the next request, and waits until it has ended."""
        request, sent, outcome, answer, message = next(self._pools[kind]), now(), CUT_OFF, None, ""
        tally, counted = self.tallies[kind], due >= self._origin
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
            self.lanes.give_back(kind, lane)
            if counted:
                times = due - self._origin, now() - self._origin
                if answer is None:
                    tally.end(outcome, *times, message)
                elif now() - sent > self._plan.timeout_s:
                    tally.end(DEADLINE_PASSED, *times)
                else:
                    tally.answer(times[0], sent - self._origin, times[1], request.rows, len(answer))
        if answer is not None and self._unchecked[kind]:
            self._unchecked[kind] -= 1
            check_answer(kind, request.data, answer, self._plan.features)

    def give_up(self, kind: str, dues: Iterable[float], end: float) -> None:
        """Counts what was due at these times, and wasn't sent until `end`, which is now; all in seconds from `origin`
        on."""
        for due in dues:
            tally = self.tallies[kind]
            tally.ask(due)
            tally.end(NEVER_SENT, due, end)
            tally.held += self.lanes.full

    async def settled(self) -> None:
        """Waits until all that was sent has ended."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def close(self) -> None:
        """Cuts off what hasn't ended.

        Raises:
            InternalError: an answer wasn't what was asked for.
        """
        for task in self._tasks:
            task.cancel()
        await self.settled()
        if self._failure:
            raise self._failure

    def _ended(self, task: asyncio.Task[None]) -> None:
        """What no request may end with ends all."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self._failure = self._failure or error
            self.stopping.set()

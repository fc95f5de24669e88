"""When one process sends: at times that are fixed beforehand (open loop), or once it was answered (closed loop).

Shapes: N requests.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import cycle
from typing import TYPE_CHECKING, Final, Protocol

from embershard.loadtest.arrivals import arrivals, updates_among
from embershard.loadtest.plan import LOOKUP, UPDATE, dealt
from embershard.loadtest.sender import now

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from embershard.loadtest.plan import Demand, Plan
    from embershard.loadtest.sender import Sender

_KINDS: Final = 2**16
"""Requests of a closed loop, after which it is decided anew in the same way which are updates."""


class Pacer(Protocol):
    """Has one demand sent, as far as it is this process's."""

    async def pace(self, sender: Sender, start: float, end: float) -> None:
        """Sends from one time of the clock to another, or until it is cancelled."""
        ...

    def unsent(self, begin: float, end: float) -> dict[str, NDArray[np.float64]]:
        """{lookup or update: float64 [N], when requests were due that weren't sent so far}, from `begin` to `end`, all
        in seconds since the start."""
        ...


def pacer(plan: Plan, demand: Demand, number: int) -> Pacer:
    """The pacer of process `number`."""
    if demand.rate is not None:
        return OpenLoop(plan, demand, demand.rate, number)
    return ClosedLoop(plan, demand.callers or 0, number)


class OpenLoop:
    """Sends what is due when it is due, whatever has become of what was due before."""

    def __init__(self, plan: Plan, demand: Demand, rate: float, number: int) -> None:
        # All draw the same times and kinds, and each has every n-th.
        mine = slice(number, None, plan.processes)
        times_N = arrivals(rate, demand.warmup_s, demand.seconds, plan.seed)
        self._due_N = times_N[mine].copy()
        self._updates_N = updates_among(len(times_N), plan.updates, plan.seed)[mine].copy()
        self._sent = 0

    async def pace(self, sender: Sender, start: float, end: float) -> None:
        """As every pacer."""
        freed = start
        with suppress(TimeoutError):
            async with asyncio.timeout_at(end):
                for number in range(len(self._due_N)):
                    due, kind = start + float(self._due_N[number]), UPDATE if self._updates_N[number] else LOOKUP
                    # Also if it is late already: what was sent gets on only while this waits.
                    await asyncio.sleep(max(due - now(), 0))
                    late_s = now() - max(due, freed)
                    while (lane := sender.lanes.take(kind)) is None:
                        await sender.lanes.wait()
                        freed = now()
                    self._sent = number + 1
                    sender.note(kind, due, late_s, held=due < freed)
                    sender.spawn(sender.send(kind, lane, due))

    def unsent(self, begin: float, end: float) -> dict[str, NDArray[np.float64]]:
        """As of every pacer."""
        first, last = self._due_N.searchsorted((begin, end))
        which = slice(max(self._sent, int(first)), int(last))
        due_N, updates_N = self._due_N[which], self._updates_N[which]
        return {LOOKUP: due_N[~updates_N], UPDATE: due_N[updates_N]}


class ClosedLoop:
    """Callers who ask again once they were answered."""

    def __init__(self, plan: Plan, callers: int, number: int) -> None:
        self._callers = dealt(callers, plan.processes)[number]
        self._updates = cycle(updates_among(_KINDS, plan.updates, plan.seed + number).tolist())

    async def pace(self, sender: Sender, start: float, end: float) -> None:
        """As every pacer."""
        for _ in range(self._callers):
            sender.spawn(self._call(sender, start, end))
        await asyncio.sleep(end - now())

    def unsent(self, begin: float, end: float) -> dict[str, NDArray[np.float64]]:  # noqa: ARG002  # as of every pacer
        """Nothing: what isn't sent isn't due."""
        return {}

    async def _call(self, sender: Sender, start: float, end: float) -> None:
        await asyncio.sleep(start - now())
        while not sender.stopping.is_set() and (due := now()) < end:
            kind = UPDATE if next(self._updates) else LOOKUP
            while (lane := sender.lanes.take(kind)) is None:
                await sender.lanes.wait()
            await sender.send(kind, lane, due)

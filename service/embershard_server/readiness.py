"""Whether a rank answers lookups, found out by asking it: a lookup of nothing goes through the ticker every second."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from embershard.collection import Read
from embershard.engine.jobs import LookupJob
from embershard.errors import EmbershardError

if TYPE_CHECKING:
    from collections.abc import Callable

    from embershard.engine.tick import Ticker
    from embershard.meters import Histogram

logger = logging.getLogger(__name__)

PERIOD_S = 1.0
"""A lookup is sent so often."""
LATE_S = 3.0
"""If it isn't answered by then, a rank isn't ready, until it is: the engine hangs, or that of a peer."""
DEAD_S = 60.0
"""An event loop that hasn't done anything for so long won't."""


class Readiness:
    """What is known of it; from any thread."""

    def __init__(self) -> None:
        self.reason = "it starts: tables are made, or loaded, and the update log is applied"
        """Why it isn't ready; empty: it is."""
        self.beat_s = float("inf")
        """When the event loop last did something, in `time.monotonic()` seconds, once there is one."""

    @property
    def problem(self) -> str:
        """Why the process won't do anything any more; empty: it does."""
        silent_s = time.monotonic() - self.beat_s
        return f"the event loop has done nothing for {silent_s:.0f} s" if silent_s > DEAD_S else ""

    @property
    def hindrance(self) -> str:
        """Why lookups aren't answered; empty: they are."""
        silent_s = time.monotonic() - self.beat_s
        return f"the event loop has done nothing for {silent_s:.0f} s" if silent_s > LATE_S + PERIOD_S else self.reason


class Pulse:
    """Keeps a rank's readiness up to date, from its event loop."""

    def __init__(self, ticker: Ticker, readiness: Readiness, seconds: Histogram, told: Callable[[str], None]) -> None:
        """`seconds` counts how long lookups take; `told` is told why the rank is no longer ready, or nothing: that it
        is."""
        self._ticker, self._readiness, self._seconds, self._told = ticker, readiness, seconds, told
        self._stopping = ""
        self.begun = asyncio.Event()
        """Whether it has been ready."""

    async def run(self) -> None:
        """Until the engine ends, or this is cancelled."""
        try:
            while True:
                start = time.monotonic()
                await self._answered(start)
                self._seconds.observe(time.monotonic() - start)
                self._tell("")
                self.begun.set()
                await asyncio.sleep(PERIOD_S)
        except EmbershardError as error:
            self._tell(str(error))

    def stop(self) -> None:
        """The rank leaves, and isn't ready from now on."""
        self._stopping = "it stops"
        self._tell(self._stopping)

    async def _answered(self, start: float) -> None:
        """Waits for a lookup, however long it takes."""
        job = LookupJob(read=Read(parts=[], numbers=0))
        answered = asyncio.wrap_future(self._ticker.ask(job))
        while not answered.done():
            await asyncio.wait([answered], timeout=PERIOD_S)
            self._readiness.beat_s = time.monotonic()
            if not answered.done() and (waited_s := time.monotonic() - start) > LATE_S:
                self._tell(f"lookups aren't answered: the engine, or that of a peer, is at work for {waited_s:.0f} s")
        answered.result()

    def _tell(self, reason: str) -> None:
        reason = self._stopping or reason
        was, self._readiness.reason = self._readiness.reason, reason
        self._readiness.beat_s = time.monotonic()
        if bool(was) == bool(reason):
            return
        if reason and not self._stopping:
            logger.warning("not ready: %s", reason)
        elif not reason and self.begun.is_set():
            logger.warning("ready again")
        self._told(reason)

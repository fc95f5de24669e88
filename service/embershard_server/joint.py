"""How a coroutine has all ranks do something together, which goes on without whoever has asked for it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from embershard.engine.jobs import ActionJob

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from concurrent.futures import Future

    from embershard.engine.tick import Ticker

_Result = TypeVar("_Result")

SETTLE_S = 1.0
"""Longest that work which was under way may take to end once the engine has."""


class Joint:
    """The ticker's actions, for coroutines."""

    def __init__(self, ticker: Ticker) -> None:
        self._ticker = ticker
        self._tasks: set[asyncio.Task[Any]] = set()

    async def act(self, action: str, request: Any = None) -> Any:
        """What an action of the ticker returns."""
        return await shielded(self._ticker.submit(ActionJob(action=action, request=request)))

    async def to_its_end(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """The result of several steps; all are done even if the caller goes away, so that ranks don't wait for one."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return await asyncio.shield(task)

    async def settle(self) -> None:
        """After the last tick: waits until what was under way has heard that there are no more, but not for disks."""
        if self._tasks:
            await asyncio.wait([*self._tasks], timeout=SETTLE_S)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # its caller has heard of it, or has gone


async def shielded(future: Future[Any]) -> Any:
    """Its result; a caller that goes away doesn't cancel it."""
    return await asyncio.shield(asyncio.wrap_future(future))

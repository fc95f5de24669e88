"""Streams: the same handlers as single calls, message by message, and an end to idle ones when the server leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from google.protobuf.message import Message

from embershard.errors import Unavailable
from embershard_server.status import Context, Handler, abort, parsed


class Streams:
    """The open streams of a front end."""

    def __init__(self) -> None:
        self._idle: set[asyncio.Task[Any]] = set()
        self._ended = False

    def end(self) -> None:
        """Ends streams that wait for a message now, and the others after the one they are at."""
        self._ended = True
        for task in self._idle:
            task.cancel()

    def of(self, kind: type[Message], method: Handler) -> Callable[[AsyncIterator[bytes], Context], AsyncIterator[Any]]:
        """Makes a handler of streams out of a handler of single messages: one answer for each, in order.

        A message that is refused ends the stream, and the status names its place.
        """

        async def handle(requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[Any]:
            number = 0
            try:
                while (request := await self._next(requests)) is not None:
                    yield await method(parsed(kind, request), context)
                    number += 1
            except Exception as error:
                await abort(context, error, prefix=f"message {number} of the stream: ")

        return handle

    async def _next(self, requests: AsyncIterator[bytes]) -> bytes | None:
        """The next message, or None at the end of the stream."""
        task = asyncio.current_task()
        assert task is not None
        stopping = Unavailable("the server is stopping; open the stream again in a moment, or elsewhere")
        if self._ended:
            raise stopping
        self._idle.add(task)
        try:
            return await anext(requests, None)
        except asyncio.CancelledError:
            if self._ended:
                raise stopping from None
            raise  # the caller has gone
        finally:
            self._idle.discard(task)

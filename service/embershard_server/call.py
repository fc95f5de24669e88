"""One call, from when it is let in until gRPC is done with it: its time, what it holds, and why it is ended."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, TypeVar

from embershard.errors import DeadlineExceeded, EmbershardError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable

    from embershard_server.access import Caller
    from embershard_server.gate import Gate
    from embershard_server.watch import Context, Watch

_Coming = TypeVar("_Coming")

COPIES = 3
"""A request is there so often while it is worked on: as it came, parsed, and as it is logged."""
ANSWER_COPIES = 2
"""An answer: as it was made, and as gRPC sends it."""


class Call:
    """What the front end knows of it."""

    def __init__(
        self, gate: Gate, peer: str, caller: Caller | None, context: Context, watch: Watch, *, single: bool
    ) -> None:
        # Not the context itself, which knows of this: both would stay until the garbage collector looks for them.
        self.peer, self.caller, self.single, self._gate, self._held = peer, caller, single, gate, 0
        remaining_s = context.time_remaining()
        self.deadline = time.monotonic() + (gate.wait_s if remaining_s is None else remaining_s)
        """In `time.monotonic()` seconds; of a stream without one, that of its present message."""
        self._wait_s: float | None = gate.wait_s if remaining_s is None else None
        self._receiver: asyncio.Task[Any] | None = None
        self._reason: EmbershardError | None = None
        self.waits_since = 0.0
        """Since when it waits for a message."""
        self.watch = watch
        """What is noted of it."""

    @property
    def receiving(self) -> bool:
        """Whether it waits for a message."""
        return self._receiver is not None

    async def receive(self, requests: AsyncIterator[bytes]) -> bytes | None:
        """The next message, or None after the last.

        Raises:
            EmbershardError: the reason for which the call is ended.
        """
        request: bytes | None = await self.until(anext(requests, None))
        if request is None:
            return None
        if self._wait_s is not None:
            self.deadline = time.monotonic() + self._wait_s
        elif self.deadline <= time.monotonic():
            raise DeadlineExceeded("the deadline passed before the request was read; nothing was done")
        self._gate.took(self.peer, len(request))
        self.hold(COPIES * len(request))
        return request

    async def until(self, coming: Awaitable[_Coming]) -> _Coming:
        """Waits for something.

        Raises:
            EmbershardError: as `receive`.
        """
        self._check()
        self._receiver, self.waits_since = asyncio.current_task(), time.monotonic()
        try:
            return await coming
        except asyncio.CancelledError:
            self._check()
            raise  # the caller has gone
        finally:
            self._receiver = None

    def _check(self) -> None:
        if self._reason:
            raise self._reason from None

    def hold(self, size: int) -> None:
        """Has so many more bytes.

        Raises:
            Overloaded: there is no room for them.
        """
        self._gate.hold(self.peer, size)
        self._held += size

    def spend(self, ids: int) -> None:
        """Asks for so many ids; Overloaded if its caller has had too many of late."""
        if self.caller and ids:
            self.caller.allowance.spend(ids)

    def sends(self) -> None:
        """Its answer is on its way."""
        self._gate.sending[self] = time.monotonic()

    def sent(self) -> None:
        """Holds nothing any more: its answer was taken, or nobody wants it."""
        self._gate.sending.pop(self, None)
        self._gate.let_go(self.peer, self._held)
        self._held = 0

    def end(self, reason: EmbershardError) -> None:
        """Ends it now if it waits for a message, or else after the one it is at."""
        self._reason = self._reason or reason
        if self._receiver:
            self._receiver.cancel()

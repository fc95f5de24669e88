"""Lanes on which requests are sent one after the other: single calls, or a stream.

Bytes go out and come in: gRPC neither serialises nor parses. Nothing is repeated or held back.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol

import grpc
import grpc.aio

from embershard.client.connecting import why_async
from embershard.client.security import Security
from embershard.errors import Unavailable
from embershard.loadtest.plan import CONNECTING_S, LOOKUP, UPDATE

if TYPE_CHECKING:
    from embershard.client.security import Metadata
    from embershard.loadtest.plan import Plan

_OPTIONS: Final = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_retries", 0),
    # Channels of the same address would share one connection.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
]
_BROKEN: Final = "Internal error from Core"
"""What gRPC says, as INTERNAL, where it can't write."""
_METHODS: Final = {LOOKUP: "Lookup", UPDATE: "Update"}


class Lane(Protocol):
    """Sends one request at a time."""

    async def call(self, request: bytes) -> bytes:
        """The answer.

        Raises:
            TimeoutError: the deadline has passed.
            grpc.aio.AioRpcError: the call ended with another status.
        """
        ...


class _Single:
    def __init__(self, method: Any, timeout_s: float, metadata: Metadata) -> None:
        self._method, self._timeout_s, self._metadata = method, timeout_s, metadata

    async def call(self, request: bytes) -> bytes:
        try:
            answer: bytes = await self._method(request, timeout=self._timeout_s, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise TimeoutError from error
            raise
        return answer


class _Stream:
    """A stream that is opened when it is needed, and again once it has ended."""

    def __init__(self, method: Any, timeout_s: float, metadata: Metadata) -> None:
        self._method, self._timeout_s, self._metadata, self._stream = method, timeout_s, metadata, None

    async def call(self, request: bytes) -> bytes:
        stream: Any = self._stream
        if stream is None or stream.done():
            stream = self._method(metadata=self._metadata)
        self._stream = None  # until the answer is there: whatever happens, the next one begins anew
        try:
            async with asyncio.timeout(self._timeout_s):
                await stream.write(request)
                answer = await stream.read()
        except BaseException as error:
            stream.cancel()
            if isinstance(error, grpc.aio.AioRpcError) and error.details() == _BROKEN:
                raise Unavailable("the stream has ended while it was written to; gRPC doesn't tell why") from error
            raise
        if answer is grpc.aio.EOF:
            raise Unavailable("the service has ended the stream without an answer")
        self._stream = stream
        return bytes(answer)


class Lanes:
    """As many lanes as are needed at once, over several connections; the last that came free is the next to be used.

    To be used within `async with`.
    """

    def __init__(self, plan: Plan, most: int) -> None:
        self._plan, self._most = plan, most
        self._security = plan.security or Security.from_environment()
        self._idle: dict[str, list[Lane]] = {LOOKUP: [], UPDATE: []}
        self._made = self.busy = 0
        self._freed = asyncio.Event()

    async def __aenter__(self) -> Lanes:
        self._channels = [
            self._security.channel(self._plan.target, _OPTIONS, aio=True) for _ in range(self._plan.connections)
        ]
        try:
            async with asyncio.timeout(CONNECTING_S):
                await asyncio.gather(*(channel.channel_ready() for channel in self._channels))
        except TimeoutError as error:
            reason = await why_async(self._channels[0])
            await self.__aexit__()
            raise Unavailable(f"{self._plan.target}: no connection within {CONNECTING_S:g} s{reason}") from error
        return self

    async def __aexit__(self, *_: object) -> None:
        for channel in self._channels:
            await channel.close(None)

    @property
    def full(self) -> bool:
        """Whether as many as may be are busy."""
        return self.busy >= self._most

    def take(self, kind: str) -> Lane | None:
        """A lane for lookups or updates that is free, or None if as many as may be are busy."""
        if self.full:
            return None
        self.busy += 1
        return self._idle[kind].pop() if self._idle[kind] else self._new(kind)

    def give_back(self, kind: str, lane: Lane) -> None:
        """The lane is free."""
        self.busy -= 1
        self._idle[kind].append(lane)
        self._freed.set()

    async def wait(self) -> None:
        """Until one is given back."""
        self._freed.clear()
        await self._freed.wait()

    def _new(self, kind: str) -> Lane:
        channel = self._channels[self._made % len(self._channels)]
        self._made += 1
        path = f"/embershard.v1.EmbeddingService/{_METHODS[kind]}"
        if self._plan.stream:
            return _Stream(channel.stream_stream(f"{path}Stream"), self._plan.timeout_s, self._security.metadata)
        return _Single(channel.unary_unary(path), self._plan.timeout_s, self._security.metadata)

"""The client for asyncio: the same calls as `Client`, awaited."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, BinaryIO

from embershard.client.answers import Asked, read_answer
from embershard.client.connecting import why_async
from embershard.client.delivery import Senders, Waits
from embershard.client.resend import AsyncUnanswered
from embershard.client.security import Security, opened
from embershard.client.throttle import Throttle
from embershard.client.wire import (
    PIECE_BYTES,
    TIMEOUT_S,
    Features,
    activate_request,
    channel_options,
    checked_target,
    embedding_stub,
    freeze_request,
    grow_request,
    load_request,
    lookup_request,
    stage_requests,
    translated_errors,
    update_request,
)
from embershard.errors import DeadlineExceeded, EmbershardError, Overloaded
from embershard.types import Rows
from embershard.v1 import embershard_pb2 as pb
from embershard.v1 import embershard_pb2_grpc as rpc


class AsyncClient:
    """A connection to one front end, for one event loop; see `Client` for what each call means.

    async with AsyncClient("127.0.0.1:50051") as client:
        rows = await client.lookup({"user_id": [3, 5]})
    """

    def __init__(self, target: str, *, timeout_s: float = TIMEOUT_S, security: Security | None = None) -> None:
        self.target = checked_target(target)
        self._timeout_s = timeout_s
        self._senders, self._lookups = Senders(), Throttle()
        self._channel, self._metadata = opened(target, channel_options(), security, aio=True)
        self._embedding = embedding_stub(self._channel)
        self._admin = rpc.AdminServiceStub(self._channel)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the connection."""
        await self._channel.close()

    async def wait_ready(self, timeout_s: float = 60.0) -> pb.DescribeResponse:
        """Waits until the service answers, and returns its description; DeadlineExceeded if it doesn't in time."""
        try:
            return await self._call(self._embedding.Describe, pb.DescribeRequest(), timeout_s, wait_for_ready=True)
        except DeadlineExceeded as error:
            raise DeadlineExceeded(f"{error}{await why_async(self._channel)}") from error

    async def describe(self, *, timeout_s: float | None = None) -> pb.DescribeResponse:
        """The collection: tables, features, fingerprint, version, limits."""
        return await self._call(self._embedding.Describe, pb.DescribeRequest(), timeout_s)

    async def lookup(
        self,
        features: Features,
        *,
        dtype: str = "float32",
        min_version: int = 0,
        fingerprint: str = "",
        with_provenance: bool = False,
        with_counts: bool = False,
        pinned_version: int = 0,
        timeout_s: float | None = None,
    ) -> Rows:
        """As `Client.lookup`."""
        request = lookup_request(
            features,
            dtype=dtype,
            min_version=min_version,
            fingerprint=fingerprint,
            with_provenance=with_provenance,
            with_counts=with_counts,
            pinned_version=pinned_version,
        )
        try:
            with self._lookups.call(self.target, waits=min_version > 0):
                answer = await self._call(self._embedding.Lookup, request, timeout_s)
        except Overloaded:
            await asyncio.sleep(0)  # if it wasn't sent: whoever asks again at once lets others go on
            raise
        return read_answer(request, answer)

    async def update(
        self,
        features: Features,
        *,
        gradients: Mapping[str, object],
        fingerprint: str = "",
        identity: tuple[str, int] | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """As `Client.update`."""
        request = update_request(features, gradients=gradients, fingerprint=fingerprint, identity=identity)
        return await self._deliver(request, timeout_s)

    async def assign(
        self,
        features: Features,
        *,
        values: Mapping[str, object],
        fingerprint: str = "",
        identity: tuple[str, int] | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """As `Client.assign`."""
        request = update_request(features, values=values, fingerprint=fingerprint, identity=identity)
        return await self._deliver(request, timeout_s)

    async def start(
        self,
        features: Features,
        *,
        parents: Mapping[str, object],
        fingerprint: str = "",
        identity: tuple[str, int] | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """As `Client.start`."""
        request = update_request(features, parents=parents, fingerprint=fingerprint, identity=identity)
        return await self._deliver(request, timeout_s)

    async def lookup_stream(
        self,
        requests: AsyncIterable[Features],
        *,
        dtype: str = "float32",
        fingerprint: str = "",
        timeout_s: float | None = None,
    ) -> AsyncIterator[Rows]:
        """As `Client.lookup_stream`."""
        asked = Asked()
        messages = (
            asked.note(lookup_request(features, dtype=dtype, fingerprint=fingerprint)) async for features in requests
        )
        async for answer in self._stream(self._embedding.LookupStream, messages, timeout_s):
            yield asked.read(answer)

    async def update_stream(
        self,
        requests: AsyncIterable[tuple[Features, Mapping[str, object]]],
        *,
        fingerprint: str = "",
        timeout_s: float | None = None,
    ) -> AsyncIterator[int]:
        """As `Client.update_stream`."""
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        unanswered = AsyncUnanswered(
            update_request(features, gradients=gradients, fingerprint=fingerprint)
            async for features, gradients in requests
        )
        waits = Waits(time.monotonic() + self._timeout_s)
        while True:
            left_s = None if timeout_s is None else deadline - time.monotonic()
            try:
                async for response in self._stream(self._embedding.UpdateStream, unanswered.messages(), left_s):
                    unanswered.answered()
                    yield int(response.version)
                    waits = Waits(min(deadline, time.monotonic() + self._timeout_s))
                return
            except EmbershardError as error:
                await asyncio.sleep(waits.after(error))

    async def snapshot(self, *, timeout_s: float = 600.0) -> pb.SnapshotResponse:
        """As `Client.snapshot`."""
        return await self._call(self._admin.Snapshot, pb.SnapshotRequest(), timeout_s)

    async def grow(
        self,
        table: str,
        *,
        rows: int | None = None,
        capacity: int | None = None,
        mean: bool = False,
        mean_of: Features | None = None,
        timeout_s: float = 600.0,
    ) -> pb.GrowResponse:
        """As `Client.grow`."""
        request = grow_request(table, rows=rows, capacity=capacity, mean=mean, mean_of=mean_of)
        return await self._call(self._admin.Grow, request, timeout_s)

    async def freeze(
        self, features: Features, *, thaw: bool = False, timeout_s: float | None = None
    ) -> pb.FreezeResponse:
        """As `Client.freeze`."""
        return await self._call(self._admin.Freeze, freeze_request(features, thaw=thaw), timeout_s)

    async def list_versions(self, *, timeout_s: float | None = None) -> list[pb.Version]:
        """As `Client.list_versions`."""
        return list((await self._call(self._admin.ListVersions, pb.ListVersionsRequest(), timeout_s)).versions)

    async def load(self, version: int, *, unload: bool = False, timeout_s: float = 600.0) -> None:
        """As `Client.load`."""
        await self._call(self._admin.Load, load_request(version, unload=unload), timeout_s)

    async def activate(self, version: int, *, fingerprint: str = "", timeout_s: float = 600.0) -> pb.ActivateResponse:
        """As `Client.activate`."""
        return await self._call(self._admin.Activate, activate_request(version, fingerprint=fingerprint), timeout_s)

    async def rollback(self, *, fingerprint: str = "", timeout_s: float = 600.0) -> pb.ActivateResponse:
        """As `Client.rollback`."""
        return await self._call(self._admin.Rollback, pb.RollbackRequest(fingerprint=fingerprint), timeout_s)

    async def stage(
        self,
        publisher: str,
        number: int,
        file: str,
        source: BinaryIO,
        *,
        piece_bytes: int = PIECE_BYTES,
        told: Callable[[int], object] = lambda _: None,
        timeout_s: float | None = None,
    ) -> int:
        """As `Client.stage`."""
        there = 0
        for left in (None, source):
            pieces = stage_requests(publisher, number, file, left, there, piece_bytes)
            async for answer in self._stream(self._admin.Stage, _asynchronous(pieces), timeout_s):
                there = int(answer.bytes)
                told(there)
        return there

    async def publish(self, request: pb.PublishRequest, *, timeout_s: float = 600.0) -> pb.PublishResponse:
        """As `Client.publish`."""
        return await self._call(self._admin.Publish, request, timeout_s)

    async def _deliver(self, request: pb.UpdateRequest, timeout_s: float | None) -> int:
        """Sends an update again until it is answered, or its time is over; it is applied once."""
        delivery = self._senders.deliver(request, self._timeout_s if timeout_s is None else timeout_s)
        while True:
            try:
                answer = await self._call(self._embedding.Update, request, delivery.left_s)
            except EmbershardError as error:
                await asyncio.sleep(delivery.failed(error))
            else:
                delivery.done()
                return int(answer.version)

    async def _call(self, method: Callable[..., Any], request: Any, timeout_s: float | None, **options: Any) -> Any:
        with translated_errors(self.target):
            return await method(
                request,
                timeout=self._timeout_s if timeout_s is None else timeout_s,
                metadata=self._metadata,
                **options,
            )

    async def _stream(
        self, method: Callable[..., Any], messages: AsyncIterator[Any], timeout_s: float | None
    ) -> AsyncIterator[Any]:
        failures: list[Exception] = []

        async def until_failure() -> AsyncIterator[Any]:
            try:
                async for message in messages:
                    yield message
            except Exception as error:  # raised below: gRPC reads this in a task of its own, and would hide why
                failures.append(error)

        with translated_errors(self.target):
            call = method(until_failure(), timeout=timeout_s, metadata=self._metadata)
            try:
                async for response in call:
                    yield response
            finally:
                call.cancel()  # no effect on a stream that has ended; ends one whose reader has left
        if failures:
            raise failures[0]


async def _asynchronous(messages: Iterable[Any]) -> AsyncIterator[Any]:
    for message in messages:
        yield message

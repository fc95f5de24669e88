"""What an operator and a training job ask for, for ordinary code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, TypeVar

from embershard.client.security import Security, opened
from embershard.client.wire import (
    PIECE_BYTES,
    Features,
    activate_request,
    channel_options,
    checked_target,
    freeze_request,
    grow_request,
    load_request,
    stage_requests,
    translated_errors,
)
from embershard.v1 import embershard_pb2 as pb
from embershard.v1 import embershard_pb2_grpc as rpc

_Sent = TypeVar("_Sent")


class AdminCalls:
    """A connection to one front end, as far as rows aren't read or changed by it; `Client` has the rest."""

    def __init__(self, target: str, timeout_s: float, security: Security | None) -> None:
        self.target = checked_target(target)
        self._timeout_s = timeout_s
        self._channel, self._metadata = opened(target, channel_options(), security)
        self._admin = rpc.AdminServiceStub(self._channel)

    def close(self) -> None:
        """Ends the connection."""
        self._channel.close()

    def snapshot(self, *, timeout_s: float = 600.0) -> pb.SnapshotResponse:
        """Has the server write a snapshot; returns its version, path on the server, and size."""
        return self._call(self._admin.Snapshot, pb.SnapshotRequest(), timeout_s)

    def grow(
        self,
        table: str,
        *,
        rows: int | None = None,
        capacity: int | None = None,
        mean: bool = False,
        mean_of: Features | None = None,
        timeout_s: float = 600.0,
    ) -> pb.GrowResponse:
        """Gives a table more rows, or room for more ids of their own; old rows stay bit for bit.

        New rows start seeded, as the `mean` of all old ones, or as that of some ids (`mean_of`, {feature: ids}). Calls
        go on meanwhile, and wait at the end; the answer tells for how long.
        """
        request = grow_request(table, rows=rows, capacity=capacity, mean=mean, mean_of=mean_of)
        return self._call(self._admin.Grow, request, timeout_s)

    def freeze(self, features: Features, *, thaw: bool = False, timeout_s: float | None = None) -> pb.FreezeResponse:
        """Has the rows of the ids of one feature stay bit for bit as they are, or (`thaw`) lets them move again.

        Gradients have no effect on them, values are refused, and their ids aren't evicted.
        """
        return self._call(self._admin.Freeze, freeze_request(features, thaw=thaw), timeout_s)

    def list_versions(self, *, timeout_s: float | None = None) -> list[pb.Version]:
        """Which versions can be activated or pinned: snapshots on disk and in memory, and what is served."""
        return list((self._call(self._admin.ListVersions, pb.ListVersionsRequest(), timeout_s)).versions)

    def load(self, version: int, *, unload: bool = False, timeout_s: float = 600.0) -> None:
        """Has a snapshot in memory beside what is served, for `pinned_version` and a quick `activate`; or out of it."""
        self._call(self._admin.Load, load_request(version, unload=unload), timeout_s)

    def activate(self, version: int, *, fingerprint: str = "", timeout_s: float = 600.0) -> pb.ActivateResponse:
        """Serves a snapshot's tables, all at once, as the next version; what was served is kept for `rollback`.

        If it is sent again because the answer was lost, it activates again: `list_versions` tells what is served.
        """
        return self._call(self._admin.Activate, activate_request(version, fingerprint=fingerprint), timeout_s)

    def rollback(self, *, fingerprint: str = "", timeout_s: float = 600.0) -> pb.ActivateResponse:
        """Undoes the last activation or full publication: serves what was served before it, as the next version."""
        return self._call(self._admin.Rollback, pb.RollbackRequest(fingerprint=fingerprint), timeout_s)

    def stage(
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
        """Sends a file of a publication, from where it ends on the server's disk; returns how much of it is there then.

        Whatever breaks, a later call goes on with it. `told` is called with how much there is, again and again;
        `timeout_s` is the deadline of all of it, None: there is none.
        """
        there = 0
        for left in (None, source):
            pieces = stage_requests(publisher, number, file, left, there, piece_bytes)
            for answer in self._stream(self._admin.Stage, pieces, timeout_s):
                there = int(answer.bytes)
                told(there)
        return there

    def publish(self, request: pb.PublishRequest, *, timeout_s: float = 600.0) -> pb.PublishResponse:
        """Serves what was staged: all tables at once, as the next version.

        It may be sent again until it is answered: it is done once, by its publisher and number.
        """
        return self._call(self._admin.Publish, request, timeout_s)

    def _call(self, method: Callable[..., Any], request: Any, timeout_s: float | None, **options: Any) -> Any:
        with translated_errors(self.target):
            return method(
                request,
                timeout=self._timeout_s if timeout_s is None else timeout_s,
                metadata=self._metadata,
                **options,
            )

    def _stream(self, method: Callable[..., Any], messages: Iterator[Any], timeout_s: float | None) -> Iterator[Any]:
        failures: list[Exception] = []
        with translated_errors(self.target):
            call = method(_until_failure(messages, failures), timeout=timeout_s, metadata=self._metadata)
            try:
                yield from call
            finally:
                call.cancel()  # no effect on a stream that has ended; ends one whose reader has left
        if failures:
            raise failures[0]


def _until_failure(messages: Iterator[_Sent], failures: list[Exception]) -> Iterator[_Sent]:
    """Ends the stream where building a message fails: gRPC reads this on a thread of its own, and would hide why."""
    try:
        yield from messages
    except Exception as error:
        failures.append(error)

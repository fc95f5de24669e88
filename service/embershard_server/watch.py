"""What is noted of one call: how long its stages take, what becomes of it, and the id by which it is found in logs."""

from __future__ import annotations

import secrets
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from embershard.types import Provenance

if TYPE_CHECKING:
    from collections.abc import Sequence

    import grpc.aio

    from embershard.collection import IdCounts, Read
    from embershard.meters import FrontMeters
    from embershard_server.spans import Trace

_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
REQUEST_ID = "x-request-id"
"""Metadata that has a caller's id of a call; of calls that fail, also in what the answer ends with."""
LONGEST_ID = 128
"""Characters."""
_KINDS = max(Provenance) + 1

current: ContextVar[Watch | None] = ContextVar("current", default=None)
"""That of the call at which the present task is, or the thread that works for it."""
traced: ContextVar[Trace | None] = ContextVar("traced", default=None)
"""Likewise, where its call is traced."""


class Watch:
    """One call; on the event loop's thread."""

    __slots__ = (
        "_begun_s",
        "_context",
        "_meters",
        "_request_id",
        "_rpc",
        "_single",
        "_trace",
        "code",
        "come_s",
        "gathered_s",
        "identity",
        "name",
    )

    def __init__(self, name: str, meters: FrontMeters, context: _Context, *, single: bool) -> None:
        """Begins with a call of this RPC."""
        self.name, self._meters, self._rpc = name, meters, meters.rpcs[name]
        self._context: _Context | None = context
        self._single = single
        self.code = "CANCELLED"
        """Name of its gRPC status, if it ended now: a caller who goes away is heard of by no other word."""
        self.identity = ""
        """Who calls, by name; "": nobody in particular."""
        self._request_id = ""
        self._trace = traced.get()
        self._begun_s, self.gathered_s = time.monotonic(), 0.0
        current.set(self)

    @property
    def request_id(self) -> str:
        """The caller's, if it is printable ASCII and not too long; else one of our own."""
        if not self._request_id:
            metadata = self._context.invocation_metadata() if self._context else None
            told = [value for key, value in metadata or () if key == REQUEST_ID]
            usable = [value for value in told[:1] if isinstance(value, str) and _is_id(value)]
            self._request_id = usable[0] if usable else secrets.token_hex(8)
        return self._request_id

    def received(self, size: int) -> None:
        """A message of so many bytes has come."""
        self.come_s = time.monotonic()
        self._rpc.received += size
        if self._single:
            self._rpc.waits.observe(self.come_s - self._begun_s)

    def looked_up(self, read: Read, counts: Sequence[IdCounts] | None, prepared_s: float, begun_s: float) -> None:
        """A lookup has its vectors. It was prepared, and begun in a tick unless that is 0, then, in `time.monotonic()`
        seconds; `counts` are those of one that is examined."""
        self.gathered_s = now = time.monotonic()
        stages = self._meters.stages
        stages["prepare"].observe(prepared_s - self.come_s)
        stages["gather"].observe(now - (begun_s or prepared_s))
        if begun_s:
            stages["queue"].observe(begun_s - prepared_s)
        ids = self._rpc.ids
        for part in read.parts:
            ids[part.batch.feature] += len(part.batch.ids)
            self._rpc.rows += part.outputs
        if counts:
            self._examined(read, counts)
        if self._trace:
            self._trace.note("prepare", self.come_s, prepared_s)
            if begun_s:
                self._trace.note("queue", prepared_s, begun_s)
            self._trace.note("gather", begun_s or prepared_s, now)

    def _examined(self, read: Read, counts: Sequence[IdCounts]) -> None:
        for part, known in zip(read.parts, counts, strict=True):
            of_feature = self._meters.examined.setdefault(part.batch.feature, [0] * _KINDS)
            for provenance, count in enumerate(np.bincount(known.provenance_N, minlength=_KINDS).tolist()):
                of_feature[provenance] += count

    def updated(self, ids: dict[str, int]) -> None:
        """So many ids of each feature were updated."""
        self._rpc.ids.update(ids)

    def answered(self, size: int) -> None:
        """A message has its answer, of so many bytes."""
        now = time.monotonic()
        self._rpc.seconds.observe(now - self.come_s)
        self._rpc.sent += size
        if self.gathered_s:
            self._meters.stages["encode"].observe(now - self.gathered_s)
            if self._trace:
                self._trace.note("encode", self.gathered_s, now)

    def refused(self, reason: str) -> None:
        """A bound was reached."""
        self._meters.refused[reason] += 1

    def end(self) -> None:
        """The call has ended; once is enough."""
        if self._context is None:
            return
        self._rpc.calls[self.code, self.identity] += 1
        self._context = None  # which knows of this, so that both would stay until they are looked for


def _is_id(text: str) -> bool:
    return 0 < len(text) <= LONGEST_ID and text.isascii() and text.isprintable()

"""What is noted of one call: how long its stages take, what becomes of it, and the id by which it is found in logs."""

from __future__ import annotations

import re
import secrets
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from embershard.meters import Answered
from embershard.types import Provenance

if TYPE_CHECKING:
    from collections.abc import Sequence

    import grpc.aio

    from embershard.collection import IdCounts, Read
    from embershard.meters import FrontMeters

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
"""What gRPC knows of a call."""
REQUEST_ID = "x-request-id"
"""Metadata that has a caller's id of a call; of calls that fail, also in what the answer ends with."""
LONGEST_ID = 128
"""Characters."""
_KINDS = max(Provenance) + 1


class Trace(Protocol):
    """That a call is traced."""

    @property
    def id(self) -> str:
        """By which the trace is found: 32 hex digits; of zeros if it hasn't begun."""

    def note(self, message: Answered) -> None:
        """A message of the call has its answer."""


current: ContextVar[Watch | None] = ContextVar("current", default=None)
"""That of the call at which the present task is, or the thread that works for it."""


class Watch:
    """One call; on the event loop's thread."""

    __slots__ = (
        "_begun_s",
        "_come_s",
        "_context",
        "_gathered_s",
        "_meters",
        "_prepared_s",
        "_request_id",
        "_rpc",
        "_ticked_s",
        "code",
        "identity",
        "name",
        "trace",
    )

    def __init__(self, name: str, meters: FrontMeters, context: Context, *, single: bool) -> None:
        """Begins with a call of this RPC."""
        self.name, self._meters, self._rpc = name, meters, meters.rpcs[name]
        self._context: Context | None = context
        self.code = "CANCELLED"
        """Name of its gRPC status, if it ended now: a caller who goes away is heard of by no other word."""
        self.identity = ""
        """Who calls, by name; "": nobody in particular."""
        self._request_id = ""
        self.trace: Trace | None = None
        """That it is traced, if it is."""
        self._begun_s = time.monotonic() if single else 0.0
        self._prepared_s = self._ticked_s = self._gathered_s = 0.0

    def lead(self) -> None:
        """From now on what is logged here is of this call; of lookups once they fail, as it costs each some 4 %."""
        current.set(self)

    @property
    def request_id(self) -> str:
        """The caller's, if it is letters, digits and some signs, and not too long; else one of our own."""
        if not self._request_id:
            metadata = self._context.invocation_metadata() if self._context else None
            told = [value for key, value in metadata or () if key == REQUEST_ID]
            usable = [value for value in told[:1] if isinstance(value, str) and _is_id(value)]
            self._request_id = usable[0] if usable else secrets.token_hex(8)
        return self._request_id

    def received(self, size: int) -> None:
        """A message of so many bytes has come."""
        self._come_s = time.monotonic()
        self._rpc.received += size

    def looked_up(self, read: Read, counts: Sequence[IdCounts] | None, prepared_s: float, ticked_s: float) -> None:
        """A lookup has its vectors. It was prepared, and its tick began unless that is 0, then, in `time.monotonic()`
        seconds; `counts` are those of one that is examined."""
        self._prepared_s, self._ticked_s, self._gathered_s = prepared_s, ticked_s, time.monotonic()
        rpc = self._rpc
        for part in read.parts:
            rpc.ids[part.batch.feature] += len(part.batch.ids)
            rpc.rows += part.outputs
        if counts:
            self._examined(read, counts)

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
        message = Answered(
            self._rpc,
            size,
            self._begun_s,
            self._come_s,
            self._prepared_s,
            self._ticked_s,
            self._gathered_s,
            time.monotonic(),
        )
        self._meters.answered(message)
        if self.trace:
            self.trace.note(message)

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
    return re.fullmatch(rf"[\w.:/+=@,~-]{{1,{LONGEST_ID}}}", text, re.ASCII) is not None

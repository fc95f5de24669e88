"""A stream of updates that goes on after it broke: what wasn't answered is sent again, and applied once."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator

from embershard.client.delivery import Sender
from embershard.v1 import embershard_pb2 as pb


class _Window:
    """Updates of one sender that were taken from their source, and not answered yet.

    One thread adds them, and another tells that they were answered.
    """

    def __init__(self) -> None:
        self._client_id, self._added, self._answered = Sender.new().client_id, 0, 0
        self._waiting: deque[pb.UpdateRequest] = deque()
        self._changing = threading.Lock()

    def answered(self) -> None:
        """The first of them was."""
        with self._changing:
            self._waiting.popleft()
            self._answered += 1

    def _after(self, sequence: int) -> pb.UpdateRequest | None:
        with self._changing:
            at = max(sequence - self._answered, 0)
            return self._waiting[at] if at < len(self._waiting) else None

    def _add(self, request: pb.UpdateRequest) -> pb.UpdateRequest:
        with self._changing:
            self._added += 1
            request.client_id, request.sequence = self._client_id, self._added
            self._waiting.append(request)
        return request


class Unanswered(_Window):
    """Of an iterator, which gRPC reads on a thread of its own."""

    def __init__(self, source: Iterator[pb.UpdateRequest]) -> None:
        super().__init__()
        self._source, self._lock = source, threading.Lock()

    def messages(self) -> Iterator[pb.UpdateRequest]:
        """What a new stream sends: first what an earlier one was broken off with."""
        sequence = 0
        while True:
            with self._lock:  # the reader of a broken stream may still wait for the source: what it gets is ours
                if (request := self._after(sequence)) is None:
                    if (taken := next(self._source, None)) is None:
                        return
                    request = self._add(taken)
            sequence = request.sequence
            yield request


class AsyncUnanswered(_Window):
    """The same of an asynchronous iterator."""

    def __init__(self, source: AsyncIterator[pb.UpdateRequest]) -> None:
        super().__init__()
        self._source, self._lock = source, asyncio.Lock()

    async def messages(self) -> AsyncIterator[pb.UpdateRequest]:
        """As `Unanswered.messages`."""
        sequence = 0
        while True:
            async with self._lock:
                if (request := self._after(sequence)) is None:
                    if (taken := await anext(self._source, None)) is None:
                        return
                    request = self._add(taken)
            sequence = request.sequence
            yield request

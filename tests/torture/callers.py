"""Clients that number their updates, and send each of them until it is answered, through whatever comes."""

from __future__ import annotations

import threading
from collections import deque

import grpc
import numpy as np

from embershard.v1 import embershard_pb2 as pb
from torture import requests
from torture.fleet import Closed, Fleet
from torture.history import Ack, History, Seen

PAUSE_S = 0.03
"""Between two tries."""
REMEMBERED = 12
"""Updates that a service tells the very version of; it does so of 16, and some may come between."""
_UNANSWERED = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}
_NO_ROOM = "has no room for all ids"


class Refused(Exception):
    """The request can't be done, whoever asks again."""


class Caller(threading.Thread):
    """One client; its updates come one after the other."""

    def __init__(self, fleet: Fleet, history: History, number: int, seed: int) -> None:
        super().__init__(name=f"caller {number}")
        self._fleet, self._history, self._client = fleet, history, f"client-{number}-ü"
        self._random = np.random.default_rng([seed, number])
        self._leaving = threading.Event()
        self._last = self._version = 0
        self._recent: deque[tuple[int, bytes, int]] = deque(maxlen=40)
        self._doubtful: tuple[bytes, ...] = ()
        """Of the next number: what was refused, though an earlier try of it may have been applied."""
        self.pinned = 0
        """A version that is loaded, or was."""

    def leave(self) -> None:
        """Ends it once its update is answered."""
        self._leaving.set()

    def run(self) -> None:
        try:
            while not self._leaving.is_set():
                self._act(self._random.random())
        except Closed:
            return
        except Exception as error:
            self._history.fail(f"{self._client}: {type(error).__name__}: {error}")

    def _act(self, chance: float) -> None:
        if chance < 0.55:
            self._update()
        elif chance < 0.63 and self._recent:
            self._repeat()
        elif chance < 0.65:
            self._skip()
        else:
            self._lookup()

    def _update(self) -> None:
        sequence = self._last + 1
        request = requests.update(self._random, self._client, sequence)
        self._history.sent.add(request)
        try:
            answer, doubtful = self._deliver(request)
        except Refused as refused:
            self._history.counts["refused"] += 1
            self._doubtful += (request,) * refused.args[1]
            return
        if answer.duplicate and not doubtful and not self._doubtful:
            self._history.fail(f"{self._client}: update {sequence} was never sent before, and is told a duplicate")
        self._note(answer, sequence, (request, *self._doubtful), recent=True)
        self._history.counts["acknowledged"] += 1
        self._recent.append((sequence, request, answer.version))
        self._last, self._version, self._doubtful = sequence, answer.version, ()

    def _repeat(self) -> None:
        """What was answered already, for instance since the answer was lost on its way to the caller."""
        sequence, request, version = self._recent[int(self._random.integers(len(self._recent)))]
        recent = self._last - sequence < REMEMBERED
        try:
            answer, _ = self._deliver(request)
        except Refused:  # tables have changed, and it wouldn't fit them now
            return
        if not answer.duplicate:
            self._history.fail(f"{self._client}: update {sequence} of version {version} is applied again")
        self._note(answer, sequence, (request, *([] if recent else [request])), recent=recent)
        self._history.counts["duplicates"] += 1

    def _skip(self) -> None:
        """A number that isn't next."""
        request = requests.update(self._random, self._client, self._last + int(self._random.integers(3, 9)))
        self._history.sent.add(request)
        try:
            answer, _ = self._deliver(request)
        except Refused as refused:
            if refused.args[0] not in (grpc.StatusCode.OUT_OF_RANGE, grpc.StatusCode.INVALID_ARGUMENT):
                self._history.fail(f"{self._client}: a gap is refused with {refused}")
        else:
            self._history.fail(f"{self._client}: an update after a gap is answered {answer}")

    def _lookup(self) -> None:
        pinned = self.pinned if self._random.random() < 0.3 else 0
        own = self._version if not pinned and self._random.random() < 0.3 else 0
        request = requests.lookup(self._random, min_version=own, pinned=pinned)
        try:
            response = self._fleet.call("Lookup", request, self._random)
        except grpc.RpcError as error:
            if error.code() in _UNANSWERED:
                self._leaving.wait(PAUSE_S)
            elif error.code() is not grpc.StatusCode.INVALID_ARGUMENT:
                self._history.fail(f"{self._client}: a lookup ends with {error.code()}: {error.details()}")
            return
        version = pb.LookupResponse.FromString(response).version
        if version < own or (pinned and version != pinned):
            self._history.fail(f"{self._client}: {version} is read, and {own or pinned} was asked for")
        self._history.counts["lookups"] += 1
        self._history.seen.append(Seen(version=version, pinned=pinned > 0, request=request, response=response))

    def _deliver(self, request: bytes) -> tuple[pb.UpdateResponse, bool]:
        """The answer, and whether an earlier try may have been applied."""
        doubtful = False
        while True:
            try:
                answer = self._fleet.call("Update", request, self._random)
            except grpc.RpcError as error:
                code, details = error.code(), error.details() or ""
                full = code is grpc.StatusCode.RESOURCE_EXHAUSTED and _NO_ROOM not in details
                if code not in _UNANSWERED and not full:
                    raise self._refused(code, details, doubtful) from None
                self._history.counts["tries"] += 1
                doubtful |= not full
                threading.Event().wait(PAUSE_S)
            else:
                return pb.UpdateResponse.FromString(answer), doubtful

    def _refused(self, code: grpc.StatusCode, details: str, doubtful: bool) -> Refused:
        known = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.OUT_OF_RANGE)
        if code not in known:
            self._history.fail(f"{self._client}: an update ends with {code}: {details}")
        return Refused(code, doubtful, details)

    def _note(self, answer: pb.UpdateResponse, sequence: int, sent: tuple[bytes, ...], *, recent: bool) -> None:
        self._history.acks.append(
            Ack(
                client=self._client,
                sequence=sequence,
                version=answer.version,
                duplicate=answer.duplicate,
                recent=recent,
                sent=sent,
            )
        )

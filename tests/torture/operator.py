"""What else goes on while callers call: snapshots, growth, freezing, activations, a full disk; and the end of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import grpc
import numpy as np

from embershard.v1 import embershard_pb2 as pb
from torture import requests
from torture.callers import Caller
from torture.fleet import Closed, Fleet
from torture.history import Done, History

SNAPSHOTS_A_LIFE = 3
"""No more, and one to begin with: the log goes back to the oldest of eight, so that all of it is seen in time."""
_MAY_END = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.INVALID_ARGUMENT,  # no such id or snapshot, or fewer rows than there are
    grpc.StatusCode.RESOURCE_EXHAUSTED,  # the disk is full
    grpc.StatusCode.ABORTED,  # so it is, or a snapshot has gone
}


class Operator:
    """Does something at random for as long as a life lasts."""

    def __init__(self, fleet: Fleet, history: History, callers: Sequence[Caller], random: np.random.Generator) -> None:
        self._fleet, self._history, self._callers, self._random = fleet, history, callers, random
        self._snapshots = 0

    def begin(self) -> None:
        """Before anybody calls."""
        self._ask("Snapshot", b"", self._random)

    def live(self, seconds: float) -> None:
        """One life, up to its end."""
        over = threading.Event()
        worker = threading.Thread(target=self._work, args=(over, self._random.spawn(1)[0]), name="operator")
        worker.start()
        over.wait(seconds)
        if self._random.random() < 0.3:  # while a snapshot is being written, and the log begins a new file
            self._ask("Snapshot", b"", self._random, wait=False)
            over.wait(self._random.uniform(0, 0.03))
        over.set()
        with self._fleet.halted():
            self._history.look(self._fleet.data)
            self._fleet.kill(self._random)
        worker.join()

    def _work(self, over: threading.Event, random: np.random.Generator) -> None:
        self._snapshots = 0
        works: list[Callable[[np.random.Generator], object]] = [
            self._snapshot, self._snapshot, self._grow, self._freeze, self._freeze, self._load, self._activate,
            self._roll_back, self._fill_the_disk,
        ]  # fmt: skip
        try:
            while not over.wait(random.uniform(0.02, 0.4)):
                works[random.integers(len(works))](random)
        except Closed:
            return
        except Exception as error:
            self._history.fail(f"operator: {type(error).__name__}: {error}")

    def _snapshot(self, random: np.random.Generator) -> None:
        if self._snapshots < SNAPSHOTS_A_LIFE:
            self._snapshots += 1
            self._ask("Snapshot", b"", random)

    def _grow(self, random: np.random.Generator) -> None:
        request = requests.growth(random)
        if answer := self._ask("Grow", request, random):
            self._done(pb.GrowResponse.FromString(answer).version, request)

    def _freeze(self, random: np.random.Generator) -> None:
        request = requests.freeze(random)
        if answer := self._ask("Freeze", request, random):
            self._done(pb.FreezeResponse.FromString(answer).version, request)

    def _load(self, random: np.random.Generator) -> None:
        """A snapshot for callers to read."""
        if version := self._any_version(random):
            self._ask("Load", pb.LoadRequest(version=version).SerializeToString(), random)
            for caller in self._callers:
                caller.pinned = version

    def _activate(self, random: np.random.Generator) -> None:
        """At most once a life, as it writes a snapshot by itself."""
        if self._snapshots < SNAPSHOTS_A_LIFE and (version := self._any_version(random)):
            self._snapshots += 1
            request = pb.ActivateRequest(version=version).SerializeToString()
            if answer := self._ask("Activate", request, random):
                self._done(pb.ActivateResponse.FromString(answer).version, request)

    def _roll_back(self, random: np.random.Generator) -> None:
        if answer := self._ask("Rollback", b"", random):
            told = pb.ActivateResponse.FromString(answer)
            self._done(told.version, pb.ActivateRequest(version=told.activated).SerializeToString())

    def _fill_the_disk(self, random: np.random.Generator) -> None:
        with self._fleet.full_disk(int(random.choice([0, 5_000, 50_000]))):
            threading.Event().wait(random.uniform(0.05, 0.3))
        self._history.counts["full disks"] += 1

    def _any_version(self, random: np.random.Generator) -> int:
        answer = self._ask("ListVersions", b"", random)
        versions = pb.ListVersionsResponse.FromString(answer or b"").versions
        there = [version.version for version in versions if version.bytes]
        return int(random.choice(there)) if there else 0

    def _ask(self, method: str, request: bytes, random: np.random.Generator, *, wait: bool = True) -> bytes | None:
        """The answer; None if it was refused, or nobody knows."""
        self._history.sent.add(request)
        if not wait:
            threading.Thread(target=self._ask, args=(method, request, random.spawn(1)[0])).start()
            return None
        try:
            answer = self._fleet.call(method, request, random)
        except grpc.RpcError as error:
            if error.code() not in _MAY_END:
                self._history.fail(f"{method} ends with {error.code()}: {error.details()}")
            return None
        self._history.counts[method] += 1
        return answer

    def _done(self, version: int, request: bytes) -> None:
        self._history.done.append(Done(version=version, request=request))

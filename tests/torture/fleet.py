"""The service through its lives, and how callers reach the present one."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
from support.service import Service

CALL_S = 10
"""Deadline of a call, which is then made again."""
PATIENCE_S = 240
"""Longest that the service may be away."""
_ADMIN = ("Snapshot", "Grow", "Freeze", "ListVersions", "Load", "Activate", "Rollback")


class Closed(Exception):
    """Nobody will answer any more."""


class Fleet:
    """One process with the local engine, which is started anew, or ranks that torchrun starts again by itself."""

    def __init__(self, config: str, data: Path, ranks: int) -> None:
        self.data, self.ranks, self._config = data, ranks, config
        self.outputs: list[str] = []
        self._service: Service | None = None
        self._announced = 0
        self._channels: dict[str, grpc.Channel] = {}
        self._changed = threading.Condition()
        self._serving = self._closed = False

    @property
    def output(self) -> str:
        """What all lives have said."""
        return "".join(self.outputs) + (self._service.output if self._service else "")

    def begin(self) -> None:
        """A new life, unless torchrun has begun one."""
        if self._service is None:
            launcher = ["--max-restarts=100000"]
            self._service, self._announced = Service(self._config, self.data, ranks=self.ranks, launcher=launcher), 0

    def wait(self) -> None:
        """Until it serves."""
        assert self._service
        self._announced = self._service.wait_announced(self._announced + self._service.size, PATIENCE_S)
        with self._changed:
            self._serving = True
            self._changed.notify_all()

    @contextlib.contextmanager
    def halted(self) -> Iterator[None]:
        """Nothing moves meanwhile, so that the disk can be looked at."""
        pids = self.pids()
        for pid in pids:
            _send(pid, signal.SIGSTOP)
        for pid in pids:
            while not _stands_still(pid):  # a signal takes a moment to reach all threads
                threading.Event().wait(0.001)
        try:
            yield
        finally:
            for pid in pids:
                _send(pid, signal.SIGCONT)

    def kill(self, random: np.random.Generator) -> None:
        """SIGKILL for the process, or for some of the ranks, now and then torchrun with all of them."""
        assert self._service
        with self._changed:
            self._serving = False
            channels, self._channels = self._channels, {}
        pids = self.pids()
        if self.ranks and random.random() < 0.8:
            self._announced = self._service.announced
            for pid in random.choice(pids, size=random.integers(1, len(pids) + 1), replace=False) if pids else []:
                _send(int(pid), signal.SIGKILL)
        else:
            self._service.process.kill()
            for pid in pids:
                _send(pid, signal.SIGKILL)
            self._service.ended()
            self.outputs.append(self._service.output)
            self._service = None
        for channel in channels.values():
            channel.close()

    def stop(self) -> int:
        """As an operator does, so that the service writes its last snapshot."""
        assert self._service
        status = self._service.stop()
        self.outputs.append(self._service.output)
        self._service = None
        return status

    def close(self) -> None:
        """Leaves nothing behind."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._service is not None:
            pids = self.pids()
            self._service.process.kill()
            for pid in pids:
                _send(pid, signal.SIGKILL)
            self._service.ended()
        for channel in self._channels.values():
            channel.close()

    def pids(self) -> list[int]:
        """Of the processes that have rows."""
        assert self._service
        with contextlib.suppress(OSError):
            return self._service.rank_pids()
        return []

    @contextlib.contextmanager
    def full_disk(self, most: int) -> Iterator[None]:
        """No file may become larger than so many bytes."""
        unlimited, pids = resource.RLIM_INFINITY, self.pids()
        for pid in pids:
            with contextlib.suppress(OSError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, unlimited))
        try:
            yield
        finally:
            for pid in pids:
                with contextlib.suppress(OSError):
                    resource.prlimit(pid, resource.RLIMIT_FSIZE, (unlimited, unlimited))

    def call(self, method: str, request: bytes, random: np.random.Generator) -> bytes:
        """Asks any rank of the present life; raises grpc.RpcError."""
        service = "AdminService" if method in _ADMIN else "EmbeddingService"
        path = f"/embershard.v1.{service}/{method}"
        answer: bytes = self._channel(random).unary_unary(path)(request, timeout=CALL_S)
        return answer

    def _channel(self, random: np.random.Generator) -> grpc.Channel:
        with self._changed:
            if not self._changed.wait_for(lambda: self._serving or self._closed, PATIENCE_S):
                raise AssertionError("the service has been away for too long")
            if self._closed or self._service is None:
                raise Closed
            addresses = self._service.addresses
            address = addresses[int(random.choice(list(addresses)))]
            if address not in self._channels:
                self._channels[address] = grpc.insecure_channel(address)
            return self._channels[address]


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _stands_still(pid: int) -> bool:
    """Whether all threads are stopped, or gone."""
    try:
        states = [path.read_text().rpartition(") ")[2][0] for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    except OSError:
        return not Path(f"/proc/{pid}").exists()
    return all(state in "TtZX" for state in states)

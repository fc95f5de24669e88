"""Snapshots: all rows, optimizer state and vocabularies of one version, as data that can't run code.

Written while rows go on changing, in the files of torch.distributed.checkpoint's safetensors storage, beside
(`.partial-…`) and renamed. They load at any world size. Ranks on several hosts need a shared file system.

    engine's thread     begin ──► copies a slice between two ticks ──► copies a slice ──► …
                                       │  a few slices at most wait         │
    writing thread      makes a folder ▼ writes and sums                    ▼ …   have all ranks? ──► completes it
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING

from embershard.engine.beside import Rest, beside, let_go
from embershard.engine.capture import Capture, Slice
from embershard.errors import EmbershardError, SnapshotError
from embershard.store.agreement import Agree, meeting
from embershard.store.belonging import check_belongs
from embershard.store.loading import check_rows, fill, load, read_tensors
from embershard.store.manifest import open_snapshot
from embershard.store.writing import Job, Keeping

if TYPE_CHECKING:
    from embershard.engine.base import Engine
    from embershard.engine.clients import Clients
    from embershard.store.manifest import Snapshot

__all__ = ["Keeping", "Saving", "begin", "check_belongs", "check_rows", "fill", "load", "read_tensors", "save"]

_QUEUED = 16
"""Slices that may wait for the disk."""


def begin(
    engine: Engine,
    clients: Clients | None,
    version: int,
    folder: Path,
    *,
    keeping: Keeping,
    wake: Callable[[], None] = lambda: None,
) -> Saving:
    """Joint: begins to write a snapshot of what there is now, and then to delete those that needn't stay.

    The engine's thread calls `step` until that has nothing to do and the saving is done; `wake` is called from another
    thread when there may be something to do again. One saving is under way at a time.
    """
    world = engine.world
    final = folder / f"{version:012d}"
    first = world.rank == 0  # which writes what is the same on all
    there = first and os.path.isdir(final)  # noqa: PTH112  # which never raises
    if any(world.gather(there)):  # the rows of a version never change
        return Saving.there(final)
    capture = Capture(engine.shards.values())
    job = Job(
        rank=world.rank,
        world_size=world.size,
        version=version,
        folder=folder,
        keeping=keeping,
        config=engine.config,
        published=engine.published,
        matrices=engine.matrices,
        parts=capture.parts,
        vocabularies={name: engine.vocabularies[name].state() for name in engine.vocabularies if first},
        clients=clients.state() if clients is not None and first else None,
    )
    saving = Saving(capture, wake)
    agree = meeting(world, f"snapshot/{version}")
    beside("snapshot", lambda: saving.write(job, agree))
    return saving


def save(engine: Engine, clients: Clients | None, version: int, folder: Path, *, keeping: Keeping) -> Snapshot:
    """Joint: the same to its end, while nothing changes.

    Raises:
        SnapshotError: on every rank, if any can't write; nothing is left behind.
    """
    saving = begin(engine, clients, version, folder, keeping=keeping)
    saving.drain()
    return saving.done.result()


class Saving:
    """A snapshot that is being written."""

    def __init__(self, capture: Capture | None, wake: Callable[[], None]) -> None:
        self.done: Future[Snapshot] = Future()
        """The snapshot; or SnapshotError, on every rank, if any can't write, and then nothing is left behind."""
        self.done.set_running_or_notify_cancel()
        self._capture, self._woken, self._tell = capture, threading.Event(), wake
        self._slices: queue.SimpleQueue[Slice | Exception | None] = queue.SimpleQueue()
        self._hurry = threading.Event()
        self._over = False
        """Whether no more slices are needed."""

    @classmethod
    def there(cls, path: Path) -> Saving:
        """Of a version that was written before."""
        saving = cls(None, lambda: None)
        saving._settle(lambda: open_snapshot(path))
        return saving

    def step(self) -> bool:
        """For the engine's thread: copies a slice, if one may wait; returns whether it did anything."""
        if self._capture is None or (self._slices.qsize() >= _QUEUED and not self._over):
            return False
        self._copy()
        return True

    def drain(self) -> None:
        """For the engine's thread: copies all that is left, as fast as it is written, until all is done."""
        self.hurry()
        while not self.done.done():
            if not self.step():
                self._woken.wait()
                self._woken.clear()
        while self.step():
            pass

    def hurry(self) -> None:
        """Has the writing thread rest no more."""
        self._hurry.set()

    def _wake(self) -> None:
        self._woken.set()
        self._tell()

    def write(self, job: Job, agree: Agree) -> None:
        """For the writing thread: all that it does."""
        self._settle(lambda: job.write(self._arriving(), agree))

    def _copy(self) -> None:
        assert self._capture is not None
        try:
            copied = None if self._over else self._capture.take()
            self._slices.put(copied)
        except Exception as error:  # for instance, no memory: that ends the saving, and nothing else
            copied = None
            self._slices.put(error)
        if copied is None:
            self._capture.close()
            # The tables may be nobody else's any more.
            ended, self._capture = [self._capture], None
            let_go(ended)

    def _arriving(self) -> Generator[Slice]:
        try:
            yield from Rest(self._hurry).between(self._queued())
        finally:
            self._over = True
            self._wake()

    def _queued(self) -> Iterator[Slice]:
        while (arrived := self._slices.get()) is not None:
            if isinstance(arrived, Exception):
                raise arrived
            if self._slices.qsize() >= _QUEUED - 1:  # it was full
                self._wake()
            yield arrived

    def _settle(self, result: Callable[[], Snapshot]) -> None:
        made: Snapshot | None = None
        failure: Exception | None = None
        try:
            made = result()
        except Exception as error:
            told = isinstance(error, SnapshotError) or not isinstance(error, EmbershardError)
            failure = error if told else SnapshotError(f"a snapshot can't be written: {error}")
        self._over = True
        if made is None:
            self.done.set_exception(failure)
        else:
            self.done.set_result(made)
        self._wake()

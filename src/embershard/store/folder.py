"""A server's data directory: made and tried out at start, and held by one server at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import torch

from embershard.engine.world import SoloWorld
from embershard.errors import ConfigError, SnapshotError
from embershard.store.manifest import list_snapshots

if TYPE_CHECKING:
    from embershard.engine.world import World


class DataDir:
    """Two servers on one directory would each believe that the other's snapshots are its own."""

    def __init__(self, path: Path, *, flag: str = "--data-dir") -> None:
        """`flag` is how whoever runs this process names it."""
        self._flag = flag
        self.path = path.resolve()
        self.snapshots, self.log = self.path / "snapshots", self.path / "log"
        self.publications = self.path / "publications"
        self._lock: TextIO | None = None

    def hold(self, world: World) -> None:
        """Joint: takes the directory for this group until its processes end.

        Raises:
            ConfigError: on every rank, if it can't be made or written, or another server has it.
        """
        problem = self._take() if world.rank == 0 else None
        if problem := next((told for told in world.gather(problem) if told), None):
            raise ConfigError(f"{self._flag} {self.path}: {problem}; give another one")

    def release(self) -> None:
        """Lets others have the directory, before the process ends."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    @contextmanager
    def fresh(self) -> Iterator[SoloWorld]:
        """Holds it while a snapshot is written into it, by one process: there must be none yet.

        Raises:
            SnapshotError: there is one.
            ConfigError: as `hold`.
        """
        if there := list_snapshots(self.snapshots):
            raise SnapshotError(f"{there[-1]}: is there already, and isn't overwritten; give an empty data directory")
        world = SoloWorld()
        world.device = torch.device("cpu")  # where all rows fit that were on several GPUs
        self.hold(world)
        try:
            yield world
        finally:
            self.release()

    def _take(self) -> str | None:
        """What is wrong, or None once it is ours."""
        try:
            self.snapshots.mkdir(parents=True, exist_ok=True)
            lock = (self.path / "lock").open("a+")
        except OSError as error:
            return f"can't be written: {error.strerror}"
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            holder = lock.read().strip()
            lock.close()
            return f"is in use by process number {holder}"
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        self._lock = lock  # open, and so locked, as long as this process lives
        return None

"""What a run publishes while it goes on: first its tables in full, then every now and then what has changed since.

    training thread    take what has changed (a copy) ──► go on with the next step …
                                    │
    a thread beside                 ▼ send it, have it served: all at once, or not at all

If that fails, the run goes on, and the next publication brings what this one couldn't.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embershard.client import Client
from embershard.config import difference, fingerprint_of, narrowed, spelled_out
from embershard.engine.touched import Touched
from embershard.errors import EmbershardError, FingerprintMismatch, SequenceGap, SnapshotError, TrainingError
from embershard.formats.files import writing
from embershard.publisher import Publisher
from embershard.store.agreement import everywhere

if TYPE_CHECKING:
    from embershard.config import TableSpec
    from embershard.engine.base import Engine
    from embershard.engine.touched import Changes
    from embershard.engine.world import World
    from embershard.store.manifest import Snapshot
    from embershard.train.job import PublishSpec
    from embershard.v1 import embershard_pb2 as pb

logger = logging.getLogger(__name__)

_NEEDS_FULL = (SequenceGap, SnapshotError)
"""The service hasn't what a delta builds on, or not as it was."""


class Publishing:
    """Publications of one run; what isn't said to be of this rank alone, is joint."""

    def __init__(self, spec: PublishSpec, engine: Engine, folder: Path) -> None:
        """`folder` is the run's, and keeps the name by which services know it.

        Raises:
            EmbershardError: on every rank: the service isn't there, or has another collection.
        """
        world: World = engine.world
        self._engine, self._every_s, self._step = engine, spec.every_s, 0
        name = ""
        with everywhere(world.gather, "publish", TrainingError):
            if world.rank == 0:
                name = _name(folder)
        name = world.gather(name)[0]
        self._client = Client(spec.target)
        try:
            with everywhere(world.gather, "the job can't publish", TrainingError):
                self._check_collection()
        except BaseException:
            self._client.close()
            raise
        self._publisher = Publisher(self._client, publisher=name, world=world, timeout_s=spec.timeout_s)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="publish")
        self._touched: Touched | None = None
        self._under_way: Future[Any] | None = None
        self._changes: Changes | None = None
        self._problem: EmbershardError | None = None
        self._begun_s = float("-inf")
        self.uploaded: int = 0
        """The version of the snapshot that is being sent; 0: there is none."""
        self.last: dict[str, Any] | None = None
        """What was published last."""

    def due(self) -> bool:
        """Of this rank alone: whether it is time for the next one, and the last one has ended."""
        idle = self._under_way is None or self._under_way.done()
        return idle and time.monotonic() - self._begun_s >= self._every_s

    def begin(self, step: int, checkpoint: Callable[[], Snapshot]) -> None:
        """Publishes what there is after a step, beside the next steps; `checkpoint` makes a snapshot of it."""
        self._end()
        self._begun_s = time.monotonic()
        if self._touched is None:
            snapshot = checkpoint()
            self._touched, self.uploaded = Touched(self._engine), snapshot.version
            self._under_way = self._thread.submit(self._publisher.full, snapshot)
        else:
            self._changes = self._touched.take()
            self._under_way = self._thread.submit(self._publisher.delta, self._changes)
        self._step = step

    def finish(self, step: int, checkpoint: Callable[[], Snapshot]) -> None:
        """Publishes what there is at the end, and waits for it.

        Raises:
            EmbershardError: on every rank: it couldn't be published.
        """
        self.begin(step, checkpoint)
        if isinstance(self._end(), _NEEDS_FULL):
            self.begin(step, checkpoint)
            self._end()
        if self._problem is not None:
            raise self._problem

    def close(self) -> None:
        """Lets go of the service, once what is under way has ended."""
        self._thread.shutdown(cancel_futures=True)
        self._client.close()
        if self._touched is not None:
            self._touched.close()

    def _end(self) -> EmbershardError | None:
        """Waits until the last one has ended, on every rank; returns why it wasn't served, if it wasn't."""
        if self._under_way is None:
            return None
        assert self._touched is not None
        ended, changes = self._under_way, self._changes
        self._under_way, self._changes, self.uploaded, self._problem = None, None, 0, None
        try:
            answer = ended.result()
        except EmbershardError as problem:
            self._problem = problem
            if changes is None or isinstance(problem, _NEEDS_FULL):
                self._touched.close()
                self._touched = None
            else:
                self._touched.put_back(changes)
            if self._engine.world.rank == 0:
                logger.warning(
                    "step %d couldn't be published; the next publication has it, too: %s", self._step, problem
                )
            return problem
        self.last = {"step": self._step, "version": answer.version, "rows": answer.rows, "delta": changes is not None}
        if self._engine.world.rank == 0:
            logger.info("step %d is served as version %d: %d rows", self._step, answer.version, answer.rows)
        return None

    def _check_collection(self) -> None:
        """Raises FingerprintMismatch, with the difference, if the service has another collection; it may store rows in
        fewer bits."""
        described, ours = self._client.describe(), self._engine.config
        as_there = narrowed(ours.layout(), {table.name: table.dtype for table in described.tables})
        if described.fingerprint == fingerprint_of(as_there):
            return
        mine = {table.name: _of_config(table) for table in ours.tables}
        theirs = {table.name: _of_service(table) for table in described.tables}
        lines = difference(mine, theirs) or ["seeds, padding or lists of names differ"]
        raise FingerprintMismatch(
            f"serves another collection, {described.name!r}, than the job's, {ours.collection.name!r}: "
            f"{spelled_out(lines)}"
        )


def _of_config(table: TableSpec) -> dict[str, Any]:
    told = {"dim": table.dim, "features": list(table.features), "ids": table.ids.kind, "dtype": table.dtype}
    return told | {"factor": table.factor.kind if table.factor else ""}


def _of_service(table: pb.Table) -> dict[str, Any]:
    told = {"dim": table.dim, "features": list(table.features), "ids": table.id_kind, "dtype": table.dtype}
    return told | {"factor": table.factor}


def _name(folder: Path) -> str:
    """By which services know a run, ever since it began."""
    path = folder / "publisher"
    if not path.is_file():
        of_folder = re.sub(r"[^A-Za-z0-9_-]", "-", folder.resolve().name)[:40].lstrip("-")
        with writing(path, overwrite=True) as file:
            file.write(f"run-{of_folder}-{secrets.token_hex(4)}".encode())
    return path.read_text()

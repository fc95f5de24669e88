"""The update log: every change since the oldest snapshot that is kept, in SQLite, one transaction a batch.

log/000000000001.sqlite        the entries from version 1 on
log/000000000731.sqlite        those from version 731 on: a new file begins with each snapshot, and each start

An old file is deleted as a whole, once no snapshot needs it. What a caller was told is safe depends on the mode:

fsync   is on the disk: it survives a power failure
os      was given to the operating system: it survives the end of the process, however sudden
none    nothing is written: what came after the last snapshot is lost with the process
"""

from __future__ import annotations

import json
import logging
import queue
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import xxhash

from embershard.engine.pipeline import Record
from embershard.errors import Overloaded, Unavailable
from embershard.meters import LogMeters
from embershard.store.files import sync_folder

logger = logging.getLogger(__name__)

FORMAT = 1
FULL_S = 1.0
"""When to try again once the disk is full."""
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS about (value TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS entries (version INTEGER PRIMARY KEY, kind INTEGER NOT NULL, now_s INTEGER NOT NULL, "
    "request BLOB NOT NULL, checksum INTEGER NOT NULL)",
)
"""Made in one transaction: a file has both tables, or a crash came before anything was in it."""
_MODES = ("fsync", "os")
_USER_VERSION = slice(60, 64)
"""Where it stands in SQLite's file."""
_SYNCHRONOUS = {"fsync": "FULL", "os": "NORMAL"}


def segments(folder: Path) -> list[Path]:
    """The log's files, oldest first."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if re.fullmatch(r"\d{12,}\.sqlite", path.name))


def first_of(segment: Path) -> int:
    """The version with which a file begins."""
    return int(segment.stem)


def connect(path: Path, mode: str = "fsync") -> sqlite3.Connection:
    """Opens a file of the log, for one process alone: what a crash left half written is gone then."""
    is_new = not path.exists()
    database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    # Without shared memory, which some network file systems don't have.
    database.execute("PRAGMA locking_mode = EXCLUSIVE")
    if is_new:  # before there is a -wal, so that it stands in the file itself
        database.execute(f"PRAGMA user_version = {_MODES.index(mode)}")
    database.execute("PRAGMA journal_mode = WAL")
    database.execute(f"PRAGMA synchronous = {_SYNCHRONOUS[mode]}")
    return database


def is_synced(path: Path) -> bool:
    """Whether every batch in a file of the log was on the disk before the next one began."""
    with path.open("rb") as file:
        return int.from_bytes(file.read(_USER_VERSION.stop)[_USER_VERSION]) == _MODES.index("fsync")


def checksum(record: Record) -> int:
    """Of all that is kept of an entry, as SQLite's signed integer."""
    head = f"{record.version} {record.kind:d} {record.now_s} ".encode()
    return xxhash.xxh64_intdigest(record.request, xxhash.xxh64_intdigest(head)) - 2**63


def _delete(segment: Path) -> None:
    for path in (segment.with_name(segment.name + "-wal"), segment):
        path.unlink(missing_ok=True)


class UpdateLog:
    """Appends to the log, on a thread of its own; rank 0 has it."""

    def __init__(self, folder: Path, *, mode: str, about: Callable[[], dict[str, Any]], last: int) -> None:
        """`about` describes the tables with which a new file begins; `last` is the version that there is already."""
        self.folder, self._mode, self._about, self._last = folder, mode, about, last
        self.meters = LogMeters()
        self._database: sqlite3.Connection | None = None
        self._path = self._name_next()
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="update log", daemon=True)
        self._thread.start()

    def append(self, records: Sequence[Record]) -> Future[None]:
        """Done once they are as safe as the mode promises.

        Fails with Overloaded (the disk is full) or Unavailable (it can't be written): none of them is kept then, and
        later ones are tried anew.
        """
        done: Future[None] = Future()
        if self._mode == "none":
            self._last = records[-1].version
            done.set_result(None)
            return done

        def work() -> None:
            try:
                self._append(records)
            except Exception as error:
                done.set_exception(error)
            else:
                done.set_result(None)

        self._work.put(work)
        return done

    def rotate(self) -> None:
        """Has what is appended from now on go into a new file."""
        self._work.put(self._rotate)

    def trim(self, version: int) -> None:
        """Deletes what no snapshot from this version on needs."""
        self._work.put(lambda: self._trim(version))

    def size(self) -> int:
        """Bytes of its files; from any thread."""
        found = 0
        for segment in segments(self.folder):
            with suppress(FileNotFoundError):  # it was just deleted
                found += segment.stat().st_size
                found += segment.with_name(segment.name + "-wal").stat().st_size
        return found

    def close(self) -> None:
        """Ends once everything is written."""
        self._work.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
        self._close()

    def _append(self, records: Sequence[Record]) -> None:
        start = time.monotonic()
        rows = [(r.version, r.kind, r.now_s, r.request, checksum(r)) for r in records]
        try:
            database = self._open()
            database.execute("BEGIN")
            database.executemany("INSERT INTO entries VALUES (?, ?, ?, ?, ?)", rows)
            database.execute("COMMIT")
        except (sqlite3.Error, OSError) as error:
            self._close()
            self.meters.failures += 1
            logger.error("updates are refused, as the update log %s can't be written: %s", self._path, error)
            told = f"the update log can't be written ({error}), so that updates are refused until it can; lookups go on"
            if getattr(error, "sqlite_errorname", "") == "SQLITE_FULL":
                full = Overloaded(f"the disk is full: {told}")
                full.retry_after_s, full.reason = FULL_S, "disk"
                raise full from error
            raise Unavailable(f"{told}; this update may be there after a crash: send it again") from error
        self._last = records[-1].version
        self.meters.appends.observe(time.monotonic() - start)
        self.meters.bytes += sum(len(record.request) for record in records)

    def _open(self) -> sqlite3.Connection:
        """The present file, opened anew after a failure: what of that one's batch may be there goes."""
        if self._database is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            sync_folder(self.folder.parent)
            if first_of(self._path) == self._last + 1:
                _delete(self._path)  # nothing in it was ever acknowledged
            database = connect(self._path, self._mode)
            try:
                database.execute("BEGIN")
                for statement in _SCHEMA:
                    database.execute(statement)
                database.execute("DELETE FROM entries WHERE version > ?", [self._last])
                if first_of(self._path) == self._last + 1:
                    about = {"format": FORMAT, "mode": self._mode, **self._about()}
                    database.execute("DELETE FROM about")
                    database.execute("INSERT INTO about VALUES (?)", [json.dumps(about)])
                database.execute("COMMIT")
                sync_folder(self.folder)
            except BaseException:
                database.close()
                raise
            self._database = database
        return self._database

    def _close(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            try:
                database.close()
            except sqlite3.Error as error:  # what was acknowledged is in the file, or in its -wal beside it
                logger.warning("the update log %s can't be closed: %s", self._path, error)

    def _name_next(self) -> Path:
        return self.folder / f"{self._last + 1:012d}.sqlite"

    def _rotate(self) -> None:
        if self._mode != "none" and self._name_next() != self._path:
            self._close()
            self._path = self._name_next()

    def _trim(self, version: int) -> None:
        try:
            for segment, following in pairwise(segments(self.folder)):
                if first_of(following) <= version + 1 and segment != self._path:
                    _delete(segment)
        except OSError as error:  # the next snapshot tries again
            logger.warning("of %s, what is needed no more can't be deleted: %s", self.folder, error)

"""Publications in the data directory: their files arrive piece by piece, and stay as long as the log may need them.

publications/run/000000000004/delta-00001-….safetensors
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Set
from pathlib import Path

from embershard.engine.publication import MAX_FILES, Publication, StagedFile, check_name, check_number
from embershard.errors import InvalidInput, Overloaded, SnapshotError
from embershard.store.files import sync_folder

logger = logging.getLogger(__name__)

MOST_PUBLISHERS = 16
"""So many may stage something at once."""
STALE_S = 3600
"""What nobody has added to for so long makes room for others, and goes once something is tidied."""
SYNCED_BYTES = 4 * 2**20
"""A file is given to the disk each time that so many have come, and when its publisher asks."""
FULL_S = 1.0
"""When to try again once the disk is full."""

Needed = Mapping[tuple[str, int], Set[str]]
"""{(publisher, number): names of files} that must stay as they are."""


class Staging:
    """Files of publications; from any thread. `needed` tells what the log, or a publication on its way, needs."""

    def __init__(self, folder: Path, needed: Callable[[], Needed]) -> None:
        self._folder, self._needed = folder, needed
        self._lock = threading.Lock()

    def take(self, publisher: str, number: int, name: str, offset: int, data: bytes) -> int:
        """Adds a piece to a file, or (`offset` 0) begins it anew; returns how much of it is on the disk: without data,
        all that there is.

        Raises:
            InvalidInput: a name that can't be, a piece that doesn't begin where the file ends, or a file that was
                published.
            Overloaded: the disk is full, or too many publishers stage something.
        """
        check_name("publisher", publisher)
        check_number(number)
        check_name("file", name)
        path = folder_of(self._folder, publisher, number) / name
        with self._lock:
            try:
                return self._append(path, offset, data) if data else _synced(path)
            except OSError as error:
                told = f"{path}: can't be written: {error.strerror or error}; what is there stays, to go on from"
                if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS):
                    raise
                full = Overloaded(f"the disk is full: {told}")
                full.retry_after_s, full.reason = FULL_S, "disk"
                raise full from error

    def drop_damaged(self, publication: Publication, logged: Set[str]) -> None:
        """Deletes files that aren't as their publisher has them, so that they can be staged again, unless the log names
        them; of one that is only cut, what is there stays."""
        folder = folder_of(self._folder, publication.publisher, publication.number)
        for file in publication.files:
            path = folder / file.name
            if file.name in logged or not path.is_file() or path.stat().st_size < file.size:
                continue
            try:
                check_file(folder, file)
            except SnapshotError:
                with self._lock:
                    if path.is_file() and path.stat().st_size >= file.size:  # it isn't being staged again
                        path.unlink()

    def tidy(self) -> None:
        """Deletes what was published and isn't needed any more, and what nobody has added to for long."""
        with self._lock:
            for path, staged_s in self._unneeded():
                if time.time() - staged_s > STALE_S:
                    _delete(path)

    def forget(self, publisher: str, number: int) -> None:
        """Deletes a publication that the log needs no more."""
        with self._lock:
            if (publisher, number) not in self._needed():
                _delete(folder_of(self._folder, publisher, number))

    def _append(self, path: Path, offset: int, data: bytes) -> int:
        number, publisher = int(path.parent.name), path.parent.parent.name
        if path.name in self._needed().get((publisher, number), ()):
            raise InvalidInput(
                f"file {path.name!r} of publication {number:,} of {publisher!r} was published already, and can't be "
                "changed; go on with the next number"
            )
        there = path.stat().st_size if path.is_file() else 0
        if offset not in (0, there):
            raise InvalidInput(f"file {path.name!r} has {there:,} bytes here, and can't go on from {offset:,}")
        if not there:
            self._make_room(path)
        with path.open("ab" if offset else "wb", buffering=0) as file:
            left = memoryview(data)
            while left:
                left = left[file.write(left) :]
            end = offset + len(data)
            if end // SYNCED_BYTES > offset // SYNCED_BYTES:
                os.fsync(file.fileno())
                return end
        return end // SYNCED_BYTES * SYNCED_BYTES

    def _make_room(self, path: Path) -> None:
        """For a file that is new."""
        folder = path.parent
        if not folder.is_dir():
            publisher = folder.parent.name
            staged = self._unneeded()
            for other, staged_s in staged:
                if other.parent.name == publisher or time.time() - staged_s > STALE_S:
                    _delete(other)
            others = {other.parent.name for other, _ in staged if other.is_dir()} - {publisher}
            if len(others) >= MOST_PUBLISHERS:
                refusal = Overloaded(
                    f"{len(others):,} publishers stage something at once, which is the most: "
                    f"{', '.join(sorted(others))}; try again once they have published"
                )
                refusal.retry_after_s, refusal.reason = FULL_S, "busy"
                raise refusal
            folder.mkdir(parents=True, exist_ok=True)
            for parent in (folder.parent, self._folder, self._folder.parent):
                sync_folder(parent)
        elif sum(1 for _ in folder.iterdir()) >= MAX_FILES:
            raise InvalidInput(f"a publication has at most {MAX_FILES:,} files")

    def _unneeded(self) -> list[tuple[Path, float]]:
        """Folders of publications that aren't needed, and when something was added last."""
        needed, found = self._needed(), []
        for publisher in self._folder.iterdir() if self._folder.is_dir() else ():
            for path in publisher.iterdir() if publisher.is_dir() else ():
                if path.name.isdecimal() and (publisher.name, int(path.name)) not in needed:
                    times = [file.stat().st_mtime for file in (path, *path.iterdir())]
                    found.append((path, max(times)))
        return found


def folder_of(publications: Path, publisher: str, number: int) -> Path:
    """The folder of a publication."""
    return publications / publisher / f"{number:012d}"


def check_file(folder: Path, file: StagedFile) -> None:
    """Whether a file is as its publisher has it, and on the disk to stay.

    Raises:
        SnapshotError: it is missing, cut or damaged.
    """
    path = folder / file.name
    there = path.stat().st_size if path.is_file() else 0
    if there != file.size:
        raise SnapshotError(f"{path}: has {there:,} of {file.size:,} bytes: stage it, or bring it back from a copy")
    with path.open("rb") as opened:
        os.fsync(opened.fileno())
        if hashlib.file_digest(opened, "sha256").hexdigest() != file.sha256:
            raise SnapshotError(f"{path}: its checksum is wrong; stage it again, or bring it back from a copy")


def _synced(path: Path) -> int:
    """How much there is of a file, once the disk has it."""
    if not path.is_file():
        return 0
    with path.open("rb+") as file:
        os.fsync(file.fileno())
        size = file.seek(0, os.SEEK_END)
    sync_folder(path.parent)
    return size


def _delete(path: Path) -> None:
    """A publication, and the folder of its publisher once that is empty."""
    try:
        if path.exists():
            shutil.rmtree(path)
        if path.parent.exists() and not any(path.parent.iterdir()):
            path.parent.rmdir()
    except OSError as error:  # it is tried again
        logger.warning("the publication %s can't be deleted: %s", path, error)

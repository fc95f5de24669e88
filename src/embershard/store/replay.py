"""Reads the update log, and applies it to what a snapshot has brought back.

Damage is found, and not passed over: every entry has a checksum, versions have no gaps, and what SQLite would drop
from a file's end is only what a crash may leave there.
"""

from __future__ import annotations

import bisect
import json
import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from embershard.config import difference
from embershard.engine.entries import Entry, Kind, entry_of
from embershard.engine.pipeline import Record
from embershard.errors import InvalidInput, LogError
from embershard.store.log import FORMAT, checksum, connect, first_of, is_synced, segments
from embershard.store.wal import lost_commits

if TYPE_CHECKING:
    from embershard.collection import Collection
    from embershard.config import Config
    from embershard.engine.replica import Replica

logger = logging.getLogger(__name__)

_NEVER = 2**63 - 1
_CHUNK = 256
"""Entries that are read and told to the ranks together."""


def layout_of_log(folder: Path) -> dict[str, Any] | None:
    """The layout of the tables with which the log begins; None: there is no log.

    Raises:
        LogError: it can't be read.
    """
    found = segments(folder)
    if not found:
        return None
    with closing(connect_to_read(found[0])) as database:
        return _about(found[0], database).get("layout")


def replay(replica: Replica, folder: Path, config: Config) -> int:
    """Joint: applies what the log has after the replica's version; returns how many entries these were.

    Raises:
        LogError: on every rank: it is damaged, incomplete, or was written under other settings.
    """
    world = replica.engine.world
    records: Iterator[Record] = iter(())
    problem: Exception | None = None
    count = 0
    total = _last(folder) - replica.version if world.rank == 0 else 0
    if world.rank == 0:
        records = read(folder, replica.version, config)
    with tqdm(total=total, unit="entries", desc="replaying", delay=2, disable=world.rank != 0 or None) as progress:
        while True:
            mine: list[tuple[Entry, int]] = []
            try:
                mine = [(_entry(record, replica.collection), record.now_s) for record in islice(records, _CHUNK)]
            except LogError as error:
                problem = error
            told, failed = world.gather(([(entry.told(), now_s) for entry, now_s in mine], problem))[0]
            if failed:
                raise failed
            if not told:
                return count
            for entry, now_s in mine or told:
                replica.apply(entry, now_s, mine=world.rank == 0)
                progress.update()
            count += len(told)


def read(folder: Path, after: int, config: Config | None = None) -> Iterator[Record]:
    """The entries after a version, in their order; `config` is what they must have been written under.

    Raises:
        LogError: it is damaged, incomplete, or was written under other settings.
    """
    found = segments(folder)
    begin = max(bisect.bisect(found, after + 1, key=first_of) - 1, 0)  # the last file that begins in time
    version = after
    for path, following in zip(found[begin:], [*found[begin + 1 :], None], strict=bool(found)):
        if first_of(path) > version + 1:
            raise LogError(
                f"{folder}: the updates of versions {version + 1:,} to {first_of(path) - 1:,} are missing: the log "
                f"goes on with {path.name}; restore missing files or snapshots from a copy, or move {folder} away to "
                f"serve version {version:,}"
            )
        # What an earlier file has from there on couldn't be logged in full, and was refused.
        until = first_of(following) if following else _NEVER
        for record in _read_segment(path, version, until, config):
            version = record.version
            yield record


def _read_segment(path: Path, after: int, until: int, config: Config | None) -> Iterator[Record]:
    restore = f"restore it from a copy, or move {path.parent} away to serve version {after:,} without what came later"
    database = connect_to_read(path, restore)
    try:
        about, version = _about(path, database), after
        if not about:
            return
        rows = database.execute(
            "SELECT version, kind, now_s, request, checksum FROM entries WHERE version > ? AND version < ? "
            "ORDER BY version",
            [after, until],
        )
        for number, kind, now_s, request, known in rows:
            if version == after and config:
                _check_settings(path, about, config)
            if number != version + 1:
                raise LogError(f"{path}: version {version + 1:,} is missing, {number:,} follows; {restore}")
            record = _record(path, number, kind, now_s, request)
            if not isinstance(request, bytes) or checksum(record) != known:
                raise LogError(f"{path}: the update of version {number:,} is damaged: its checksum is wrong; {restore}")
            yield record
            version = number
    except sqlite3.Error as error:
        raise LogError(f"{path}: is damaged: {error}; {restore}") from error
    finally:
        database.close()


def _record(path: Path, version: int, kind: int, now_s: int, request: bytes) -> Record:
    try:
        return Record(version=version, kind=Kind(kind), now_s=now_s, request=request)
    except ValueError as error:
        raise LogError(
            f"{path}: version {version:,} has kind {kind}, which this release doesn't know; serve it with the release "
            "that wrote it"
        ) from error


def connect_to_read(path: Path, restore: str = "") -> sqlite3.Connection:
    """Opens a file of the log, which mends what a crash has left half written, and hides what else is wrong with it.

    Raises:
        LogError: it is no such file, is damaged before its end, or can't be opened; with what to do about it.
    """
    restore = restore or f"restore it from a copy, or move {path.parent} away"
    lost = lost_commits(path) if is_synced(path) else 0
    if lost > 1:
        raise LogError(f"{path}: {path.name}-wal is damaged: {lost - 1} acknowledged batches can't be read; {restore}")
    if lost:
        logger.warning(
            "%s: the last batch isn't whole, and is left out: the process ended while it was written, and then nobody "
            "was told of it; if the power or the disk failed, compare with a copy",
            path,
        )
    try:
        database = connect(path)
        database.execute("SELECT * FROM sqlite_schema").fetchall()
    except (sqlite3.Error, OSError) as error:
        raise LogError(f"{path}: can't be opened: {error}; {restore}") from error
    return database


def _about(path: Path, database: sqlite3.Connection) -> dict[str, Any]:
    """What a file says of itself; nothing, if a crash came before anything was in it."""
    try:
        if _is_empty(database):
            return {}
        ((text,),) = database.execute("SELECT value FROM about").fetchall() or ((f'{{"format": {FORMAT}}}',),)
        about: dict[str, Any] = json.loads(text)
        known = about.get("format")
    except (sqlite3.Error, ValueError, AttributeError) as error:
        raise LogError(f"{path}: is damaged: {error}; restore it from a copy, or move {path.parent} away") from error
    if known != FORMAT:
        raise LogError(f"{path}: has format {known}, and this release reads {FORMAT}")
    return about


def _is_empty(database: sqlite3.Connection) -> bool:
    return not database.execute("SELECT 1 FROM sqlite_schema").fetchall()


def _check_settings(path: Path, about: dict[str, Any], config: Config) -> None:
    """Other settings would make other rows of the same updates."""
    if lines := difference(json.loads(json.dumps(config.settings())), about.get("settings", {})):
        raise LogError(
            f"{path}: has updates that were acknowledged under other settings: {'; '.join(lines)}; start once with the "
            "old configuration and stop it, which writes a snapshot, and then change it"
        )


def _last(folder: Path) -> int:
    """The version of the last entry, or 0."""
    for path in reversed(segments(folder)):
        try:
            with closing(connect_to_read(path)) as database:
                ((last,),) = database.execute("SELECT max(version) FROM entries").fetchall()
        except (sqlite3.Error, LogError):  # whoever reads it tells what is wrong
            continue
        if last:
            return int(last)
    return 0


def _entry(record: Record, collection: Collection) -> Entry:
    try:
        return entry_of(record.kind, record.request, collection)
    except InvalidInput:  # it fits the tables as they are once entries before it are applied: it is prepared again
        return Entry(kind=record.kind, request=record.request, body=None, generation=-1)

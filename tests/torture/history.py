"""What callers have sent and were told, and what was on the disk whenever somebody looked."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from embershard.engine.pipeline import Record
from embershard.store.manifest import list_snapshots
from embershard.store.replay import read


@dataclass(frozen=True, kw_only=True, slots=True)
class Ack:
    """An update that was answered."""

    client: str
    sequence: int
    version: int
    duplicate: bool
    recent: bool
    """Whether it is so new that a duplicate must be told its very version."""
    sent: tuple[bytes, ...]
    """What was sent under this number; several, if a refusal may have come for what had been applied."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """A lookup that was answered."""

    version: int
    pinned: bool
    request: bytes
    response: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """What an operator has asked for, and was told to be there from a version on."""

    version: int
    request: bytes


class History:
    """Grows from many threads: lists are appended to, and taken away whole."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.acks: list[Ack] = []
        self.seen: list[Seen] = []
        self.done: list[Done] = []
        self.sent: set[bytes] = set()
        """Every update and every operator's request that was sent, answered or not."""
        self.failures: list[str] = []
        self.counts: Counter[str] = Counter()
        self.records: dict[int, Record] = {}
        """The log, by version."""
        self.last = 0
        self.snapshots: dict[int, Path] = {}
        """Copies of all that were complete, by version."""
        self._looks = 0

    def fail(self, message: str) -> None:
        """Something that must not be."""
        self.failures.append(message)

    def look(self, data: Path) -> None:
        """Copies what is on the disk while nothing moves; what was there before must be there, and the same."""
        self._looks += 1
        copy = self._folder / f"log-{self._looks}"
        if (data / "log").is_dir():
            shutil.copytree(data / "log", copy)
        for path in list_snapshots(data / "snapshots"):
            version = int(path.name)
            if version not in self.snapshots:
                self.snapshots[version] = self._folder / "snapshots" / path.name
                shutil.copytree(path, self.snapshots[version])
        # Now and then all that there is, else what is new, and a little of what isn't.
        after = 0 if self._looks % 10 == 0 else max(self.last - 50, 0)
        oldest = min((int(path.stem) for path in copy.glob("*.sqlite")), default=1)
        for record in read(copy, max(after, oldest - 1)):
            known = self.records.setdefault(record.version, record)
            if known != record and record.version <= self.last:
                self.fail(f"version {record.version} was {known.kind.name}, and now it is {record.kind.name}")
            self.records[record.version] = record
            self.last = max(self.last, record.version)
        shutil.rmtree(copy, ignore_errors=True)

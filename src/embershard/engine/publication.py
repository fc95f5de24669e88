"""Publications: what training jobs make, told apart by publisher and number, and which may follow which."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from embershard.errors import InvalidInput, SequenceGap
from embershard.v1 import embershard_pb2 as pb

if TYPE_CHECKING:
    from embershard.config import Config

MAX_NUMBER = 10**12 - 1
"""Largest number of a publication."""
MAX_FILES = 4096
"""Most files of one publication."""
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}")
"""Of a publisher, or a file: it leads nowhere else, and hides nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """The last publication that tables have."""

    publisher: str = ""
    """Who has made it; empty: nothing was published to them."""
    number: int = 0
    """Its number among its publisher's."""
    digest: str = ""
    """Of its files."""
    version: int = 0
    """The first that has it."""

    def __str__(self) -> str:
        return f"publication {self.number:,} of {self.publisher!r}" if self.publisher else "none"


@dataclass(frozen=True, kw_only=True, slots=True)
class Logged:
    """A publication whose files the log may need again."""

    version: int
    """The first that has it."""
    publisher: str
    """Who has made it."""
    number: int
    """Its number among its publisher's."""
    files: Sequence[str]
    """Their names."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StagedFile:
    """A file as its publisher has it."""

    name: str
    """In the folder of the publication."""
    size: int
    """In bytes."""
    sha256: str
    """In hexadecimal digits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Publication:
    """What is to be served."""

    publisher: str
    """Who has made it."""
    number: int
    """Its number among its publisher's, from 1 on."""
    delta: bool
    """Whether it is what has changed since the one before, and not all there is."""
    files: Sequence[StagedFile]
    """In the order of their names."""
    layout: str
    """Of the publisher's tables, as JSON."""

    def __str__(self) -> str:
        return f"publication {self.number:,} of {self.publisher!r}"

    @property
    def digest(self) -> str:
        """Tells its files from any others."""
        told = json.dumps([[file.name, file.size, file.sha256] for file in self.files])
        return hashlib.sha256(told.encode()).hexdigest()[:32]

    @property
    def bytes(self) -> int:
        """Of its files."""
        return sum(file.size for file in self.files)

    @property
    def rows(self) -> dict[str, int]:
        """{table: its rows}, as the publisher has them."""
        tables: dict[str, dict[str, Any]] = json.loads(self.layout)["tables"]
        return {name: int(table["rows"]) for name, table in tables.items()}

    def logged(self, version: int) -> Logged:
        """What is to be remembered of it while the log has it."""
        names = [file.name for file in self.files]
        return Logged(version=version, publisher=self.publisher, number=self.number, files=names)

    def published(self, version: int) -> Published:
        """What tables have once a version has it."""
        return Published(publisher=self.publisher, number=self.number, digest=self.digest, version=version)

    def follows(self, last: Published) -> bool:
        """Whether it may be served where `last` is the last publication; False: it is that one.

        Raises:
            SequenceGap: it builds on another, or is of other files than the one with its number.
        """
        if (last.publisher, last.number) == (self.publisher, self.number):
            if last.digest == self.digest:
                return False
            raise SequenceGap(
                f"{self} was made of other files than these, as version {last.version:,}; go on with number "
                f"{self.number + 1:,}"
            )
        if self.delta and (last.publisher, last.number) != (self.publisher, self.number - 1):
            raise SequenceGap(
                f"{self} is a delta and builds on publication {self.number - 1:,} of {self.publisher!r}, but the last "
                f"one that the service has is {last}: publish in full"
            )
        return True

    def check_rows(self, config: Config) -> None:
        """Whether tables have room for all rows that the publisher's have.

        Raises:
            InvalidInput: one has more there.
        """
        there = self.rows
        for table in config.tables:
            if (rows := there[table.name]) > table.rows:
                raise InvalidInput(
                    f"{self}: table {table.name!r} has grown to {rows:,} rows there, and has {table.rows:,} here: grow "
                    f"it first (`embershard grow --table {table.name} --rows {rows}`), or publish in full"
                )


def check_name(what: str, name: str) -> None:
    """Raises InvalidInput unless a folder or a file may be called so."""
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"{what} {name[:200]!r} must be of up to 128 letters, digits, '_', '.' and '-', and not begin with '.'"
        )


def check_number(number: int) -> None:
    """Raises InvalidInput unless a publication may have this number."""
    if not 1 <= number <= MAX_NUMBER:
        raise InvalidInput(f"number {number:,} of a publication must be from 1 to {MAX_NUMBER:,}")


def publication_of(request: pb.PublishRequest) -> Publication:
    """What a request asks for; the caller checks its layout.

    Raises:
        InvalidInput: a name, number or checksum that can't be.
    """
    check_name("publisher", request.publisher)
    check_number(request.number)
    if not 1 <= len(request.files) <= MAX_FILES:
        raise InvalidInput(f"a publication has from 1 to {MAX_FILES:,} files, not {len(request.files):,}")
    for file in request.files:
        check_name("file", file.name)
        if len(file.sha256) != hashlib.sha256().digest_size:
            raise InvalidInput(f"file {file.name!r}: sha256 has {len(file.sha256):,} bytes, not 32")
    names = sorted(file.name for file in request.files)
    if twice := [name for name, following in pairwise(names) if name == following]:
        raise InvalidInput(f"file {twice[0]!r} is named twice")
    files = [StagedFile(name=file.name, size=file.size, sha256=file.sha256.hex()) for file in request.files]
    return Publication(
        publisher=request.publisher,
        number=request.number,
        delta=request.delta,
        files=sorted(files, key=lambda file: file.name),
        layout=request.layout,
    )

"""What SQLite doesn't tell of a write-ahead log: whether there is more behind the place at which it stops to read.

SQLite reads such a file up to the first frame whose checksum is wrong, and takes that for the end that a crash has left
half written. But with every commit on the disk before the next begins, a crash leaves at most one unfinished. See
"WAL File Format" in SQLite's documentation (https://www.sqlite.org/fileformat2.html#walformat).
"""

from __future__ import annotations

import struct
from pathlib import Path

_HEADER, _FRAME = struct.Struct(">8I"), struct.Struct(">6I")
_BIG_ENDIAN = 0x377F0683
_PAGE_SIZE = 4096
"""SQLite's own, which the log has."""


def lost_commits(database: Path) -> int:
    """Commits at its end that SQLite won't find, as what there is of them is damaged.

    The last of them may be one that a crash has left unfinished, which nobody was told of; damage looks the same.
    """
    path = database.with_name(database.name + "-wal")
    if not path.is_file() or path.stat().st_size < _HEADER.size:
        return 0
    data = path.read_bytes()
    magic, _, page_size, _, *salt, _, _ = _HEADER.unpack_from(data)
    order = ">" if magic == _BIG_ENDIAN else "<"
    sums = _checksum(data[: _HEADER.size - 8], (0, 0), order)
    intact, lost = sums == _HEADER.unpack_from(data)[6:], 0
    if not intact:  # what it says of its frames can't be trusted
        page_size, salt = _PAGE_SIZE, [*_FRAME.unpack_from(data.ljust(_HEADER.size + _FRAME.size), _HEADER.size)[2:4]]
    size = _FRAME.size + page_size
    frames = [(at, *_FRAME.unpack_from(data, at)) for at in range(_HEADER.size, len(data) - size + 1, size)]
    while frames and [*frames[-1][3:5]] != salt:
        frames.pop()  # left from before the file was last begun anew
    for start, _, commit, *known_salt, first, second in frames:
        if intact:
            sums = _checksum(data[start : start + 8], sums, order)
            sums = _checksum(data[start + _FRAME.size : start + size], sums, order)
            intact = sums == (first, second) and known_salt == salt
        lost += bool(commit) and not intact
    return lost


def _checksum(data: bytes, sums: tuple[int, int], order: str) -> tuple[int, int]:
    first, second = sums
    for one, two in struct.iter_unpack(f"{order}2I", data):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + two + first) & 0xFFFFFFFF
    return first, second

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


def lost_commits(database: Path) -> int:
    """Commits that were finished, and that SQLite wouldn't find: 0 unless the log is damaged before its end."""
    path = database.with_name(database.name + "-wal")
    if not path.is_file() or path.stat().st_size < _HEADER.size:
        return 0
    data = path.read_bytes()
    magic, _, page_size, _, *salt, _, _ = _HEADER.unpack_from(data)
    order = ">" if magic == _BIG_ENDIAN else "<"
    sums = _checksum(data[: _HEADER.size - 8], (0, 0), order)
    intact, lost, size = sums == _HEADER.unpack_from(data)[6:], 0, _FRAME.size + page_size
    for start in range(_HEADER.size, len(data) - size + 1, size):
        _, commit, salt_1, salt_2, *known = _FRAME.unpack_from(data, start)
        if [salt_1, salt_2] != salt:
            break  # left from before the file was last begun anew
        if intact:
            sums = _checksum(data[start : start + 8], sums, order)
            sums = _checksum(data[start + _FRAME.size : start + size], sums, order)
            intact = list(sums) == known
        lost += bool(commit) and not intact
    return max(lost - 1, 0)  # the last may never have been acknowledged


def _checksum(data: bytes, sums: tuple[int, int], order: str) -> tuple[int, int]:
    first, second = sums
    for one, two in struct.iter_unpack(f"{order}2I", data):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + two + first) & 0xFFFFFFFF
    return first, second

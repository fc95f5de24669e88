"""The files of a snapshot that hold rows: one a rank, as torch.distributed.checkpoint's safetensors storage has them.

    8 bytes        length of the header
    header         JSON: {tensor: dtype, shape and place}, and of which row of the whole tensor each begins with
    rows           one tensor after the other, without holes

Written and read a slice at a time, which the library doesn't: it wants whole tensors in memory.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from embershard.errors import SnapshotError
from embershard.store.checksum import checksum_of
from embershard.store.manifest import RESTORE

if TYPE_CHECKING:
    from io import FileIO

    from numpy.typing import NDArray

    from embershard.engine.capture import Part, Slice

CHUNK_BYTES = 2 * 2**20
"""Read at a time."""
_LENGTH = struct.Struct("<Q")
_ALIGNED = 8
_LONGEST_HEADER = 100_000_000
"""As the library has it."""
_CODES = {"float32": "F32", "float16": "F16", "int32": "I32", "uint8": "U8"}
_DTYPES = {code: np.dtype(name).newbyteorder("<") for name, code in _CODES.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """Consecutive rows of one tensor in a file."""

    name: str
    """The tensor."""
    dtype: np.dtype[Any]
    """Of its numbers."""
    first: int
    """The row of the whole tensor with which it begins."""
    rows: int
    """How many they are."""
    shape: tuple[int, ...]
    """Of one row."""
    place: int
    """Where in the file they begin."""

    @property
    def row_bytes(self) -> int:
        """Of one row."""
        return math.prod(self.shape) * self.dtype.itemsize


def file_of_rank(rank: int) -> str:
    """The name of a rank's file."""
    return f"shard-{rank + 1:05d}-model-00001-of-00001.safetensors"


def is_row_file(name: str) -> bool:
    """Whether it holds rows."""
    return name.startswith("shard-")


class RowFile:
    """A file that is being written; slices come in the order of the parts."""

    def __init__(self, path: Path, parts: Sequence[Part]) -> None:
        self.checksums = {part.name: 0 for part in parts}
        """{tensor: of its rows so far}."""
        self._digest, self._bytes = hashlib.sha256(), 0
        self._file = path.open("wb", buffering=0)  # slices are large, and what can't be written is to be told at once
        self._write(_header(parts))

    def add(self, piece: Slice) -> None:
        """Writes the next slice."""
        rows = piece.rows.numpy()
        self._write(rows.reshape(-1).view(np.uint8).data)
        self.checksums[piece.name] += checksum_of(rows, piece.first)

    def finish(self) -> dict[str, Any]:
        """What a manifest says of it, once the disk has it."""
        os.fsync(self._file.fileno())
        self.close()
        return {"bytes": self._bytes, "sha256": self._digest.hexdigest()}

    def close(self) -> None:
        """Lets go of the file, whole or not."""
        self._file.close()

    def _write(self, data: bytes | memoryview) -> None:
        left = memoryview(data)
        while left:
            left = left[self._file.write(left) :]
        self._digest.update(data)
        self._bytes += len(data)


def _header(parts: Sequence[Part]) -> bytes:
    entries: dict[str, Any] = {}
    offsets: dict[str, Any] = {}
    start = 0
    for part in parts:
        if part.rows:
            stop = start + part.rows * part.row_bytes
            entries[part.name] = {
                "dtype": _CODES[str(part.dtype).removeprefix("torch.")],
                "shape": [part.rows, *part.shape],
                "data_offsets": [start, stop],
            }
            offsets[part.name] = {"saved_offsets": [part.first, *(0 for _ in part.shape)]}
            start = stop
    metadata = {"format": "pt", "DCP_VERSION": "1.0", "DCP_SHARDING_INFO": json.dumps(offsets)}
    text = json.dumps({"__metadata__": metadata, **entries}).encode()
    text += b" " * (-len(text) % _ALIGNED)
    return _LENGTH.pack(len(text)) + text


def pieces_of(path: Path) -> list[Piece]:
    """What a file holds, in the order of its bytes.

    Raises:
        SnapshotError: its header doesn't tell.
    """
    try:
        with path.open("rb") as file:
            (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
            told = json.loads(file.read(min(length, _LONGEST_HEADER)))
        offsets = json.loads(told.pop("__metadata__")["DCP_SHARDING_INFO"])
        begin = _LENGTH.size + length
        pieces = [_piece(name, entry, offsets[name]["saved_offsets"], begin) for name, entry in told.items()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, struct.error) as error:
        raise SnapshotError(f"{path}: its header can't be read ({type(error).__name__}: {error}); {RESTORE}") from error
    pieces.sort(key=lambda piece: (piece.place, piece.rows))
    borders = [begin, *(piece.place + piece.rows * piece.row_bytes for piece in pieces)]
    if [piece.place for piece in pieces] != borders[:-1] or borders[-1] != path.stat().st_size:
        raise SnapshotError(f"{path}: its header doesn't fit what follows it; {RESTORE}")
    return pieces


def _piece(name: str, entry: Mapping[str, Any], offsets: Sequence[int], begin: int) -> Piece:
    (rows, *shape), (start, stop) = entry["shape"], entry["data_offsets"]
    if any(offsets[1:]) or len(offsets) != 1 + len(shape) or not all(isinstance(size, int) for size in (rows, *shape)):
        raise ValueError(f"{name} is not cut by rows")
    piece = Piece(
        name=name,
        dtype=_DTYPES[entry["dtype"]],
        first=int(offsets[0]),
        rows=rows,
        shape=tuple(shape),
        place=begin + start,
    )
    if min(rows, *shape, piece.first, start) < 0 or stop - start != rows * piece.row_bytes:
        raise ValueError(f"{name} has another size than its shape")
    return piece


def read(
    path: Path, pieces: Sequence[Piece], wanted: Mapping[str, range], sha256: str | None = None
) -> Iterator[tuple[str, int, NDArray[Any]]]:
    """The rows of a file that are wanted, {tensor: rows}, a chunk at a time: tensor, number of the first, rows.

    With `sha256` all of the file is read, so that it is read but once; the end tells whether it is right. Rows are
    overwritten by the next.

    Raises:
        SnapshotError: the file is cut, or has another checksum.
    """
    digest = None if sha256 is None else hashlib.sha256()
    buffer = np.empty(max([CHUNK_BYTES, *(piece.row_bytes for piece in pieces)]), np.uint8)
    with path.open("rb", buffering=0) as file:
        if digest:
            digest.update(_fully(file, np.empty(pieces[0].place if pieces else path.stat().st_size, np.uint8)).data)
        for piece in pieces:
            whole = range(piece.first, piece.first + piece.rows)
            mine = _common(whole, wanted.get(piece.name, range(0)))
            spanned = whole if digest else mine
            step = max(1, CHUNK_BYTES // max(1, piece.row_bytes))
            for start in spanned[::step]:
                stop = min(start + step, spanned.stop)
                file.seek(piece.place + (start - piece.first) * piece.row_bytes)
                data = _fully(file, buffer[: (stop - start) * piece.row_bytes])
                if digest:
                    digest.update(data.data)
                if found := _common(range(start, stop), mine):
                    rows = data.view(piece.dtype).reshape(stop - start, *piece.shape)
                    yield piece.name, found.start, rows[found.start - start : found.stop - start]
    if digest and digest.hexdigest() != sha256:
        raise SnapshotError(f"{path.parent}: the checksum of {path.name} is wrong: it is damaged; {RESTORE}")


def _fully(file: FileIO, data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Fills it from the file."""
    left = data.data
    while left:
        count = file.readinto(left)
        if not count:
            raise SnapshotError(f"{file.name}: is shorter than its header says; {RESTORE}")
        left = left[count:]
    return data


def _common(a: range, b: range) -> range:
    start = max(a.start, b.start)
    return range(start, max(start, min(a.stop, b.stop)))

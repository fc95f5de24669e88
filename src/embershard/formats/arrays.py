"""numpy's own formats. Pickles, which could run code, are never read.

npy   one array [N, D] of floats; ids are row numbers
npz   the arrays `ids`, int64 [N] or unicode [N], and `vectors` [N, D]
"""

from __future__ import annotations

import zipfile
import zlib
from tokenize import TokenError
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from embershard.errors import InvalidInput
from embershard.formats.files import writing
from embershard.formats.vectors import Vectors, check_row_numbers, row_numbers

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

_DAMAGED: Final = (ValueError, TypeError, KeyError, SyntaxError, TokenError, EOFError, OverflowError)
"""What numpy raises of headers that are damaged or are none."""
_DAMAGED_ZIP: Final = (*_DAMAGED, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, OSError)
"""The last three: a way of compression that is unknown here, encryption, and a place before the file's begin."""


def read_npy(path: Path) -> Vectors:
    """A matrix; a header that says more or less than there is, is refused."""
    try:
        # Mapping compares the header with the file's size before any memory is taken.
        mapped = np.lib.format.open_memmap(path, mode="r")
    except _DAMAGED as error:
        raise InvalidInput(f"is no .npy file of numbers, or is damaged: {error}") from error
    if path.stat().st_size != mapped.offset + mapped.nbytes:
        raise InvalidInput(f"has more bytes than its header says, which are {mapped.dtype} of shape {mapped.shape}")
    array = np.array(mapped)  # a copy: a map would change with the file
    return Vectors.of(row_numbers(len(array) if array.ndim else 0), array)


def write_npy(path: Path, vectors: Vectors, *, overwrite: bool) -> None:
    """Needs ids that are row numbers."""
    check_row_numbers(vectors)
    with writing(path, overwrite=overwrite) as file:
        np.save(file, vectors.vectors_ND, allow_pickle=False)


def read_npz(path: Path) -> Vectors:
    """The arrays `ids` and `vectors`; others are not looked at."""
    with path.open("rb") as file:
        try:
            return Vectors.of(*_arrays_of(np.load(file, allow_pickle=False)))
        except InvalidInput:
            raise
        except _DAMAGED_ZIP as error:
            raise InvalidInput(f"is no .npz archive of numbers and strings, or is damaged: {error}") from error


def write_npz(path: Path, vectors: Vectors, *, overwrite: bool) -> None:
    """Strings take as much room as the longest of them; numpy would cut NULs off their ends, so they are refused."""
    if isinstance(vectors.ids, tuple):
        for at, key in enumerate(vectors.ids):
            if key.endswith("\0"):
                raise InvalidInput(f"ids[{at}] ends with NUL, which npz can't hold; write parquet or safetensors")
    with writing(path, overwrite=overwrite) as file:
        np.savez(file, ids=np.asarray(vectors.ids), vectors=vectors.vectors_ND)


def _arrays_of(archive: object) -> tuple[NDArray[Any], NDArray[Any]]:
    """`ids` and `vectors`."""
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise InvalidInput("is one array, no .npz archive; give format='npy'")
    if missing := {"ids", "vectors"} - set(archive.files):
        has = ", ".join(map(repr, archive.files[:20]))
        raise InvalidInput(f"has no array {min(missing)!r}; it has {has or 'none'}")
    found = archive["ids"], archive["vectors"]
    if not all(isinstance(array, np.ndarray) for array in found):  # numpy gives what has no header as bytes
        raise InvalidInput("has 'ids' or 'vectors' that are no arrays of numpy")
    return found

"""What every format reads and writes: vectors of ids, in memory. Shape suffixes: N vectors, D numbers each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from embershard.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

MUST_BE_FINITE: Final = "numbers must be finite, and within float32's range (±3.4e38)"
"""The end of a message about a number that isn't."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Vectors:
    """Vectors of ids, checked on construction; `Vectors.of` takes whatever can be converted.

    Raises:
        InvalidInput: no vectors, not one id a vector, an id twice, a number that is not finite, a string that is no
            text, other types or shapes. It names the row, counted from 0.
    """

    ids: NDArray[np.int64] | tuple[str, ...]
    """int64 [N], or N strings."""
    vectors_ND: NDArray[np.float32]
    """float32 [N, D], of at least one row and one column; perhaps read-only."""

    def __post_init__(self) -> None:
        _check_numbers(self.vectors_ND)
        _check_kind(self.ids)
        if len(self.ids) != len(self.vectors_ND):
            raise InvalidInput(f"there are {len(self.ids):,} ids for {len(self.vectors_ND):,} vectors")
        _check_once(self.ids)

    @classmethod
    def of(cls, ids: NDArray[Any] | Sequence[int] | Sequence[str], vectors: ArrayLike) -> Vectors:
        """Any integers that int64 holds or any strings, and what is an array [N, D] of float16, float32 or float64.

        Raises:
            InvalidInput: as on construction, or what float32 or int64 can't hold.
        """
        return cls(ids=_ids_of(ids), vectors_ND=_float32_of(vectors))

    def __len__(self) -> int:
        return len(self.vectors_ND)

    @property
    def dim(self) -> int:
        """D: numbers a vector."""
        return int(self.vectors_ND.shape[1])

    @property
    def texts(self) -> Sequence[str]:
        """The N ids as text: integers as decimal digits."""
        return self.ids if isinstance(self.ids, tuple) else list(map(str, self.ids.tolist()))


def row_numbers(count: int) -> NDArray[np.int64]:
    """int64 [N]: the ids of a format that holds none, 0 … N-1."""
    return np.arange(count, dtype=np.int64)


def check_row_numbers(vectors: Vectors) -> None:
    """Raises InvalidInput unless each id is its row's number, as a format without ids needs it."""
    if isinstance(vectors.ids, np.ndarray):
        wrong = vectors.ids != row_numbers(len(vectors))
        if not wrong.any():
            return
        at = int(wrong.argmax())
    else:
        at = 0
    raise InvalidInput(
        f"ids[{at}] is {_shown(vectors.ids[at])}, but this format has no place for ids: there they must be 0 … "
        f"{len(vectors) - 1:,} in order; write npz, parquet or safetensors instead"
    )


def first_not_finite(numbers_ND: NDArray[np.float32]) -> tuple[int, int] | None:
    """Row and column of the first number that is NaN or infinite."""
    bad_ND = ~np.isfinite(numbers_ND)
    if not bad_ND.any():
        return None
    row, column = np.unravel_index(int(bad_ND.argmax()), bad_ND.shape)
    return int(row), int(column)


def _float32_of(given: ArrayLike) -> NDArray[np.float32]:
    try:
        numbers = np.asarray(given)
    except (TypeError, ValueError, RuntimeError) as error:  # ragged lists; a torch tensor that needs gradients
        raise InvalidInput(f"the vectors are no array: {error}") from error
    if numbers.dtype.kind != "f":
        raise InvalidInput(f"the vectors are {numbers.dtype}; they must be float16, float32 or float64")
    with np.errstate(over="ignore"):  # an overflow becomes infinite, and is found so
        made = np.ascontiguousarray(numbers, np.float32)
    if made.ndim == numbers.ndim == 2 and (at := first_not_finite(made)) is not None:
        raise InvalidInput(f"vectors[{at[0]}, {at[1]}] is {numbers[at]}; {MUST_BE_FINITE}")
    return made.reshape(numbers.shape)  # numpy has made one dimension of none


def _check_numbers(numbers: NDArray[np.float32]) -> None:
    if not isinstance(numbers, np.ndarray) or numbers.dtype != np.float32:
        kind = numbers.dtype if isinstance(numbers, np.ndarray) else type(numbers).__name__
        raise InvalidInput(f"the vectors are {kind}, not an array of float32: Vectors.of converts other floats")
    if numbers.ndim != 2:
        raise InvalidInput(f"the vectors have the shape {numbers.shape}; it must be [N, D], a row for each id")
    if not numbers.size:
        raise InvalidInput(f"there are {len(numbers):,} vectors of {numbers.shape[1]:,} numbers; give at least one")
    if (at := first_not_finite(numbers)) is not None:
        raise InvalidInput(f"vectors[{at[0]}, {at[1]}] is {numbers[at]}; {MUST_BE_FINITE}")


def _ids_of(ids: NDArray[Any] | Sequence[int] | Sequence[str]) -> NDArray[np.int64] | tuple[str, ...]:
    if isinstance(ids, np.ndarray) and ids.dtype.kind in "UO" and ids.ndim == 1:
        ids = ids.tolist()
    if isinstance(ids, (list, tuple)) and any(isinstance(key, str) for key in ids):
        return tuple(ids)
    try:
        array = np.asarray(ids)
    except ValueError as error:  # ragged lists
        raise InvalidInput(f"the ids are no array: {error}") from error
    if array.size == 0:
        return np.empty(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InvalidInput(
            f"the ids are {array.dtype} of shape {array.shape}; they must be N strings, or N integers within int64"
        )
    if array.dtype.kind == "u" and array.max() > np.iinfo(np.int64).max:
        at = int((array > np.iinfo(np.int64).max).argmax())
        raise InvalidInput(f"ids[{at}] is {array[at]}, which is beyond int64; give such ids as strings")
    return np.ascontiguousarray(array, np.int64)


def _check_kind(ids: NDArray[np.int64] | tuple[str, ...]) -> None:
    if isinstance(ids, np.ndarray):
        if ids.dtype != np.int64 or ids.ndim != 1:
            raise InvalidInput(f"the ids are {ids.dtype} of shape {ids.shape}, not int64 [N]: Vectors.of converts them")
        return
    if not isinstance(ids, tuple):
        raise InvalidInput(f"the ids are {type(ids).__name__}, not int64 [N] or a tuple: Vectors.of converts them")
    for at, key in enumerate(ids):
        if not isinstance(key, str):
            raise InvalidInput(f"ids[{at}] is {key!r}; ids are all strings or all integers")
        if not (key.isascii() or _is_text(key)):
            raise InvalidInput(f"ids[{at}] is {_shown(key)}, which is no text: it has a lone surrogate")


def _is_text(key: str) -> bool:
    try:
        key.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_once(ids: NDArray[np.int64] | tuple[str, ...]) -> None:
    if len(np.unique(ids) if isinstance(ids, np.ndarray) else set(ids)) == len(ids):
        return
    seen: dict[int | str, int] = {}
    for at, key in enumerate(ids if isinstance(ids, tuple) else ids.tolist()):
        if (first := seen.setdefault(key, at)) != at:
            raise InvalidInput(f"ids[{at}] is {_shown(key)}, and so is ids[{first}]; an id has one vector")


def _shown(key: object) -> str:
    """An id as a message shows it: a long one cut."""
    text = repr(key) if isinstance(key, str) else str(key)
    return text if len(text) <= 60 else f"{text[:60]}…"

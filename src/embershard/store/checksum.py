"""Checksums of rows that don't depend on how rows are cut: those of all parts of a tensor add up to that of the whole.

Each row is hashed with its number, and the hashes are summed modulo 2^64: so a row that has changed, or has changed
places with another, makes another sum. It is for damage and mistakes: whoever wants to can make two tensors alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from embershard.ids import mix64

if TYPE_CHECKING:
    from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_WHOLE = 2**64
_NUMBERS = 2**17
"""Numbers that are hashed at a time, as hashing takes many times the memory of a row of one byte."""


def checksum_of(rows: NDArray[Any], first: int) -> int:
    """Of consecutive rows [n] or [n, D], the first of which is row `first` of its tensor; contiguous."""
    if not rows.size:
        return 0
    bits_ND = rows.view(f"u{rows.itemsize}").reshape(len(rows), -1)
    step = max(1, _NUMBERS // bits_ND.shape[1])
    return sum(_sum(bits_ND[start : start + step], first + start) for start in range(0, len(rows), step)) % _WHOLE


def total(checksums: Iterable[int]) -> str:
    """What the parts add up to, as a manifest writes it."""
    return f"{sum(checksums) % _WHOLE:016x}"


def _sum(bits_ND: NDArray[Any], first: int) -> int:
    # As factors are odd, a change of one number always shows; that of several does but by the rarest chance.
    hashed_N = np.einsum("nd,d->n", bits_ND.astype(np.uint64), _factors(bits_ND.shape[1]))
    numbers_N = np.arange(first + 1, first + 1 + len(bits_ND), dtype=np.uint64)
    return int(mix64(hashed_N + numbers_N * _GOLDEN).sum(dtype=np.uint64))


@cache
def _factors(count: int) -> NDArray[np.uint64]:
    return mix64(np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN) | np.uint64(1)

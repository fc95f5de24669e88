"""A map from numbers to slots that forgets in place: FBGEMM's `pruned_hashmap`, swept as it is used.

FBGEMM's map (open addressing, linear probing; 30 to 60 ns a number) can't forget. Here a number that is forgotten leads
to no slot, and places of such numbers are won back by going round the table, a few places with every insertion: no
second table is ever filled, and nobody waits for a rebuild. Going round is sound as of all numbers between two empty
places none belongs elsewhere: these places are emptied, and the numbers that still lead to a slot put in again.

Shape suffixes: n numbers, P places.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import fbgemm_gpu  # noqa: F401  # its operators
import numpy as np
import torch
from torch import Tensor

from embershard.arrays import tensor_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

_lookup = torch.ops.fbgemm.pruned_hashmap_lookup.default
_insert = torch.ops.fbgemm.pruned_hashmap_insert.default

EMPTY = -1
"""What FBGEMM's map has where there is no number, and what it says of a number that it doesn't have."""
_FORGOTTEN = -2
"""Where a number leads that was forgotten."""
PLACES = 2
"""Places a slot: living numbers take half at most, and forgotten ones no more than an eighth."""
_SPARE = 64
"""Places besides."""
_SWEPT = 8
"""Places to be swept for each number that was forgotten."""
_SWEPT_MOST, _SWEPT_LEAST = 12, 1024
"""Places to be swept at most for each number that is added; and at least, whenever any are."""
_MARGIN = 64
"""Places within which there will be an empty one."""


class Hints:
    """Numbers of 32 or 64 bits, all but `EMPTY`, each with a slot."""

    def __init__(self, capacity: int, kind: type[np.int32] | type[np.int64]) -> None:
        self._kind = kind
        self._places = PLACES * capacity + _SPARE
        self._table_P2 = np.full((self._places, 2), EMPTY, kind)
        self._tensor_P2, self._whole = torch.from_numpy(self._table_P2), torch.tensor([0, self._places])
        self._swept = self._due = self._earned = 0
        """The place to go on at, how many are to be swept, and how many of those before any number is added."""
        self._least = min(_SWEPT_LEAST, self._places // 8)
        self._filled = 0
        """Places that aren't empty."""

    @property
    def bytes(self) -> int:
        """Memory that it takes."""
        return self._table_P2.nbytes

    def find(self, numbers_n: NDArray[Any]) -> NDArray[Any]:
        """The slot of each, or something negative."""
        every = _all(len(numbers_n), self._kind is np.int64)
        slots: Tensor = _lookup(tensor_of(numbers_n), every, self._tensor_P2, self._whole)
        return np.asarray(slots.numpy())

    def add(self, numbers_n: NDArray[Any], slots_n: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Adds those of some numbers that have no slot yet, of equal ones one; returns which."""
        self._earned = min(self._earned + _SWEPT_MOST * len(numbers_n), self._due)
        if self._filled + len(numbers_n) >= self._places:  # FBGEMM would look for an empty place for ever
            self._sweep(self._places)
        elif self._earned >= self._least:
            self._sweep(self._earned)
        found_n = self.find(numbers_n)
        fresh_n = (found_n < 0) & (numbers_n != EMPTY)
        if fresh_n.all():
            self.lead(numbers_n, slots_n)
        else:
            self.lead(numbers_n[fresh_n], slots_n[fresh_n])
        ascending_n = np.sort(numbers_n)
        if (ascending_n[1:] != ascending_n[:-1]).all():
            added_n = np.asarray(fresh_n)
        else:
            added_n = np.asarray(fresh_n & (self.find(numbers_n) == slots_n))
        self._filled += int(np.count_nonzero(added_n & (found_n == EMPTY)))  # others have the place they had
        return added_n

    def lead(self, numbers_n: NDArray[Any], slots_n: NDArray[Any]) -> None:
        """Has numbers lead to these slots from now on, of equal ones the last; there must be a place for each."""
        _insert(
            tensor_of(numbers_n),
            torch.from_numpy(slots_n.astype(self._kind, copy=False)),
            _all(len(numbers_n), self._kind is np.int64),
            self._tensor_P2,
            self._whole,
        )

    def forget(self, numbers_n: NDArray[Any]) -> None:
        """Takes their slots from numbers that have one."""
        self.lead(numbers_n, np.full(len(numbers_n), _FORGOTTEN, self._kind))
        self._due = min(self._due + _SWEPT * len(numbers_n), self._places)

    def _sweep(self, count: int) -> None:
        """Wins back places of forgotten numbers, from an empty place to another, going on by so many at least."""
        between = self._around(*self._between_empty(count))
        pairs_n2 = self._table_P2[between]
        if forgotten := int(np.count_nonzero((pairs_n2[:, 1] == _FORGOTTEN) & (pairs_n2[:, 0] != EMPTY))):
            self._filled -= forgotten
            numbers_n, slots_n = np.ascontiguousarray(pairs_n2[pairs_n2[:, 1] >= 0].T)
            self._table_P2[between] = EMPTY
            self.lead(numbers_n, slots_n)
        self._due, self._earned = max(0, self._due - count), 0

    def _between_empty(self, count: int) -> tuple[int, int]:
        """Where to sweep: from the last empty place up to where it goes on, to the first one after so many."""
        margin = _MARGIN
        while count + 2 * margin < self._places:
            begin, end = self._swept - margin, self._swept + count + margin
            empty_n = self._table_P2[self._around(begin, end), 0] == EMPTY
            before_n, after_n = empty_n[margin::-1], empty_n[margin + count :]
            first, last = int(before_n.argmax()), int(after_n.argmax())
            if before_n[first] and after_n[last]:
                begin, end = self._swept - first, self._swept + count + last
                self._swept = end % self._places
                return begin, end
            margin *= 2
        begin = int((self._table_P2[:, 0] == EMPTY).argmax())
        return begin, begin + self._places

    def _around(self, begin: int, end: int) -> slice | NDArray[np.int64]:
        """Places in order, the first after the last."""
        if begin >= 0 and end <= self._places:
            return slice(begin, end)
        return np.arange(begin, end) % self._places


@functools.lru_cache(maxsize=256)
def _all(count: int, wide: bool) -> Tensor:
    """Offsets that say: one table, all of it."""
    return torch.tensor([0, count], dtype=torch.int64 if wide else torch.int32)

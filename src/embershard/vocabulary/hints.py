"""A map from numbers to slots that forgets in place: FBGEMM's `pruned_hashmap`, swept as it is used.

FBGEMM's map (open addressing, linear probing; 30 to 60 ns a number) can't forget. Here a number that is forgotten leads
to no slot, and places of such numbers are won back by going round the table, a few places with every insertion: no
second table is ever filled, and nobody waits for a rebuild. Going round is sound as of all numbers between two empty
places none belongs elsewhere: these places are emptied, and the numbers that still lead to a slot put in again.

Shape suffixes: n numbers, P places.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import fbgemm_gpu  # noqa: F401  # its operators
import numpy as np
import torch
from torch import Tensor

from embershard.arrays import tensor_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

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
_SWEPT_MOST, _SWEPT_LEAST = 16, 256
"""Places to be swept at most with each number that is added; and with each addition."""
_MARGIN = 64
"""Places within which there will be an empty one."""


class Hints:
    """Numbers of 32 or 64 bits, all but `EMPTY`, each with a slot."""

    def __init__(self, capacity: int, kind: type[np.int32] | type[np.int64]) -> None:
        self._kind = kind
        self._places = PLACES * capacity + _SPARE
        self._table_P2 = np.full((self._places, 2), EMPTY, kind)
        self._tensor_P2, self._whole = torch.from_numpy(self._table_P2), torch.tensor([0, self._places])
        self._swept = self._due = 0
        """The place to go on at, and how many are to be swept."""

    @property
    def bytes(self) -> int:
        """Memory that it takes."""
        return self._table_P2.nbytes

    def find(self, numbers_n: NDArray[Any]) -> NDArray[Any]:
        """The slot of each, or something negative."""
        slots: Tensor = torch.ops.fbgemm.pruned_hashmap_lookup(
            tensor_of(numbers_n), self._all(numbers_n), self._tensor_P2, self._whole
        )
        return np.asarray(slots.numpy())

    def add(self, numbers_n: NDArray[Any], slots_n: NDArray[Any]) -> NDArray[np.bool_]:
        """Adds numbers that have no slot yet; returns which: of equal ones it is one."""
        self._sweep(min(self._due, _SWEPT_MOST * len(numbers_n) + _SWEPT_LEAST))
        slots_n = slots_n.astype(self._kind)
        fresh_n = (self.find(numbers_n) < 0) & (numbers_n != EMPTY)
        if fresh_n.all():
            self.lead(numbers_n, slots_n)
        else:
            self.lead(numbers_n[fresh_n], slots_n[fresh_n])
        return np.asarray(self.find(numbers_n) == slots_n)

    def lead(self, numbers_n: NDArray[Any], slots_n: NDArray[Any]) -> None:
        """Has numbers lead to these slots from now on, of equal ones the last; there must be a place for each."""
        torch.ops.fbgemm.pruned_hashmap_insert(
            tensor_of(numbers_n),
            tensor_of(slots_n.astype(self._kind, copy=False)),
            self._all(numbers_n),
            self._tensor_P2,
            self._whole,
        )

    def forget(self, numbers_n: NDArray[Any]) -> None:
        """Takes their slots from numbers that have one."""
        self.lead(numbers_n, np.full(len(numbers_n), _FORGOTTEN, self._kind))
        self._due = min(self._due + _SWEPT * len(numbers_n), self._places)

    def _all(self, numbers_n: NDArray[Any]) -> Tensor:
        """Offsets that say: one table, all of it."""
        return torch.from_numpy(np.array([0, len(numbers_n)], self._kind))

    def _sweep(self, count: int) -> None:
        """Wins back places of forgotten numbers, from an empty place to another, going on by so many at least."""
        if not count:
            return
        between = self._between_empty(count)
        pairs_n2 = self._table_P2[between]
        if (pairs_n2[:, 1] == _FORGOTTEN).any():
            self._table_P2[between] = EMPTY
            numbers_n, slots_n = pairs_n2[pairs_n2[:, 1] >= 0].T
            self.lead(np.ascontiguousarray(numbers_n), np.ascontiguousarray(slots_n))
        self._due -= count

    def _between_empty(self, count: int) -> NDArray[np.int64]:
        """Places from the last empty one before those that are next to the first one after them, in order."""
        margin = _MARGIN
        while count + 2 * margin < self._places:
            around = np.arange(self._swept - margin, self._swept + count + margin) % self._places
            empty = np.flatnonzero(self._table_P2[around, 0] == EMPTY)
            first = int(np.searchsorted(empty, margin, side="right")) - 1
            last = int(np.searchsorted(empty, margin + count))
            if first >= 0 and last < len(empty):
                self._swept = int(around[empty[last]])
                return np.asarray(around[empty[first] : empty[last]])
            margin *= 2
        begin = int(np.argmax(self._table_P2[:, 0] == EMPTY))
        return np.arange(begin, begin + self._places) % self._places

"""What is known by slot, in as few bytes as it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Slots = NDArray[np.int64] | NDArray[np.bool_] | slice

MOST = 2**32 - 1
"""The largest number that is told from others; a count goes no further."""
_KEPT = 2**31
"""Steps before the last that are told apart at least."""


def within(numbers_n: NDArray[np.int64]) -> NDArray[np.int64]:
    """The same, but 0 for what is less, and `MOST` for what is more."""
    return np.asarray(np.minimum(np.maximum(numbers_n, 0), MOST))


class Steps:
    """A step a slot, in 32 bits: steps more than 2^31 before the last may count as the same."""

    def __init__(self, capacity: int) -> None:
        self.ranks = np.zeros(capacity, np.uint32)
        """In the order of the steps."""
        self._first = 0
        """The step of rank 0."""

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""
        return self.ranks.nbytes

    def reach(self, step: int) -> bool:
        """Makes room for steps up to this one, before any is set; returns whether the oldest are another now."""
        if step - self._first <= MOST:
            return False
        by = step - _KEPT - self._first
        self._first += by
        self.ranks -= np.minimum(self.ranks, min(by, MOST))
        return True

    def rank(self, step: int) -> int:
        """The rank of a step."""
        return max(step - self._first, 0)

    def __getitem__(self, slots_n: Slots) -> NDArray[np.int64]:
        return self.ranks[slots_n].astype(np.int64) + self._first

    def __setitem__(self, slots_n: Slots, steps_n: NDArray[np.int64] | int) -> None:
        if isinstance(steps_n, int):
            self.ranks[slots_n] = self.rank(steps_n)
        else:
            self.ranks[slots_n] = within(steps_n - self._first)


class Seldom:
    """A value a slot, nearly always the usual one: it takes no memory before another comes."""

    def __init__(self, capacity: int, usual: bool | None, kind: type[np.bool_] | type[np.object_]) -> None:
        self.values: NDArray[Any] = np.broadcast_to(np.array(usual, kind), capacity)
        """By slot; to be read only."""
        self.ever = False
        """Whether another than the usual has ever come."""
        self._usual = usual

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""
        return self.values.nbytes if self.ever else 0

    def copy(self) -> NDArray[Any]:
        """The values as they are now, by slot; to be read only."""
        return self.values.copy() if self.ever else self.values

    def __getitem__(self, slots_n: Slots) -> NDArray[Any]:
        return self.values[slots_n]

    def __setitem__(self, slots_n: Slots, values_n: NDArray[Any] | Sequence[Any] | bool | None) -> None:
        if not self.ever:
            if values_n is self._usual or not np.any(np.asarray(values_n, self.values.dtype) != self._usual):
                return
            self.values, self.ever = self.values.copy(), True
        self.values[slots_n] = values_n

"""Which slots are free; the lowest are given first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


class FreeSlots:
    """Those of an index: 0 ≤ slot."""

    def __init__(self, kind: type[np.int32] | type[np.int64]) -> None:
        self._kind = kind
        self._begun = 0
        """No slot from here on has ever been taken."""
        self._runs: list[NDArray[Any]] = []
        """Slots that were given back, ascending in each run; each run is at least twice as long as the next."""

    @property
    def bytes(self) -> int:
        """Memory that it takes."""
        return sum(run.nbytes for run in self._runs)

    @property
    def taken(self) -> int:
        """How many aren't free."""
        return self._begun - sum(len(run) for run in self._runs)

    def take(self, count: int) -> NDArray[np.int64]:
        """So many, ascending."""
        again_n = np.empty(0, self._kind)
        if self._runs:
            again_n = np.sort(np.concatenate([run[:count] for run in self._runs]), kind="stable")[:count]
        if len(again_n):
            self._runs = [run[np.searchsorted(run, again_n[-1], side="right") :] for run in self._runs]
            self._runs = [run for run in self._runs if len(run)]
        begin, self._begun = self._begun, self._begun + count - len(again_n)
        return np.concatenate([again_n.astype(np.int64), np.arange(begin, self._begun)])

    def give_back(self, slots_n: NDArray[np.int64]) -> None:
        """Slots that were taken."""
        run = np.sort(slots_n.astype(self._kind))
        while self._runs and 2 * len(run) > len(self._runs[-1]):
            run = np.sort(np.concatenate([self._runs.pop(), run]), kind="stable")  # stable is fast where parts ascend
        self._runs.append(run)

    def restore(self, used: NDArray[np.bool_]) -> None:
        """Slots as they are used up to the last one that is."""
        self._begun = len(used)
        self._runs = [np.flatnonzero(~used).astype(self._kind)]

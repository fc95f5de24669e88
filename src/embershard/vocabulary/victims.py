"""The least frequent of many residents, without looking at all of them for each that must leave."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embershard.vocabulary.residents import Residents

_RANKED_LEAST, _RANKED_PART = 4096, 16
"""A ranking has that part of all slots, at least so many: it costs a pass over all, so it must last for a while."""
_NOTED_LEAST, _NOTED_PART = 1024, 4
"""Those noted later may be that part of the ranking, at least so many; each search goes through them."""
_ENDLESS = (np.iinfo(np.int64).max,) * 3

# Residents are columns of an array: count, step and slot of each, as they were when it was ranked or noted.


class Victims:
    """Ranks residents by (count, step of the last sighting, slot), lowest first.

    As long as an id has its row, both numbers only grow. So nobody falls below the horizon of a ranking unnoticed: all
    who are within it are known if those are noted who come, or are sighted.
    """

    def __init__(self, held: Residents) -> None:
        self._held = held
        self.reset()

    def reset(self) -> None:
        """Forgets the ranking, as more residents may be evicted than before."""
        self._lowest = self._rest = self._noted = np.empty((3, 0), np.int64)
        # The ranking ascends: first the lowest, which have been looked at; then the rest. The noted come in any order.
        self._horizon: tuple[int, ...] | None = None

    def note(self, slots_n: NDArray[np.int64]) -> None:
        """Tells of slots whose resident is new, or was sighted."""
        if self._horizon is None:
            return
        noted = self._residents(slots_n)
        if not (within_n := _at_most(noted, self._horizon)).any():
            return
        self._noted = np.concatenate([self._noted, noted[:, within_n]], axis=1)
        most = max(_NOTED_LEAST, self._rest.shape[1] // _NOTED_PART)
        if self._noted.shape[1] > most:
            self._noted = self._unchanged(self._noted)
            if self._noted.shape[1] > most:
                self.reset()

    def lowest(self, need: int, step: int) -> NDArray[np.int64]:
        """The slots of the `need` lowest that are neither pinned nor sighted in this step, or of all of those."""
        if self._horizon is None:
            self._rank(need, step)
        found = self._find(need, step)
        if len(found) < need and self._horizon != _ENDLESS:
            self._rank(need, step)
            found = self._find(need, step)
        return found

    def _find(self, need: int, step: int) -> NDArray[np.int64]:
        self._lowest = self._unchanged(self._lowest)
        while (missing := need - self._lowest.shape[1]) > 0 and self._rest.shape[1]:
            some, self._rest = np.split(self._rest, [2 * missing + 32], axis=1)
            self._lowest = np.concatenate([self._lowest, self._unchanged(some)], axis=1)
        found = self._lowest[:, :need]
        self._noted = self._unchanged(self._noted)
        noted = self._noted[:, self._noted[1] < step]
        if need and missing <= 0:
            noted = noted[:, _at_most(noted, found[:, -1])]
        if noted.shape[1]:
            found = _ascending(np.concatenate([found, noted], axis=1))[:, :need]
        return np.asarray(found[2])

    def _rank(self, need: int, step: int) -> None:
        """Ranks the lowest of all, some more than are needed now."""
        held, now = self._held, self._held.steps.rank(step)
        wanted = max(_RANKED_LEAST, held.index.capacity // _RANKED_PART, 2 * need)
        slots = np.flatnonzero(held.may_leave() & (held.steps.ranks < now))
        self.reset()
        self._horizon = _ENDLESS
        if len(slots) > wanted:
            lower = []
            for numbers in (held.counts, held.steps.ranks):
                of_slots = numbers[slots]
                border = np.partition(of_slots, wanted - 1)[wanted - 1]
                lower.append(slots[of_slots < border])
                slots, wanted = slots[of_slots == border], wanted - len(lower[-1])
            slots = np.concatenate([*lower, slots[:wanted]])
            self._horizon = tuple(self._residents(slots[-1:])[:, 0].tolist())
        self._rest = _ascending(self._residents(slots))
        sighted = self._residents(np.flatnonzero(held.steps.ranks == now))  # they may leave from the next step on
        self._noted = sighted[:, _at_most(sighted, self._horizon)]

    def _residents(self, slots_n: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.array([self._held.counts[slots_n], self._held.steps[slots_n], slots_n])

    def _unchanged(self, ranked: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those who still have their row, may lose it, and weren't sighted since; others never will be that again."""
        held, (count, step, slot) = self._held, ranked
        unchanged = (held.counts[slot] == count) & (held.steps[slot] == step)
        return ranked[:, unchanged & held.index.used_at(slot) & ~held.pinned[slot]]


def _at_most(ranked: NDArray[np.int64], most: tuple[int, ...] | NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether they rank as this one or before it."""
    count, step, slot = ranked
    before = (count < most[0]) | ((count == most[0]) & ((step < most[1]) | ((step == most[1]) & (slot <= most[2]))))
    return np.asarray(before, np.bool_)


def _ascending(ranked: NDArray[np.int64]) -> NDArray[np.int64]:
    return ranked[:, np.lexsort((ranked[2], ranked[1], ranked[0]))]

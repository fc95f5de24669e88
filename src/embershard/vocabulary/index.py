"""Finds the slot of a 64-bit key among many, fast.

The map is FBGEMM's `pruned_hashmap` (open addressing; 30 to 60 ns a key), which neither forgets a key nor grows. So
what it says is only a hint: the truth is in the array of keys by slot, and a key is found where the hint leads to a
slot that still has this key. Keys that have left stay behind in the map, until there are too many of them: then the
next map is filled beside it, a few slots with every insertion, so that nobody waits for a rebuild.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import fbgemm_gpu  # noqa: F401  # its operators
import numpy as np
import torch
from torch import Tensor

from embershard.arrays import tensor_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

_EMPTY = -1
"""What FBGEMM's map has where there is no key; the key of this value is kept aside."""
_PLACES = 4
"""Places in the map a slot: living keys take a quarter at most, and all three fifths, unless batches are huge."""
_FULL = 2
"""Entries a slot, living or not, from which on the next map is filled."""
_CLEARED, _CLEARED_LEAST = 32, 8192
"""Places of the next map that are cleared with each key that is inserted; and with each insertion, at least."""
_MOVED, _MOVED_LEAST = 4, 1024
"""Slots that are moved to the next map, once it is clear, with each key; and with each insertion, at least."""


class KeyIndex:
    """Slots 0 ≤ slot < capacity, each free or with a key that no other slot has."""

    def __init__(self, capacity: int) -> None:
        self.keys = np.full(capacity, _EMPTY)
        """The key of each slot that is used; of all others `_EMPTY`, which no hint leads to."""
        self.used = np.zeros(capacity, np.bool_)
        """Whether a slot has a key."""
        self._free = _FreeSlots()
        self._map = _Map(capacity)
        self._map.clear(self._map.places)
        self._next: _Map | None = None
        self._moved = 0
        self._aside = -1

    def __len__(self) -> int:
        return self._free.taken

    @property
    def capacity(self) -> int:
        """Slots."""
        return len(self.keys)

    @property
    def free(self) -> int:
        """Slots without a key."""
        return self.capacity - len(self)

    @property
    def bytes(self) -> int:
        """Memory that it takes while no next map is filled."""
        return self.keys.nbytes + self.used.nbytes + self._map.bytes

    def find(self, keys_n: NDArray[np.int64]) -> NDArray[np.int64]:
        """The slot of each key, or -1."""
        slots_n = self._map.hints(keys_n)
        if self._aside >= 0:
            slots_n[keys_n == _EMPTY] = self._aside
        np.putmask(slots_n, self.keys.take(slots_n, mode="clip") != keys_n, -1)
        return slots_n

    def put(self, keys_n: NDArray[np.int64]) -> NDArray[np.int64]:
        """Gives distinct keys that aren't there the lowest free slots, in order; there must be enough."""
        assert len(keys_n) <= self.free
        slots_n = self._free.take(len(keys_n))
        if len(keys_n):
            self._place(keys_n, slots_n)
        return slots_n

    def remove(self, slots_n: NDArray[np.int64]) -> None:
        """Frees slots that are used."""
        if not len(slots_n):
            return
        self.keys[slots_n], self.used[slots_n] = _EMPTY, False
        if self._aside >= 0 and not self.used[self._aside]:
            self._aside = -1
        self._free.give_back(slots_n)

    def restore(self, keys_n: NDArray[np.int64], slots_n: NDArray[np.int64]) -> None:
        """Fills an index that is empty: these keys have had these slots."""
        assert len(self) == 0
        self._place(keys_n, slots_n)
        self._free.restore(self.used[: slots_n.max(initial=-1) + 1])

    def _place(self, keys_n: NDArray[np.int64], slots_n: NDArray[np.int64]) -> None:
        self.keys[slots_n], self.used[slots_n] = keys_n, True
        self._insert(self._map, keys_n, slots_n)
        if self._next is None and self._map.entries > _FULL * self.capacity:
            self._next, self._moved = _Map(self.capacity), 0
        if self._next is not None:
            if self._next.is_clear:
                self._insert(self._next, keys_n, slots_n)
            self._continue(len(keys_n))

    def _insert(self, into: _Map, keys_n: NDArray[np.int64], slots_n: NDArray[np.int64]) -> None:
        aside_n = keys_n == _EMPTY
        if aside_n.any():
            self._aside = int(slots_n[aside_n][0])
            keys_n, slots_n = keys_n[~aside_n], slots_n[~aside_n]
        into.insert(keys_n, slots_n)

    def _continue(self, inserted: int) -> None:
        """Clears or fills the next map some more; once it has the keys of all slots, it is the map."""
        assert self._next is not None
        if not self._next.clear(_CLEARED * inserted + _CLEARED_LEAST):
            return
        begin, self._moved = self._moved, min(self._moved + _MOVED * inserted + _MOVED_LEAST, self.capacity)
        slots_n = begin + np.flatnonzero(self.used[begin : self._moved])
        self._insert(self._next, self.keys[slots_n], slots_n)
        if self._moved == self.capacity:
            self._map, self._next = self._next, None


class _Map:
    """FBGEMM's map from key to slot; it must be cleared before it is used."""

    def __init__(self, capacity: int) -> None:
        self.places = _PLACES * capacity + 64
        self.entries = 0
        """At most so many keys are in it."""
        self._table_P2 = torch.empty((self.places, 2), dtype=torch.int64)
        self._whole = _whole(self.places)
        self._cleared = 0

    @property
    def bytes(self) -> int:
        return self._table_P2.nbytes

    @property
    def is_clear(self) -> bool:
        return self._cleared == self.places

    def clear(self, count: int) -> bool:
        """Makes some more places empty: all at once would take seconds in a large map. Returns whether all are now."""
        begin, self._cleared = self._cleared, min(self._cleared + count, self.places)
        self._table_P2[begin : self._cleared] = _EMPTY
        return self.is_clear

    def insert(self, keys_n: NDArray[np.int64], slots_n: NDArray[np.int64]) -> None:
        """Adds keys, none of which is `_EMPTY`, or says that they have other slots now."""
        self.entries += len(keys_n)
        assert self.entries < self.places, "a search would find no end"
        torch.ops.fbgemm.pruned_hashmap_insert(
            tensor_of(keys_n), tensor_of(slots_n), _whole(len(keys_n)), self._table_P2, self._whole
        )

    def hints(self, keys_n: NDArray[np.int64]) -> NDArray[np.int64]:
        """The slot that each key was given last, or -1."""
        slots: Tensor = torch.ops.fbgemm.pruned_hashmap_lookup(
            tensor_of(keys_n), _whole(len(keys_n)), self._table_P2, self._whole
        )
        return np.asarray(slots.numpy())


class _FreeSlots:
    """Knows which slots are free, and hands out the lowest."""

    def __init__(self) -> None:
        self._begun = 0
        """No slot from here on has ever been taken."""
        self._runs: list[NDArray[np.int64]] = []
        """Slots that were given back, ascending in each run; each run is at least twice as long as the next."""

    @property
    def taken(self) -> int:
        return self._begun - sum(len(run) for run in self._runs)

    def take(self, count: int) -> NDArray[np.int64]:
        again_n = np.empty(0, np.int64)
        if self._runs:
            again_n = np.sort(np.concatenate([run[:count] for run in self._runs]), kind="stable")[:count]
        if len(again_n):
            self._runs = [run[np.searchsorted(run, again_n[-1], side="right") :] for run in self._runs]
            self._runs = [run for run in self._runs if len(run)]
        begin, self._begun = self._begun, self._begun + count - len(again_n)
        return np.concatenate([again_n, np.arange(begin, self._begun)])

    def give_back(self, slots_n: NDArray[np.int64]) -> None:
        run = np.sort(slots_n)
        while self._runs and 2 * len(run) > len(self._runs[-1]):
            run = np.sort(np.concatenate([self._runs.pop(), run]), kind="stable")  # stable is fast where parts ascend
        self._runs.append(run)

    def restore(self, used: NDArray[np.bool_]) -> None:
        """Slots as they are used up to the last one that is."""
        self._begun = len(used)
        self._runs = [np.flatnonzero(~used)]


def _whole(count: int) -> Tensor:
    """Offsets that say: one table, all of it."""
    return torch.from_numpy(np.array([0, count]))

"""Finds the slot of a 64-bit key among many, fast and in little memory.

A map of 32 bits leads from a *print* of the key, which is half as long, to a slot; the truth is in the array of keys by
slot. Of a thousand keys, even of ten million, one or two share their print with another: all that do are in a
dictionary besides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from embershard.vocabulary.free_slots import FreeSlots
from embershard.vocabulary.hints import EMPTY, PLACES, Hints

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NOBODY = -1
"""What `keys` has where a slot is free; which slot has the key of this value, if one does, is kept aside."""
_PRINTS_MOST = 2**27
"""Slots up to which keys have prints: among more, too many would share theirs, and a key is its own print."""
_GOLDEN = np.int64(0x9E3779B97F4A7C15 - 2**64)
"""2^64 / φ: the upper half of its multiples tells keys apart that are near each other, or far."""
_SHARED_BYTES = 440
"""Memory of a print in the dictionary, with two keys."""


def bytes_of_index(capacity: int) -> int:
    """Most memory that an index of so many slots takes, if prints are shared by chance."""
    narrow = capacity <= _PRINTS_MOST
    slot_bytes = 8 + 2 * PLACES * (4 if narrow else 8) + (4 if narrow else 8)  # key, places, and once it is free
    return capacity * slot_bytes + 2048 + narrow * 2 * _SHARED_BYTES * capacity**2 // 2**33


class KeyIndex:
    """Slots 0 ≤ slot < capacity, each free or with a key that no other slot has."""

    def __init__(self, capacity: int) -> None:
        self.keys = np.full(capacity, _NOBODY)
        """The key of each slot that is used; of all others `_NOBODY`."""
        self._kind = np.int32 if capacity <= _PRINTS_MOST else np.int64
        self._free = FreeSlots(self._kind)
        self._hints = Hints(capacity, self._kind)
        self._shared: dict[int, dict[int, int]] = {}
        """{print: {key: slot}} of all keys that share a print, or whose print no map can have."""
        self._aside = -1
        """The slot of the key `_NOBODY`, or -1."""

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
        """Memory that it takes."""
        return self.keys.nbytes + self._hints.bytes + self._free.bytes + _SHARED_BYTES * len(self._shared)

    @property
    def used(self) -> NDArray[np.bool_]:
        """By slot: whether it has a key."""
        used = self.keys != _NOBODY
        if self._aside >= 0:
            used[self._aside] = True
        return np.asarray(used)

    def used_at(self, slots_n: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether these slots have a key."""
        used_n = self.keys[slots_n] != _NOBODY
        if self._aside >= 0:
            used_n |= slots_n == self._aside
        return np.asarray(used_n)

    def find(self, keys_n: NDArray[np.int64]) -> NDArray[np.int64]:
        """The slot of each key, or -1."""
        prints_n = self._prints(keys_n)
        slots_n: NDArray[np.int64] = np.maximum(self._hints.find(prints_n), -1, dtype=np.int64)
        others_n = self.keys.take(slots_n, mode="clip") != keys_n
        if not self._shared:
            np.putmask(slots_n, others_n, -1)
            return slots_n
        asked_n = others_n & (slots_n >= 0)  # by its print it may be there, as another key is
        if EMPTY in self._shared:
            asked_n |= prints_n == EMPTY
        np.putmask(slots_n, others_n, -1)
        for at in np.flatnonzero(asked_n).tolist():
            slots_n[at] = self._shared.get(int(prints_n[at]), {}).get(int(keys_n[at]), -1)
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
        keys_n = self.keys[slots_n]
        prints_n = self._prints(keys_n)
        self._hints.forget(prints_n[prints_n != EMPTY] if EMPTY in self._shared else prints_n)
        self.keys[slots_n] = _NOBODY
        if self._aside >= 0 and (slots_n == self._aside).any():
            self._aside = -1
        if self._shared:
            self._part(keys_n, prints_n)
        self._free.give_back(slots_n)

    def restore(self, keys_n: NDArray[np.int64], slots_n: NDArray[np.int64]) -> None:
        """Fills an index that is empty: these keys have had these slots."""
        assert len(self) == 0
        if len(keys_n):
            self._place(keys_n, slots_n)
        self._free.restore(self.used[: slots_n.max(initial=-1) + 1])

    def _prints(self, keys_n: NDArray[np.int64]) -> NDArray[Any]:
        if self._kind is np.int64:
            return keys_n
        return np.ascontiguousarray((keys_n * _GOLDEN).view(np.int32)[1::2])

    def _place(self, keys_n: NDArray[np.int64], slots_n: NDArray[np.int64]) -> None:
        self.keys[slots_n] = keys_n
        if (aside_n := keys_n == _NOBODY).any():
            self._aside = int(slots_n[aside_n][0])
        prints_n = self._prints(keys_n)
        led_n = self._hints.add(prints_n, slots_n)
        if not led_n.all():
            self._share(keys_n[~led_n], prints_n[~led_n], slots_n[~led_n])

    def _share(self, keys_n: NDArray[np.int64], prints_n: NDArray[Any], slots_n: NDArray[np.int64]) -> None:
        """Remembers keys whose print leads to another's slot, or nowhere, and those others."""
        columns = (keys_n, prints_n, slots_n, self._hints.find(prints_n))
        for key, of_key, slot, first in zip(*(column.tolist() for column in columns), strict=True):
            known = {} if of_key == EMPTY else {int(self.keys[first]): first}
            self._shared.setdefault(of_key, known)[key] = slot

    def _part(self, keys_n: NDArray[np.int64], prints_n: NDArray[Any]) -> None:
        """Forgets keys that were removed; where others have their print, it leads to one of those."""
        parted = set()
        for key, of_key in zip(keys_n.tolist(), prints_n.tolist(), strict=True):
            if of_key in self._shared:
                del self._shared[of_key][key]
                parted.add(of_key)
        left = {of_key: next(iter(self._shared[of_key].values())) for of_key in parted if self._shared[of_key]}
        left.pop(EMPTY, None)
        if left:
            self._hints.lead(np.array(list(left), self._kind), np.array(list(left.values())))
        for of_key in parted:
            if len(self._shared[of_key]) <= (of_key != EMPTY):
                del self._shared[of_key]

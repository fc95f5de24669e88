"""What is known of the ids that own a row, by the slot of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from embershard.vocabulary.columns import MOST, Seldom, Steps, within
from embershard.vocabulary.index import KeyIndex

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embershard.ids import Keys
    from embershard.vocabulary.sightings import Sightings


class Residents:
    """Slots 0 ≤ slot < capacity, each free or owned by one id."""

    def __init__(self, capacity: int, *, times: bool) -> None:
        """With `times`, it is known of each when it was sighted last; else that is no longer ago than of the last."""
        self.index = KeyIndex(capacity)
        """Which key has which slot."""
        self.counts = np.zeros(capacity, np.uint32)
        """How often the owner was sighted; no more is counted from `columns.MOST` on."""
        self.steps = Steps(capacity)
        """The step of the vocabulary that sighted the owner last."""
        self.seen_s = np.zeros(capacity if times else 0, np.uint32)
        """When that was, in seconds; with `times`."""
        self._times, self._newest_s = times, 0
        self.pinned = Seldom(capacity, False, np.bool_)
        """Whether the owner keeps its row whatever comes."""
        self.adopted = Seldom(capacity, False, np.bool_)
        """Whether the owner was published: a training job has a row for it, too."""
        self.names = Seldom(capacity, None, np.object_)
        """The owner if it is a string."""

    @property
    def bytes(self) -> int:
        """Memory that it takes, the strings themselves apart."""
        arrays = (self.counts, self.steps, self.seen_s, self.pinned, self.adopted, self.names)
        return self.index.bytes + sum(array.nbytes for array in arrays)

    def find(self, keys: Keys) -> NDArray[np.int64]:
        """The slot that each id owns, or -1."""
        slots_n = self.index.find(keys.keys_n)
        if keys.names is None and not self.names.ever:
            return slots_n
        at_n = np.flatnonzero(slots_n >= 0)
        asked = None if keys.names is None else np.array([keys.names[at] for at in at_n.tolist()], object)
        # A string with the hash of another, or with an integer's value, is not the id that owns the row.
        slots_n[at_n[np.asarray(self.names[slots_n[at_n]] != asked, bool)]] = -1
        return slots_n

    def places(self, sightings: Sightings) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The slot that each key has, or -1, and whether it is the id's own: another may have the same key."""
        slots_u = self.index.find(sightings.keys_u)
        own_u = slots_u >= 0
        at_u = np.flatnonzero(own_u)
        own_u[at_u] = np.asarray(self.names[slots_u[at_u]] == sightings.names_u[at_u], bool)
        return slots_u, own_u

    def sight(self, slots_u: NDArray[np.int64], counts_u: NDArray[np.int64], step: int, now_s: int) -> None:
        """Counts owners that were sighted in a step."""
        self.counts[slots_u] = np.minimum(self.counts[slots_u] + counts_u, MOST)
        self.steps[slots_u] = step
        self.see(slots_u, now_s)

    def see(self, slots_u: NDArray[np.int64], seen_s: NDArray[np.int64] | int) -> None:
        """Owners were sighted at these times."""
        self._newest_s = max(self._newest_s, seen_s if isinstance(seen_s, int) else int(seen_s.max(initial=0)))
        if self._times:
            self.seen_s[slots_u] = min(max(seen_s, 0), MOST) if isinstance(seen_s, int) else within(seen_s)

    def enter(self, ids: Sightings, counts_u: NDArray[np.int64], step: int, now_s: int) -> NDArray[np.int64]:
        """Gives ids the lowest free slots, in the order of their keys; there must be enough."""
        slots_u = self.index.put(ids.keys_u)
        self.names[slots_u], self.counts[slots_u] = ids.names_u, np.minimum(counts_u, MOST)
        self.steps[slots_u] = step
        self.see(slots_u, now_s)
        self.pinned[slots_u] = self.adopted[slots_u] = False
        return slots_u

    def leave(self, slots_n: NDArray[np.int64]) -> None:
        """Takes their rows from ids."""
        self.index.remove(slots_n)
        self.names[slots_n] = None

    def may_leave(self) -> NDArray[np.bool_]:
        """By slot: whether it has an owner who isn't pinned."""
        return np.asarray(self.index.used & ~self.pinned.values)

    def state(self) -> dict[str, Any]:
        """Everything about owners."""
        return self.owners(np.flatnonzero(self.index.used))

    def owners(self, slots: NDArray[np.int64]) -> dict[str, Any]:
        """The same of these slots."""
        return {
            "slots": slots,
            "keys": self.index.keys[slots],
            "counts": self.counts[slots].astype(np.int64),
            "steps": self.steps[slots],
            "seen_s": self.seen_s[slots].astype(np.int64) if self._times else np.full(len(slots), self._newest_s),
            "pinned": self.pinned[slots],
            "adopted": self.adopted[slots],
            "names": self.names[slots].tolist(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Brings owners back to their slots, of which all must be free."""
        slots = state["slots"]
        self.index.restore(state["keys"], slots)
        self.counts[slots] = within(state["counts"])
        self.steps.reach(int(state["steps"].max(initial=0)))
        self.steps[slots] = state["steps"]
        self.see(slots, state["seen_s"])
        self.pinned[slots], self.adopted[slots], self.names[slots] = (
            state[of] for of in ("pinned", "adopted", "names")
        )

"""Ids without a row of their own, and how often they were sighted, in bounded memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from embershard.vocabulary.columns import MOST, Steps
from embershard.vocabulary.index import KeyIndex

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Candidates:
    """Counts by key. Once there are too many, the half that wasn't sighted for longest is forgotten."""

    def __init__(self, capacity: int) -> None:
        self.index = KeyIndex(capacity)
        self.counts = np.zeros(capacity, np.uint32)
        """Sightings of the key of each slot."""
        self.steps = Steps(capacity)
        """The step of the vocabulary that sighted the key last."""

    @property
    def bytes(self) -> int:
        """Memory that it takes."""
        return self.index.bytes + self.counts.nbytes + self.steps.nbytes

    def sight(
        self, keys_n: NDArray[np.int64], counts_n: NDArray[np.int64], step: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Adds sightings of distinct keys in a step; returns all that are known of each, and its slot.

        A key that isn't remembered (slot -1) isn't yet, either: it depends on whether it is given a row.
        """
        slots_n = self.index.find(keys_n)
        known_n = slots_n >= 0
        known = slots_n[known_n]
        self.counts[known] = np.minimum(self.counts[known] + counts_n[known_n], MOST)
        self.steps[known] = step
        totals_n = counts_n.copy()
        totals_n[known_n] = self.counts[known]
        return totals_n, slots_n

    def remember(
        self,
        keys_n: NDArray[np.int64],
        counts_n: NDArray[np.int64] | NDArray[np.uint32],
        steps_n: NDArray[np.int64] | int,
    ) -> None:
        """Adds keys that it doesn't know; of more than it can hold, the first."""
        keys_n = keys_n[: self.index.capacity]
        lacking = len(keys_n) - self.index.free
        if lacking > 0:
            self.index.remove(self._longest_unseen(max(lacking, len(self.index) // 2)))
        slots_n = self.index.put(keys_n)
        self.counts[slots_n] = np.minimum(counts_n[: len(slots_n)], MOST)
        self.steps[slots_n] = steps_n if isinstance(steps_n, int) else steps_n[: len(slots_n)]

    def forget(self, keys_n: NDArray[np.int64]) -> None:
        """Drops keys, if they are remembered."""
        slots_n = self.index.find(keys_n)
        self.index.remove(slots_n[slots_n >= 0])

    def state(self) -> dict[str, Any]:
        """All that it knows."""
        slots = np.flatnonzero(self.index.used)
        return {
            "candidate_keys": self.index.keys[slots],
            "candidate_counts": self.counts[slots].astype(np.int64),
            "candidate_steps": self.steps[slots],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Fills it, if it is empty; where it holds fewer than it did, the longest unseen are forgotten."""
        keys, counts, steps = (state[f"candidate_{name}"] for name in ("keys", "counts", "steps"))
        self.steps.reach(int(steps.max(initial=0)))
        newest = np.lexsort((keys, steps))[-self.index.capacity :]
        self.remember(keys[newest], counts[newest], steps[newest])

    def _longest_unseen(self, count: int) -> NDArray[np.int64]:
        """The slots of so many, one at least; of those sighted in one step, the lowest keys first."""
        slots = np.flatnonzero(self.index.used)
        steps = self.steps.ranks[slots]
        border = np.partition(steps, count - 1)[count - 1]
        before, last = slots[steps < border], slots[steps == border]
        return np.concatenate([before, last[np.argsort(self.index.keys[last])][: count - len(before)]])

"""What a tick has seen of a table's ids: distinct keys and how often each was named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embershard.ids import Keys


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Sightings:
    """Distinct ids in the order of their keys, which is the same however they were spread over ranks."""

    keys_u: NDArray[np.int64]
    """int64 [u], ascending."""
    names_u: NDArray[np.object_]
    """The string of each, or None for an integer."""
    counts_u: NDArray[np.int64]
    """How often each was named."""
    demanded_u: NDArray[np.bool_]
    """Whether it must have a row of its own now, however often it was sighted."""

    @classmethod
    def of(cls, keys: Keys, *, demanded: bool = False) -> Sightings:
        """Those of one batch."""
        if keys.names is None:
            keys_u, counts_u = np.unique(keys.keys_n, return_counts=True)
            names_u, demanded_u = np.full(len(keys_u), None), np.full(len(keys_u), demanded)
            return cls(keys_u=keys_u, names_u=names_u, counts_u=counts_u, demanded_u=demanded_u)
        count = len(keys.keys_n)
        names_n = np.empty(count, object)
        names_n[:] = keys.names
        return cls(
            keys_u=keys.keys_n,
            names_u=names_n,
            counts_u=np.ones(count, np.int64),
            demanded_u=np.full(count, demanded),
        )._distinct()

    @classmethod
    def merged(cls, parts: Sequence[Sightings]) -> Sightings:
        """Those of several batches and ranks together; of none, none."""
        if not parts:
            nothing = np.empty(0, np.int64)
            return cls(keys_u=nothing, names_u=np.empty(0, object), counts_u=nothing, demanded_u=np.empty(0, bool))
        if len(parts) == 1:
            return parts[0]
        return cls(
            keys_u=np.concatenate([part.keys_u for part in parts]),
            names_u=np.concatenate([part.names_u for part in parts]),
            counts_u=np.concatenate([part.counts_u for part in parts]),
            demanded_u=np.concatenate([part.demanded_u for part in parts]),
        )._distinct()

    def where(self, wanted_u: NDArray[np.bool_]) -> Sightings:
        """Some of them."""
        return Sightings(
            keys_u=self.keys_u[wanted_u],
            names_u=self.names_u[wanted_u],
            counts_u=self.counts_u[wanted_u],
            demanded_u=self.demanded_u[wanted_u],
        )

    def _distinct(self) -> Sightings:
        order = np.argsort(self.keys_u, kind="stable")
        keys_n = self.keys_u[order]
        first_n = np.ones(len(order), np.bool_)
        first_n[1:] = keys_n[1:] != keys_n[:-1]
        begins_u = np.flatnonzero(first_n)
        names_n = self.names_u[order]
        names_u = names_n[begins_u]
        of_n = np.cumsum(first_n) - 1
        if (differs_n := names_u[of_n] != names_n).any():
            _settle_names(names_u, names_n, self.demanded_u[order], of_n, np.unique(of_n[differs_n]))
        return Sightings(
            keys_u=keys_n[begins_u],
            names_u=names_u,
            counts_u=np.add.reduceat(self.counts_u[order], begins_u),
            demanded_u=np.logical_or.reduceat(self.demanded_u[order], begins_u),
        )


def collide(parts: Sequence[Sightings]) -> bool:
    """Whether two different ids that demand a row have one key: only one of them could have it."""
    demanded = [part.where(part.demanded_u) for part in parts]
    together = Sightings.merged(demanded)
    # `merged` keeps one name a key: a part that calls the key by another name stands for another id.
    return any(
        bool((together.names_u[np.searchsorted(together.keys_u, part.keys_u)] != part.names_u).any())
        for part in demanded
    )


def _settle_names(
    names_u: NDArray[np.object_],
    names_n: NDArray[np.object_],
    demanded_n: NDArray[np.bool_],
    of_n: NDArray[np.int64],
    shared: NDArray[np.int64],
) -> None:
    """Of ids with one key, one may own a row: one that demands it, an integer, the first string; whatever the order."""
    for key in shared.tolist():
        at = np.flatnonzero(of_n == key).tolist()
        names = [(not demanded_n[place], names_n[place] is not None, names_n[place] or "") for place in at]
        names_u[key] = names_n[at[names.index(min(names))]]

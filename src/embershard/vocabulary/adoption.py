"""Ids that own a row elsewhere are to own one here, and those that have lost theirs are to lose it: who makes room."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from embershard.errors import InvalidInput
from embershard.vocabulary.sightings import Sightings

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embershard.vocabulary.residents import Residents


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Owners:
    """Ids that own a row elsewhere, and what is known of them there."""

    ids: Sightings
    """Each with how often it was sighted."""
    steps_u: NDArray[np.int64]
    """The step of their vocabulary that sighted each last."""
    seen_s_u: NDArray[np.int64]
    """When that was, in seconds."""

    @classmethod
    def none(cls) -> Owners:
        """Nobody."""
        return cls(ids=Sightings.merged([]), steps_u=np.empty(0, np.int64), seen_s_u=np.empty(0, np.int64))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Adoption:
    """What is to be done."""

    owners: Owners
    """Who is to own a row."""
    slots_u: NDArray[np.int64]
    """The slot of those who have one already, or -1."""
    enters_u: NDArray[np.bool_]
    """Who is to be given one."""
    leaving: NDArray[np.int64]
    """Slots of those who are to lose theirs."""
    left_out: int
    """Ids that keep their row, as it is frozen here, though they have lost it there, or another id has their key."""


def plan_adoption(table: str, held: Residents, owners: Owners, gone: Sightings) -> Adoption:
    """Who enters and who leaves; nothing changes yet.

    Where there are too few free slots, others leave: first those who were never published, the least frequent first.

    Raises:
        InvalidInput: there is no room all the same.
    """
    slots_u, own_u = held.places(owners.ids)
    gone_n, there_n = held.places(gone)
    rivals_u = (slots_u >= 0) & ~own_u
    kept_u = rivals_u & held.pinned[slots_u]
    leaving = np.setdiff1d(np.concatenate([gone_n[there_n], slots_u[rivals_u]]), slots_u[own_u])
    left_out = int(held.pinned[leaving].sum())
    leaving, enters_u = leaving[~held.pinned[leaving]], ~own_u & ~kept_u
    lacking = int(enters_u.sum()) - held.index.free - len(leaving)
    if lacking > 0:
        may = held.may_leave()
        may[leaving], may[slots_u[own_u]] = False, False
        slots = np.flatnonzero(may)
        if len(slots) < lacking:
            raise InvalidInput(
                f"table {table!r} has no room for {lacking - len(slots):,} of the ids that own a row where it was "
                f"trained, as {int(held.pinned.values.sum()):,} of its {held.index.capacity:,} rows are frozen; grow "
                "it, or thaw some, first"
            )
        rarest = np.lexsort((slots, held.steps[slots], held.counts[slots], held.adopted[slots]))[:lacking]
        leaving = np.concatenate([leaving, slots[rarest]])
    return Adoption(
        owners=owners, slots_u=np.where(own_u, slots_u, -1), enters_u=enters_u, leaving=leaving, left_out=left_out
    )

"""Joint: rows that a training job has changed, in place of those that are served: all tables between two ticks.

What takes long is done before (`store.delta_files`): what is left are copies of rows that are ready. Rows are known by
number; those that ids own by a vocabulary by id, as another slot may be free here. Whatever was frozen here stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from embershard.arrays import tensor_of
from embershard.engine.admission import empty
from embershard.vocabulary import Owners, Sightings, Vocabulary

if TYPE_CHECKING:
    from embershard.engine.base import Engine
    from embershard.engine.placement import Group

PUBLISHED = ("weight", "sum", "updates", "sightings")
"""What of a row is published; whether it is frozen is everyone's own."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class NewRows:
    """Rows of one stack on this rank."""

    local_n: Tensor
    """int64 [n]: rows of the shard, each once."""
    kinds: Mapping[str, Tensor]
    """{kind: [n] or [n, kernel_dim]}, as the shard has them."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class NewOwners:
    """Ids of one table that own a row there."""

    owners: Owners
    """The same on every rank."""
    kinds: Mapping[str, Tensor]
    """{kind: [u] or [u, kernel_dim]}: the row of each, as shards have it; on every rank, as slots are given last."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Delta:
    """All of it, as far as this rank has a use for it."""

    groups: Sequence[Group]
    """The stacks for which it was cut."""
    rows: Mapping[str, NewRows]
    """{group: rows} by number."""
    owned: Mapping[str, NewOwners]
    """{table: ids with the rows that they own}."""
    gone: Mapping[str, Sightings]
    """{table: ids that have lost their row}."""
    vocabularies: Mapping[str, Vocabulary]
    """{table: who owns which row}, whole, where ids share parts of their rows: slots must be the same there."""
    frozen: int = 0
    """Rows and ids of tables that are frozen here, which are left out; over all ranks, each once."""

    def fits(self, engine: Engine) -> bool:
        """Whether it was cut for these tables as they are now; the same on every rank."""
        return self.groups is engine.groups


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """What has become of the rows of a delta, over all ranks."""

    rows: int
    """Rows that were written."""
    frozen: int
    """Rows and ids that stayed as they were, because they are frozen here."""


def write_delta(engine: Engine, delta: Delta) -> Written:
    """Joint: serves a delta's rows.

    Raises:
        InvalidInput: on every rank, and before anything has changed: a vocabulary has no room.
    """
    nobody, no_ids = Owners.none(), Sightings.merged([])
    plans = {}
    for table, vocabulary in engine.vocabularies.items():
        owners = delta.owned[table].owners if table in delta.owned else nobody
        if table in {*delta.owned, *delta.gone}:
            plans[table] = vocabulary.plan(owners, delta.gone.get(table, no_ids))
    done, frozen = torch.tensor([0, delta.frozen]), 0
    for table, plan in plans.items():
        slots_u, emptied = engine.vocabularies[table].adopt(plan)
        empty(engine, table, emptied)
        frozen += plan.left_out
        if table in delta.owned:
            done += _write_owned(engine, table, tensor_of(slots_u), delta.owned[table].kinds)
    for table, vocabulary in delta.vocabularies.items():
        before = engine.vocabularies[table].counts
        vocabulary.adopt_all()
        vocabulary.counts.own, vocabulary.counts.fallback = before.own, before.fallback
        engine.vocabularies[table] = vocabulary
    for name, rows in delta.rows.items():
        done += torch.tensor(engine.shards[name].replace(rows.local_n, rows.kinds))
    engine.refresh(engine.matrices)
    rows, stayed = engine.world.sum(done).tolist()
    return Written(rows=rows, frozen=stayed + frozen)


def _write_owned(engine: Engine, table: str, slots_u: Tensor, kinds: Mapping[str, Tensor]) -> Tensor:
    """How many rows of this rank were written, and how many were frozen."""
    (group,) = (group for group in engine.groups if table in group.slots)
    physical_u = group.slots[table].physical(slots_u + engine.vocabularies[table].first_row)
    mine_u = (slots_u >= 0) & (group.owner(physical_u) == engine.world.rank)
    local_u = group.on_rank(physical_u)
    if not mine_u.all():
        local_u, kinds = local_u[mine_u], {kind: rows[mine_u] for kind, rows in kinds.items()}
    return torch.tensor(engine.shards[group.name].replace(local_u.to(engine.world.device), kinds))

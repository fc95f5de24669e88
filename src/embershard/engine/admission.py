"""Joint: what a tick's sightings change in vocabularies, and in the rows of those who come and go."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from embershard.arrays import tensor_of
from embershard.engine.shard import Start
from embershard.errors import EmbershardError, InvalidInput, Overloaded
from embershard.ids import Keys, hashed_rows
from embershard.sums import Sums
from embershard.vocabulary import Sightings, collide

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embershard.change import Change
    from embershard.collection import Read
    from embershard.compose import RowBatch
    from embershard.config import TableSpec
    from embershard.engine.base import Engine
    from embershard.vocabulary import Step

ByTable = Mapping[str, Sightings]
"""{table: sightings}."""

COLLISION = (
    "two of the ids whose rows are to be replaced have the same 64-bit key, and only one can own a row; leave one out"
)
"""Two strings with one hash, or a string and the integer that its hash is."""


def sightings_of_reads(reads: Sequence[Read]) -> ByTable:
    """Ids that lookups have named, of tables that count lookups."""
    return sightings_of_parts([part for read in reads for part in read.parts if part.table.counts_lookups])


def sightings_of_parts(parts: Sequence[RowBatch]) -> ByTable:
    """Ids that were named, none of which demands a row."""
    return _by_table([(part, False) for part in parts])


def sightings_of_change(change: Change) -> ByTable:
    """Ids that an update has named, parents too; those whose rows it replaces demand one."""
    parents = [write.parents for write in change.writes if write.parents is not None]
    named = [(part, False) for part in [*parents, *(move.part for move in change.moves)]]
    return _by_table(named + [(write.part, True) for write in change.writes])


def check_known(engine: Engine, change: Change) -> None:
    """Raises InvalidInput if a parent has no row of its own, or two ids that demand one have the same key."""
    demanding: dict[str, list[Sightings]] = {}
    for write in change.writes:
        if (keys := write.part.ids.keys) is not None:
            distinct = Sightings.of(keys, demanded=True)
            if keys.names is not None and len(distinct.keys_u) < len(set(keys.names)):
                raise InvalidInput(COLLISION)
            demanding.setdefault(write.part.table.name, []).append(distinct)
    if any(collide(of_table) for of_table in demanding.values()):
        raise InvalidInput(COLLISION)
    for write in change.writes:
        if write.parents is None or write.parents.ids.keys is None:
            continue
        slots_n = engine.vocabularies[write.parents.table.name].find(write.parents.ids.keys)
        if (slots_n < 0).any():
            at = int((slots_n < 0).argmax())
            raise InvalidInput(
                f"feature {write.part.batch.feature!r}: parents[{at}] = {write.parents.batch.shown(at)} owns no row "
                f"in table {write.parents.table.name!r}; give parents that were admitted"
            )


def admit(engine: Engine, mine: ByTable, active: Collection[str], now_s: int) -> EmbershardError | None:
    """Joint: counts an update's sightings, lets ids go and others in, and gives rows to those.

    Returns why this rank's update can't be done, of which nothing has been counted then.
    """
    if not active:
        return None
    of_ranks = engine.world.gather(dict(mine))
    refused: dict[int, str] = {}
    for table in sorted(active):
        if collide([of_rank[table] for of_rank in of_ranks if table in of_rank]):
            refused = {rank: "" for rank, of_rank in enumerate(of_ranks) if _demands(of_rank, table)} | refused
            continue
        if not engine.vocabularies[table].fits(_merged(of_ranks, table), now_s):
            demanding = (rank for rank, of_rank in enumerate(of_ranks) if _demands(of_rank, table))
            refused = dict.fromkeys(demanding, table) | refused
    of_ranks = [{} if rank in refused else of_rank for rank, of_rank in enumerate(of_ranks)]
    for table in sorted(active):
        sightings = _merged(of_ranks, table)
        if not len(sightings.keys_u):  # all is refused, or nothing was asked: then no time passes, either
            continue
        step = engine.vocabularies[table].step(sightings, now_s, admit=True)
        if engine.config.table(table).owns_rows:
            empty(engine, table, step.emptied)
            _start(engine, engine.config.table(table), step)
    if (full := refused.get(engine.world.rank)) is None:
        return None
    if not full:
        return InvalidInput(COLLISION)
    taken, capacity = len(engine.vocabularies[full]), engine.vocabularies[full].capacity
    return Overloaded(
        f"table {full!r} has no room for all ids whose rows this update replaces: {taken:,} of {capacity:,} rows are "
        "taken, and no other id may be evicted for them; grow the table"
    )


def sight(engine: Engine, mine: ByTable, active: Collection[str], now_s: int) -> None:
    """Joint: counts the sightings of lookups, which admit nobody."""
    if active:
        of_ranks = engine.world.gather(dict(mine))
        for table in sorted(active):
            engine.vocabularies[table].step(_merged(of_ranks, table), now_s, admit=False)


def empty(engine: Engine, table: str, slots: NDArray[np.int64]) -> None:
    """Joint: nothing of an id that has left stays in its row; every rank does a part of it."""
    if not len(slots):
        return
    rows_M = tensor_of(_share(engine, slots) + engine.vocabularies[table].first_row)
    zeros = torch.zeros(len(rows_M), engine.matrices[table].dim)
    engine.write({table: rows_M}, {table: zeros}, {table}, start=Start.EMPTY)


def _start(engine: Engine, table: TableSpec, step: Step) -> None:
    """Joint: an id that was admitted starts from the vector that it has been served until now: its fallback's."""
    if not len(step.slots):
        return
    slots_n = _share(engine, step.slots)
    fallback = hashed_rows(
        table, engine.config.collection.seed, Keys(keys_n=_share(engine, step.admitted.keys_u), names=None)
    )
    gathered = engine.gather({table.name: tensor_of(fallback.rows_M)}, {table.name})
    sums = Sums.of(np.full(len(slots_n), table.hashes), fallback.signs_M)
    rows_n = tensor_of(slots_n + engine.vocabularies[table.name].first_row)
    engine.write({table.name: rows_n}, {table.name: sums(gathered[table.name])}, {table.name}, start=Start.EMPTY)


def _share(engine: Engine, items: NDArray[np.int64]) -> NDArray[np.int64]:
    """This rank's part of what is to be done once."""
    return items[engine.world.rank :: engine.world.size]


def _merged(of_ranks: Sequence[ByTable], table: str) -> Sightings:
    return Sightings.merged([of_rank[table] for of_rank in of_ranks if table in of_rank])


def _demands(of_rank: ByTable, table: str) -> bool:
    return table in of_rank and bool(of_rank[table].demanded_u.any())


def _by_table(parts: Sequence[tuple[RowBatch, bool]]) -> ByTable:
    tables: dict[str, list[Sightings]] = {}
    for part, demanded in parts:
        if part.ids.keys is not None:
            tables.setdefault(part.table.name, []).append(Sightings.of(part.ids.keys, demanded=demanded))
    return {table: Sightings.merged(of_table) for table, of_table in tables.items()}

"""Joint: more rows for a table, while every old row stays bit for bit what it was.

The table's stack is made anew, larger, and the old rows are copied: between ranks, too, as each holds another block
then. So a stack that grows needs memory for both; nothing is read or written meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from embershard.collection import Collection
from embershard.config import MAX_ROWS, HashedIds, VocabularyIds
from embershard.engine.base import check_memory
from embershard.engine.placement import groups_of, overlaps
from embershard.errors import ConfigError, InvalidInput, Overloaded

if TYPE_CHECKING:
    from embershard.config import Matrix
    from embershard.engine.base import Engine
    from embershard.engine.placement import Group
    from embershard.engine.shard import Shard
    from embershard.types import FeatureBatch


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Fill:
    """How new rows start: seeded, as if the table had always been so large, or as a mean of old rows."""

    mean: bool = False
    """As the mean of all old rows, or"""
    of: FeatureBatch | None = None
    """of the rows of these ids."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Growth:
    """What is to grow."""

    table: str
    """The table,"""
    rows: int
    """how many rows it has then,"""
    fill: Fill
    """and how the new ones start."""


def grow(engine: Engine, growth: Growth) -> None:
    """Joint: gives a table more rows; every rank brings the same growth.

    Raises:
        InvalidInput: on every rank, if the table can't grow so; nothing has changed then.
        Overloaded: on every rank, if memory doesn't hold both the old rows and the new.
    """
    table, rows, fill = growth.table, growth.rows, growth.fill
    _check(engine, table, rows, fill)
    first = engine.config.table(table).matrices[0]
    start_D = _mean(engine, first, fill)
    old = {matrix.name: matrix.rows for matrix in engine.config.table(table).matrices}
    resize(engine, {table: rows})
    if start_D is not None:
        grown = engine.matrices[first.name]
        mine = torch.arange(old[first.name] + engine.world.rank, grown.rows, engine.world.size)
        values = start_D.expand(len(mine), -1)
        engine.write({first.name: mine}, {first.name: values}, {first.name}, anew=True)


def resize(engine: Engine, rows: Mapping[str, int]) -> None:
    """Joint: gives tables these numbers of rows, none fewer than it has; new ones start seeded.

    Raises:
        Overloaded: on every rank, if memory doesn't hold both the old rows and the new.
    """
    config = engine.config.grown(rows)
    groups = groups_of(config, engine.world.size)
    growing = [(old, new) for old, new in zip(engine.groups, groups, strict=True) if _rows(old) != _rows(new)]
    try:
        check_memory([new for _, new in growing], engine.world)
    except ConfigError as error:
        raise Overloaded(f"a table that grows needs room for its old rows and the new at once: {error}") from error
    with engine.progress(sum(new.block_rows for _, new in growing)) as progress:
        for old, new in growing:
            shard = engine.make_shard(new)
            shard.initialise(config.collection.seed, progress.update, known=_rows(old))
            _copy(engine, engine.shards[old.name], shard)
            engine.shards[new.name] = shard
    engine.config, engine.groups = config, groups
    for name in rows:
        if name in engine.vocabularies:
            engine.vocabularies[name].grow(config.table(name).capacity)


def _copy(engine: Engine, old: Shard, new: Shard) -> None:
    """Joint: brings every old row, and all that is known of it, to the rank that holds it from now on."""
    for name, before in old.group.slots.items():
        after = new.group.slots[name]
        sent, received = overlaps(before, after, engine.world.rank, engine.world.size)
        views = new.tensors(name)
        for kind, view in old.tensors(name).items():
            arrived = engine.exchange(view, sent, received)
            views[kind][: len(arrived)].copy_(arrived)


def _rows(group: Group) -> dict[str, int]:
    return {name: slot.matrix.rows for name, slot in group.slots.items()}


def _check(engine: Engine, table: str, rows: int, fill: Fill) -> None:
    tables = {spec.name: spec for spec in engine.config.tables}
    if table not in tables:
        raise InvalidInput(f"there is no table {table!r}; the collection has {', '.join(tables)}")
    spec = tables[table]
    if isinstance(spec.ids, HashedIds):
        raise InvalidInput(
            f"table {table!r} can't grow: its ids are hashed by the number of rows, and with another number each would "
            "have other rows; make a larger table, and train it"
        )
    if rows <= spec.rows:
        raise InvalidInput(
            f"table {table!r} has {spec.rows:,} rows, and a table can't shrink or stay: give more than that"
        )
    if rows > MAX_ROWS:
        raise InvalidInput(f"table {table!r} can grow to at most {MAX_ROWS:,} rows, not to {rows:,}")
    if isinstance(spec.ids, VocabularyIds) and (fill.mean or fill.of):
        raise InvalidInput(
            f"table {table!r} has vocabulary ids, each of which starts from what it was served before; grow it without "
            "saying how new rows start"
        )


def _mean(engine: Engine, matrix: Matrix, fill: Fill) -> Tensor | None:
    """Joint: what new rows start as, [D]; None: seeded."""
    if fill.of is not None:
        part = Collection(engine.config).read([fill.of]).parts[0]
        if part.table.name != matrix.table.name or not len(part.ids.rows_M):
            raise InvalidInput(
                f"new rows of table {matrix.table.name!r} can be the mean of ids of its own features, of one at least"
            )
        rows = engine.gather({matrix.name: part.rows[0]}, {matrix.name})[matrix.name]
        return rows.double().mean(dim=0).float()
    if fill.mean:
        view = engine.tensors()[f"{matrix.name}.weight"].double()
        sums: list[Tensor] = engine.world.gather(view.sum(dim=0).cpu())
        return (torch.stack(sums).sum(dim=0) / matrix.rows).float()
    return None

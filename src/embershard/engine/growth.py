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
from embershard.engine.shard import Start
from embershard.errors import ConfigError, InvalidInput, Overloaded
from embershard.vocabulary import bytes_of_vocabulary

if TYPE_CHECKING:
    from embershard.config import Config, Matrix, TableSpec
    from embershard.engine.base import Engine
    from embershard.engine.placement import Group
    from embershard.engine.shard import Shard
    from embershard.types import FeatureBatch


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Growth:
    """What is to grow, and how new rows start: seeded, as if the table had always been so large, or as a mean."""

    table: str
    """The table."""
    rows: int
    """Rows that it has then."""
    mean: bool = False
    """Whether new rows start as the mean of all old ones."""
    mean_of: FeatureBatch | None = None
    """Ids of the table, as the mean of whose rows new rows start."""


def grow(engine: Engine, growth: Growth) -> int:
    """Joint: gives a table more rows; every rank brings the same growth. Returns how many rows it has.

    A table that is so large already stays as it is, so that growing may be tried again. Whether there is memory for it,
    `check_room` tells before.

    Raises:
        InvalidInput: on every rank, if the table can't grow so; nothing has changed then.
    """
    table = engine.config.table(growth.table)
    _check(engine, table, growth)
    if growth.rows == table.rows:
        return table.rows
    first = table.matrices[0]
    start_D = _mean(engine, first, growth)
    resize(engine, {table.name: growth.rows})
    if start_D is not None:
        grown = engine.matrices[first.name]
        mine = torch.arange(first.rows, grown.rows)[engine.world.rank :: engine.world.size]
        engine.write({first.name: mine}, {first.name: start_D.expand(len(mine), -1)}, {first.name}, start=Start.EMPTY)
    return growth.rows


def check_room(engine: Engine, growth: Growth) -> None:
    """Joint: whether memory holds both the old rows and the new, if the table can grow so at all.

    Raises:
        InvalidInput, Overloaded: on every rank, if not.
    """
    table = engine.config.table(growth.table)
    _check(engine, table, growth)
    config = engine.config.grown({table.name: growth.rows})
    growing = [new for old, new in _pairs(engine, config) if _rows(old) != _rows(new)]
    try:
        check_memory(growing, engine.world, bytes_of_vocabulary(config.table(table.name)))
    except ConfigError as error:
        raise Overloaded(f"a table that grows needs room for its old rows and the new at once: {error}") from error


def resize(engine: Engine, rows: Mapping[str, int]) -> None:
    """Joint: gives tables these numbers of rows, none fewer than it has; new ones start seeded."""
    config = engine.config.grown(rows)
    pairs = _pairs(engine, config)
    growing = [(old, new) for old, new in pairs if _rows(old) != _rows(new)]
    with engine.progress(sum(new.block_rows for _, new in growing)) as progress:
        for old, new in growing:
            shard = engine.make_shard(new)
            shard.initialise(config.collection.seed, progress.update, known=_rows(old))
            _copy(engine, engine.shards[old.name], shard)
            engine.shards[new.name] = shard
    engine.config, engine.groups = config, [new for _, new in pairs]
    for name in rows:
        if name in engine.vocabularies:
            engine.vocabularies[name].grow(config.table(name).capacity)


def _pairs(engine: Engine, config: Config) -> list[tuple[Group, Group]]:
    """Each group as it is, and as it will be."""
    return list(zip(engine.groups, groups_of(config, engine.world.size), strict=True))


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


def _check(engine: Engine, table: TableSpec, growth: Growth) -> None:
    if isinstance(table.ids, HashedIds):
        raise InvalidInput(
            f"table {table.name!r} can't grow: its ids are hashed by the number of rows, and with another number each "
            "would have other rows; make a larger table, and train it"
        )
    if growth.rows < table.rows:
        raise InvalidInput(f"table {table.name!r} has {table.rows:,} rows and can't shrink to {growth.rows:,}")
    if growth.rows > MAX_ROWS:
        raise InvalidInput(f"table {table.name!r} can grow to at most {MAX_ROWS:,} rows, not to {growth.rows:,}")
    if isinstance(table.ids, VocabularyIds) and (growth.mean or growth.mean_of):
        raise InvalidInput(
            f"table {table.name!r} has vocabulary ids, each of which starts from what it was served before; grow it "
            "without saying how new rows start"
        )
    if growth.mean_of is not None:
        part = Collection(engine.config).read([growth.mean_of]).parts[0]
        if part.table.name != table.name or not len(part.ids.rows_M):
            raise InvalidInput(
                f"new rows of table {table.name!r} can be the mean of ids of its own features, of one at least"
            )


def _mean(engine: Engine, matrix: Matrix, growth: Growth) -> Tensor | None:
    """Joint: what new rows start as, [D]; None: seeded."""
    if growth.mean_of is not None:
        part = Collection(engine.config).read([growth.mean_of]).parts[0]
        rows = engine.gather({matrix.name: part.rows[0]}, {matrix.name})[matrix.name]
        return rows.double().mean(dim=0).float().cpu()
    if growth.mean:
        view = engine.tensors()[f"{matrix.name}.weight"]
        sums: list[Tensor] = engine.world.gather(view.sum(dim=0, dtype=torch.float64).cpu())
        return (torch.stack(sums).sum(dim=0) / matrix.rows).float()
    return None

"""Joint: more rows for a table, while every old row stays bit for bit what it was.

The table's stack is made anew, larger, and the old rows are copied: between ranks, too, as each holds another block
then. So a stack that grows needs memory for both. It can be made ready beside the one that is served, some rows at a
time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from embershard.collection import Collection
from embershard.config import MAX_ROWS, SERVES_ONLY, HashedIds, VocabularyIds
from embershard.engine.beside import SLICE_BYTES
from embershard.engine.memory import check_memory
from embershard.engine.placement import groups_of, moves
from embershard.engine.shard import Shard, Start
from embershard.errors import ConfigError, InvalidInput, Overloaded
from embershard.vocabulary import bytes_of_vocabulary

if TYPE_CHECKING:
    from embershard.config import Matrix, TableSpec
    from embershard.engine.base import Engine
    from embershard.engine.placement import Group
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


def grow(engine: Engine, growth: Growth, prepared: Growing | None = None) -> int:
    """Joint: gives a table more rows; every rank brings the same growth. Returns how many rows it has.

    Most of the work may be done already: `prepared` is of this growth, or of none that matters.

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
    rows = {table.name: growth.rows}
    if prepared and prepared.is_of(engine, growth):
        prepared.finish()
    else:
        resize(engine, rows)
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
    pairs = zip(engine.groups, groups_of(config, engine.world.size), strict=True)
    growing = [new for old, new in pairs if _rows(old) != _rows(new)]
    try:
        check_memory(growing, engine.world, bytes_of_vocabulary(config.table(table.name)))
    except ConfigError as error:
        raise Overloaded(f"a table that grows needs room for its old rows and the new at once: {error}") from error


def resize(engine: Engine, rows: Mapping[str, int]) -> None:
    """Joint: gives tables these numbers of rows, none fewer than it has; new ones start seeded."""
    growing = Growing(engine, rows)
    growing.make()
    with engine.progress(growing.block_rows) as progress:
        growing.seed(progress.update)
    while growing.copy():
        pass
    growing.finish()


class Growing:
    """Larger stacks in the making, beside those that are served until they are finished: tables with more rows.

    Rows that change after they were copied are copied once more, at the end.
    """

    def __init__(self, engine: Engine, rows: Mapping[str, int]) -> None:
        """For tables with these numbers of rows."""
        self.engine, self.rows = engine, dict(rows)
        self._config = engine.config.grown(rows)
        self._groups = groups_of(self._config, engine.world.size)
        pairs = zip(engine.groups, self._groups, strict=True)
        self._parts = [_Part(engine, old, new) for old, new in pairs if _rows(old) != _rows(new)]

    def is_of(self, engine: Engine, growth: Growth) -> bool:
        """Whether it is what this growth needs."""
        return self.engine is engine and self.rows == {growth.table: growth.rows}

    @property
    def block_rows(self) -> int:
        """Of this rank's larger stacks."""
        return sum(part.block_rows for part in self._parts)

    def make(self) -> None:
        """Joint: has memory for the larger stacks; on a thread beside the tick if the engine is `made_beside`."""
        for part in self._parts:
            part.make()

    def seed(self, told: Callable[[int], object] = lambda _: None) -> None:
        """Writes how new rows start, before any are copied; on any thread, as nobody else knows of them.

        `told` is called again and again, with the number of rows that are done.
        """
        for part in self._parts:
            part.new.initialise(self._config.collection.seed, told, known=_rows(part.old.group))

    def copy(self) -> bool:
        """Joint: copies some rows of each rank; False once all were."""
        left = [part for part in self._parts if part.left]
        if left:
            left[0].copy()
        return bool(left)

    def finish(self) -> None:
        """Joint: serves the larger stacks."""
        while self.copy():
            pass
        for part in self._parts:
            part.finish()
        self.engine.config, self.engine.groups = self._config, self._groups
        self.engine.shards |= {part.new.group.name: part.new for part in self._parts}
        for name in self.rows:
            if name in self.engine.vocabularies:
                self.engine.vocabularies[name].grow(self._config.table(name).capacity)

    def drop(self) -> None:
        """Gives it up."""
        for part in self._parts:
            part.drop()


class _Part:
    """One stack that grows: every old row, and all that is known of it, goes to the rank that holds it from now on."""

    def __init__(self, engine: Engine, old: Group, new: Group) -> None:
        self._engine = engine
        self.old, self._group = engine.shards[old.name], new
        self.new: Shard
        """Once it is made."""
        self._row_bytes = sum(tensor[:1].numel() * tensor.itemsize for tensor in self.old.kinds.values())
        self._copied = 0
        self._changed = torch.zeros(old.block_rows, dtype=torch.bool, device=engine.world.device)
        self.old.watchers.append(self._note)

    @property
    def block_rows(self) -> int:
        """Of the larger stack."""
        return self._group.block_rows

    def make(self) -> None:
        """Joint: the larger stack."""
        self.new = self._engine.make_shard(self._group)

    @property
    def left(self) -> int:
        """Rows that are to be copied; the same on every rank."""
        return self.old.group.block_rows - self._copied

    def copy(self) -> None:
        """Joint: the next rows of each rank."""
        rows = torch.arange(self._copied, self._copied + min(self.left, max(1, SLICE_BYTES // self._row_bytes)))
        self._changed[self._copied : self._copied + len(rows)] = False
        self._copied += len(rows)
        self._move(rows.to(self._changed.device))

    def finish(self) -> None:
        """Joint: what has changed since."""
        self.drop()
        self._move(self._changed.nonzero().flatten())

    def drop(self) -> None:
        """Takes no more notice of changes."""
        if self._note in self.old.watchers:
            self.old.watchers.remove(self._note)

    def _note(self, local_M: Tensor) -> None:
        self._changed[local_M] = True

    def _move(self, local_M: Tensor) -> None:
        rows_M, physical_M = moves(self.old.group, self.new.group, self._engine.world.rank, local_M)
        if self.old.books.frozen is not None:
            self.new.books.expect_frozen()
        for kind, tensor in self.old.kinds.items():
            arrived_M, arrived = self._engine.to_owners(self.new.group, physical_M, tensor[rows_M])
            assert arrived is not None
            self.new.kinds[kind].index_copy_(0, arrived_M, arrived)


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
    if table.serves_only and (growth.mean or growth.mean_of):
        raise InvalidInput(f"table {table.name!r} {SERVES_ONLY}: new rows can't be a mean; grow it without saying how")
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

"""Where each row lives: the one module that knows row → shard.

Tables that move alike (same dim, dtype and optimizer) are stacked into one *group*, because every gather costs a fixed
amount a table: 26 small tables in one stack answer in a third of the time. Each table is cut row-wise into blocks of
ceil(rows / world size) rows, rank r has block r of every table of the stack, one under the other:

    rank 0                      rank 1
    ┌ user 0 … 49 ┐             ┌ user 50 … 99 ┐
    ├ zip  0 … 3  ┤             ├ zip  4 … 6 · ┤     · a row that no id has
    └ size = block_rows         └ size = block_rows

So all ranks hold equally many rows, no shard is empty, whatever the table sizes, and the stack as a whole is again one
table cut row-wise: a row's number in the stack is its *physical* row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from embershard.config import Config, OptimizerSpec, TableSpec

_KERNEL_DIM = 4
"""FBGEMM's kernels want dims that are multiples of four."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Slot:
    """One table's place in its group."""

    table: TableSpec
    """The table."""
    block: int
    """Rows of the table a rank."""
    offset: int
    """Where the table's block begins in every rank's shard."""
    block_rows: int
    """Rows of the whole stack a rank."""

    def physical(self, rows_M: Tensor) -> Tensor:
        """Row numbers of the table → row numbers of the stack."""
        if self.block == self.table.rows:
            return rows_M + self.offset if self.offset else rows_M
        rank_M = torch.div(rows_M, self.block, rounding_mode="floor")
        return rows_M + rank_M * (self.block_rows - self.block) + self.offset

    def held(self, rank: int) -> tuple[int, int]:
        """First and one-past-last row of the table on a rank; equal if it has none."""
        start = min(rank * self.block, self.table.rows)
        return start, min(start + self.block, self.table.rows)

    def local(self, rank: int) -> slice:
        """Where those rows are in the rank's shard of the stack."""
        start, stop = self.held(rank)
        return slice(self.offset, self.offset + stop - start)


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Tables that are stacked: same dim, dtype and optimizer."""

    name: str
    """Unique in the collection."""
    slots: Mapping[str, Slot]
    """{table: its place}, in the order of the configuration."""
    dim: int
    """What callers see."""
    dtype: torch.dtype
    """Of the stored rows."""
    optimizer: OptimizerSpec
    """How gradients move rows."""
    block_rows: int
    """Rows a rank."""
    world_size: int
    """Ranks."""

    @property
    def rows(self) -> int:
        """Physical rows over all ranks."""
        return self.block_rows * self.world_size

    @property
    def kernel_dim(self) -> int:
        """The dim that is stored: padded with zeros to what FBGEMM's kernels want."""
        return -(-self.dim // _KERNEL_DIM) * _KERNEL_DIM

    @property
    def state_shape(self) -> tuple[int, ...] | None:
        """Shape of a rank's optimizer state: one sum of squares a number, or a row, or none."""
        shapes = {"sgd": None, "adagrad": (self.block_rows, self.kernel_dim), "rowwise_adagrad": (self.block_rows,)}
        return shapes[self.optimizer.kind]

    @property
    def bytes_per_rank(self) -> int:
        """Rows, optimizer state and a byte a row of bookkeeping."""
        state = self.state_shape
        row_bytes = self.kernel_dim * self.dtype.itemsize + 1
        state_bytes = 0 if state is None else 4 * (1 if len(state) == 1 else state[1])
        return self.block_rows * (row_bytes + state_bytes)

    def physical(self, rows: Mapping[str, Tensor]) -> tuple[Tensor, list[str], list[int]]:
        """The physical rows of those tables that are in this group, one table after the other; names and counts."""
        names = [table for table in self.slots if table in rows]
        pieces = [self.slots[table].physical(rows[table]) for table in names]
        stacked = pieces[0] if len(pieces) == 1 else torch.cat([torch.empty(0, dtype=torch.int64), *pieces])
        return stacked, names, [len(piece) for piece in pieces]

    def owner(self, physical_M: Tensor) -> Tensor:
        """The rank that holds each physical row."""
        return torch.div(physical_M, self.block_rows, rounding_mode="floor")

    def on_rank(self, physical_M: Tensor) -> Tensor:
        """Physical rows → rows of their rank's shard."""
        return physical_M % self.block_rows


def groups_of(config: Config, world_size: int) -> list[Group]:
    """Stacks the tables of a collection for a number of ranks."""
    alike: dict[tuple[int, str, OptimizerSpec], list[TableSpec]] = {}
    for table in config.tables:
        alike.setdefault((table.dim, table.dtype, config.optimizer_of(table)), []).append(table)
    return [
        _stack(f"group{number}", tables, dim, dtype, optimizer, world_size)
        for number, ((dim, dtype, optimizer), tables) in enumerate(alike.items())
    ]


def _stack(
    name: str, tables: Sequence[TableSpec], dim: int, dtype: str, optimizer: OptimizerSpec, world_size: int
) -> Group:
    blocks = [-(-table.rows // world_size) for table in tables]
    block_rows = sum(blocks)
    offsets = [sum(blocks[:number]) for number in range(len(blocks))]
    return Group(
        name=name,
        slots={
            table.name: Slot(table=table, block=block, offset=offset, block_rows=block_rows)
            for table, block, offset in zip(tables, blocks, offsets, strict=True)
        },
        dim=dim,
        dtype=getattr(torch, dtype),
        optimizer=optimizer,
        block_rows=block_rows,
        world_size=world_size,
    )

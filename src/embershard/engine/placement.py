"""Where each row lives: the one module that knows row → shard.

Matrices that move alike (same dim, dtype and optimizer), and are counted alike, are stacked into one *group*, because
every gather costs a fixed amount a matrix: 26 small ones in one stack answer in a third of the time. Each matrix is cut
row-wise into blocks of ceil(rows / world size) rows, rank r has block r of every matrix of the stack, one under the
other:

    rank 0                      rank 1
    ┌ user 0 … 49 ┐             ┌ user 50 … 99 ┐
    ├ zip  0 … 3  ┤             ├ zip  4 … 6 · ┤     · a row that no id has
    └ size = block_rows         └ size = block_rows

So all ranks hold equally many rows, no shard is empty, whatever the sizes, and the stack as a whole is again one table
cut row-wise: a row's number in the stack is its *physical* row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from embershard.codec import INT8_TAIL

if TYPE_CHECKING:
    from embershard.config import Config, Matrix, OptimizerSpec

_KERNEL_DIM = 4
"""FBGEMM's kernels want dims that are multiples of four."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Slot:
    """One matrix's place in its group."""

    matrix: Matrix
    """The matrix."""
    block: int
    """Rows of the matrix a rank."""
    offset: int
    """Where the matrix's block begins in every rank's shard."""
    block_rows: int
    """Rows of the whole stack a rank."""

    def physical(self, rows_M: Tensor) -> Tensor:
        """Row numbers of the matrix → row numbers of the stack."""
        if self.block == self.matrix.rows:
            return rows_M + self.offset if self.offset else rows_M
        return _physical(rows_M, self.block, self.offset, self.block_rows)

    def held(self, rank: int) -> tuple[int, int]:
        """First and one-past-last row of the matrix on a rank; equal if it has none."""
        start = min(rank * self.block, self.matrix.rows)
        return start, min(start + self.block, self.matrix.rows)

    def local(self, rank: int) -> slice:
        """Where those rows are in the rank's shard of the stack."""
        start, stop = self.held(rank)
        return slice(self.offset, self.offset + stop - start)


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Matrices that are stacked: same dim, dtype and optimizer, and counted alike."""

    name: str
    """Unique in the collection."""
    slots: Mapping[str, Slot]
    """{matrix: its place}, in the order of the configuration."""
    dim: int
    """What callers see."""
    dtype: torch.dtype
    """Of the stored rows; uint8 if they are int8 rows."""
    optimizer: OptimizerSpec
    """How gradients move rows."""
    counts: bool
    """Whether it is counted how often each row was updated and sighted."""
    block_rows: int
    """Rows a rank."""
    world_size: int
    """Ranks."""

    @property
    def rows(self) -> int:
        """Physical rows over all ranks."""
        return self.block_rows * self.world_size

    @property
    def quantised(self) -> bool:
        """Whether rows are stored as int8 rows (`rowwise`), which no kernel moves."""
        return self.dtype == torch.uint8

    @property
    def stored_dim(self) -> int:
        """Numbers of a row as snapshots have it; of int8 rows, bytes."""
        return self.dim + INT8_TAIL * self.quantised

    @property
    def kernel_dim(self) -> int:
        """The same as engines have it: padded with zeros to what FBGEMM's kernels want, unless there is no kernel."""
        return self.stored_dim if self.quantised else -(-self.dim // _KERNEL_DIM) * _KERNEL_DIM

    @property
    def state_shape(self) -> tuple[int, ...] | None:
        """Shape of a rank's optimizer state: one sum of squares a number, or a row, or none."""
        if self.quantised:
            return None
        shapes = {"sgd": None, "adagrad": (self.block_rows, self.kernel_dim), "rowwise_adagrad": (self.block_rows,)}
        return shapes[self.optimizer.kind]

    @property
    def bytes_per_row(self) -> int:
        """Of a row and its optimizer state."""
        state = self.state_shape
        return self.kernel_dim * self.dtype.itemsize + (
            0 if state is None else 4 * (1 if len(state) == 1 else state[1])
        )

    @property
    def book_bytes_per_row(self) -> int:
        """Of what else is known of a row: two counts of 32 bits, or whether an update has reached it."""
        return 8 if self.counts else 1

    @property
    def bytes_per_rank(self) -> int:
        """Rows, optimizer state, books, and this rank's copies of what is shared."""
        shared = sum(slot.matrix.rows for slot in self.slots.values() if slot.matrix.shared)
        return self.block_rows * (self.bytes_per_row + self.book_bytes_per_row) + 4 * shared * self.dim

    def physical(self, rows: Mapping[str, Tensor]) -> tuple[Tensor, list[str], list[int]]:
        """The physical rows of those matrices that are in this group, one after the other; names and counts."""
        names = [matrix for matrix in self.slots if matrix in rows]
        counts = [rows[matrix].numel() for matrix in names]
        if len(names) == 1:
            return self.slots[names[0]].physical(rows[names[0]]), names, counts
        # All at once: of many small matrices, each operation takes longer than what it does.
        stacked = torch.cat([torch.empty(0, dtype=torch.int64), *(rows[matrix] for matrix in names)])
        offsets_M = _repeated([self.slots[matrix].offset for matrix in names], counts)
        if self.world_size == 1:
            return stacked + offsets_M, names, counts
        blocks_M = _repeated([self.slots[matrix].block for matrix in names], counts)
        return _physical(stacked, blocks_M, offsets_M, self.block_rows), names, counts

    def owner(self, physical_M: Tensor) -> Tensor:
        """The rank that holds each physical row."""
        return torch.div(physical_M, self.block_rows, rounding_mode="floor")

    def on_rank(self, physical_M: Tensor) -> Tensor:
        """Physical rows → rows of their rank's shard."""
        return physical_M % self.block_rows


def _physical(rows_M: Tensor, block: int | Tensor, offset: int | Tensor, block_rows: int) -> Tensor:
    """Row numbers of matrices whose blocks are so large and begin there → row numbers of the stack."""
    rank_M = torch.div(rows_M, block, rounding_mode="floor")
    return rows_M + rank_M * (block_rows - block) + offset


def _repeated(numbers: list[int], counts: list[int]) -> Tensor:
    """int64: each as often as its count."""
    return torch.from_numpy(np.repeat(np.array(numbers, np.int64), counts))


def groups_of(config: Config, world_size: int) -> list[Group]:
    """Stacks the matrices of a collection for a number of ranks."""
    alike: dict[tuple[int, str, OptimizerSpec, bool], list[Matrix]] = {}
    for matrix in config.matrices:
        key = matrix.dim, matrix.dtype, config.optimizer_of(matrix.table), matrix.table.counts
        alike.setdefault(key, []).append(matrix)
    return [
        _stack(f"group{number}", matrices, config.optimizer_of(matrices[0].table), world_size)
        for number, matrices in enumerate(alike.values())
    ]


def bytes_of_tables(groups: Sequence[Group]) -> dict[str, int]:
    """{table: bytes of rows and optimizer state over all ranks}; rows are padded to the kernels' dims and the ranks."""
    sizes: dict[str, int] = {}
    for group in groups:
        for slot in group.slots.values():
            table = slot.matrix.table.name
            sizes[table] = sizes.get(table, 0) + slot.block * group.world_size * group.bytes_per_row
    return sizes


def moves(old: Group, new: Group, rank: int, local_M: Tensor) -> tuple[Tensor, Tensor]:
    """Where rows of a rank's shard go when a stack is cut anew for more rows: those of them that are rows of a matrix,
    and their physical rows in the new stack."""
    rows, physical = [], []
    for name, before in old.slots.items():
        here, first = before.local(rank), before.held(rank)[0]
        of_matrix = local_M[(local_M >= here.start) & (local_M < here.stop)]
        rows.append(of_matrix)
        physical.append(new.slots[name].physical(of_matrix - here.start + first))
    return torch.cat(rows), torch.cat(physical)


def _stack(name: str, matrices: Sequence[Matrix], optimizer: OptimizerSpec, world_size: int) -> Group:
    blocks = [-(-matrix.rows // world_size) for matrix in matrices]
    block_rows, first = sum(blocks), matrices[0]
    offsets = [sum(blocks[:number]) for number in range(len(blocks))]
    return Group(
        name=name,
        slots={
            matrix.name: Slot(matrix=matrix, block=block, offset=offset, block_rows=block_rows)
            for matrix, block, offset in zip(matrices, blocks, offsets, strict=True)
        },
        dim=first.dim,
        dtype=torch.uint8 if first.dtype == "int8" else getattr(torch, first.dtype),
        optimizer=optimizer,
        counts=first.table.counts,
        block_rows=block_rows,
        world_size=world_size,
    )

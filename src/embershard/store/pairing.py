"""Rows of two snapshots that belong together: those of one id, wherever they are, and else those of one number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from embershard.rowwise import floats
from embershard.store.mapped import mapped

if TYPE_CHECKING:
    from torch import Tensor

    from embershard.config import TableSpec
    from embershard.store.manifest import Snapshot

RowsOfIds = Mapping[int | str, int]
"""{id: its row}."""

_NUMBERS = 2**18
"""Of each snapshot that are in memory at a time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class IdDifference:
    """Who owns which row."""

    added: Sequence[int | str]
    """Ids that only B has, in the order of their rows."""
    gone: Sequence[int | str]
    """Ids that only A has, likewise."""
    moved: Sequence[tuple[int | str, int, int]]
    """Ids whose row is another: (id, row in A, row in B)."""


def compare_ids(ids_a: RowsOfIds, ids_b: RowsOfIds) -> IdDifference | None:
    """Who owns which row; None where neither tells."""
    if not ids_a and not ids_b:
        return None
    return IdDifference(
        added=[key for key in ids_b if key not in ids_a],
        gone=[key for key in ids_a if key not in ids_b],
        moved=[(key, row, ids_b[key]) for key, row in ids_a.items() if ids_b.get(key, row) != row],
    )


def ids_of_rows(matrix: str, table_a: TableSpec, table_b: TableSpec) -> bool:
    """Whether the rows of this matrix are those that ids of the table own."""
    return matrix == table_a.name and table_a.owns_rows and table_b.owns_rows


def pairs(a: Snapshot, b: Snapshot, matrix: str, ids_a: RowsOfIds, ids_b: RowsOfIds) -> tuple[Tensor, Tensor]:
    """int64 [M] twice, rows of A and of B that belong together: of one id, or of one number that belongs to no id."""
    rows = min(side.tensors[f"{matrix}.weight"]["shape"][0] for side in (a, b))
    both = [key for key in ids_a if key in ids_b]
    nobodys = torch.ones(rows, dtype=torch.bool)
    for owned in (ids_a.values(), ids_b.values()):
        numbers = torch.tensor(list(owned), dtype=torch.int64)
        nobodys[numbers[numbers < rows]] = False
    rest = nobodys.nonzero()[:, 0]
    of_ids = (torch.tensor([ids[key] for key in both], dtype=torch.int64) for ids in (ids_a, ids_b))
    which_a, which_b = (torch.cat([numbers, rest]) for numbers in of_ids)
    return which_a, which_b


def blocks(a: Snapshot, b: Snapshot, matrix: str, which: tuple[Tensor, Tensor]) -> Iterator[tuple[int, Tensor, Tensor]]:
    """The rows of a matrix that belong together, a block at a time: the number of its first pair, and both sides' rows
    as float32.

    Raises:
        SnapshotError: one can't be read.
    """
    rows_a, rows_b = (mapped(side, f"{matrix}.weight") for side in (a, b))
    step = max(1, _NUMBERS // rows_a.row_numbers)
    for start in range(0, len(which[0]), step):
        which_a, which_b = (rows[start : start + step] for rows in which)
        yield start, floats(rows_a.take(which_a)), floats(rows_b.take(which_b))

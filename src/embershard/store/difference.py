"""What differs between two snapshots: layout, rows, optimizers, who owns which row, and what the rows are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from embershard.config import layout_difference
from embershard.store.loading import read_tensors
from embershard.store.offline import BLOCK_ROWS, config_of, rows_of_ids

if TYPE_CHECKING:
    from torch import Tensor

    from embershard.config import TableSpec
    from embershard.store.manifest import Snapshot

RowsOfIds = Mapping[int | str, int]
"""{id: its row}."""


@dataclass(frozen=True, kw_only=True, slots=True)
class IdDifference:
    """Who owns which row."""

    added: Sequence[int | str]
    """Ids that only B has, in the order of their rows."""
    gone: Sequence[int | str]
    """Ids that only A has, likewise."""
    moved: Sequence[tuple[int | str, int, int]]
    """Ids whose row is another: (id, row in A, row in B)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RowDifference:
    """What the rows of one matrix are."""

    compared: int
    """Rows that both have: of the same id where that is known, else of the same number."""
    differing: int
    """Rows of those with a number that differs."""
    largest: float
    """The largest difference of a number."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TableDifference:
    """One table that both have."""

    rows: tuple[int, int]
    """In A and in B."""
    optimizers: tuple[str, str]
    """Their kinds."""
    ids: IdDifference | None
    """None where neither tells who owns which row."""
    weights: Mapping[str, RowDifference]
    """{matrix: …} of those that both have with one dim."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """Two snapshots beside each other."""

    layout: Sequence[str]
    """Where they answer differently, a line a place; "here" is A, and "there" is B."""
    only: tuple[Sequence[str], Sequence[str]]
    """Tables that only A has, and only B."""
    tables: Mapping[str, TableDifference]
    """Tables that both have."""


def compare(a: Snapshot, b: Snapshot) -> Difference:
    """Compares two snapshots, each of which was verified.

    Raises:
        SnapshotError: one can't be read.
    """
    tables_a, tables_b = ({table.name: table for table in config_of(side).tables} for side in (a, b))
    return Difference(
        layout=layout_difference(a.manifest["layout"], b.manifest["layout"]),
        only=([name for name in tables_a if name not in tables_b], [name for name in tables_b if name not in tables_a]),
        tables={name: _table(a, b, tables_a[name], tables_b[name]) for name in tables_a if name in tables_b},
    )


def _table(a: Snapshot, b: Snapshot, table_a: TableSpec, table_b: TableSpec) -> TableDifference:
    ids_a, ids_b = rows_of_ids(a, table_a), rows_of_ids(b, table_b)
    name = table_a.name
    dims_b = {matrix.name: matrix.dim for matrix in table_b.matrices}
    alike = [matrix.name for matrix in table_a.matrices if dims_b.get(matrix.name) == matrix.dim]
    by_id = table_a.owns_rows and table_b.owns_rows
    return TableDifference(
        rows=(table_a.rows, table_b.rows),
        optimizers=(a.manifest["optimizers"][name], b.manifest["optimizers"][name]),
        ids=_ids(ids_a, ids_b) if ids_a or ids_b else None,
        weights={
            matrix: _weights(a, b, matrix, *((ids_a, ids_b) if by_id and matrix == name else ({}, {})))
            for matrix in alike
        },
    )


def _ids(ids_a: RowsOfIds, ids_b: RowsOfIds) -> IdDifference:
    return IdDifference(
        added=[key for key in ids_b if key not in ids_a],
        gone=[key for key in ids_a if key not in ids_b],
        moved=[(key, row, ids_b[key]) for key, row in ids_a.items() if ids_b.get(key, row) != row],
    )


def _weights(a: Snapshot, b: Snapshot, matrix: str, ids_a: RowsOfIds, ids_b: RowsOfIds) -> RowDifference:
    weight = f"{matrix}.weight"
    rows_a, rows_b = (read_tensors(side, [weight])[weight] for side in (a, b))
    which_a, which_b = _pairs(ids_a, ids_b, min(len(rows_a), len(rows_b)))
    differing, largest = 0, 0.0
    for start in range(0, len(which_a), BLOCK_ROWS):
        block = slice(start, start + BLOCK_ROWS)
        apart = (rows_a[which_a[block]].float() - rows_b[which_b[block]].float()).abs().amax(dim=1)
        differing, largest = differing + int((apart != 0).sum()), max(largest, float(apart.max()))
    return RowDifference(compared=len(which_a), differing=differing, largest=largest)


def _pairs(ids_a: RowsOfIds, ids_b: RowsOfIds, rows: int) -> tuple[Tensor, Tensor]:
    """Rows of A and of B that belong together: those of one id, and those of one number that belong to no id."""
    both = [key for key in ids_a if key in ids_b]
    nobodys = torch.ones(rows, dtype=torch.bool)
    for owned in (ids_a.values(), ids_b.values()):
        numbers = torch.tensor(list(owned), dtype=torch.int64)
        nobodys[numbers[numbers < rows]] = False
    rest = nobodys.nonzero()[:, 0]
    of_ids = (torch.tensor([ids[key] for key in both], dtype=torch.int64) for ids in (ids_a, ids_b))
    which_a, which_b = (torch.cat([numbers, rest]) for numbers in of_ids)
    return which_a, which_b

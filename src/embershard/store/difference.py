"""What differs between two snapshots: layout, rows, optimizers, who owns which row, and what the rows are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from embershard.config import layout_difference
from embershard.store.offline import config_of, rows_of_ids
from embershard.store.pairing import IdDifference, RowsOfIds, blocks, compare_ids, ids_of_rows, pairs

if TYPE_CHECKING:
    from embershard.config import TableSpec
    from embershard.store.manifest import Snapshot


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
    return TableDifference(
        rows=(table_a.rows, table_b.rows),
        optimizers=(a.manifest["optimizers"][name], b.manifest["optimizers"][name]),
        ids=compare_ids(ids_a, ids_b),
        weights={
            matrix: _weights(a, b, matrix, *((ids_a, ids_b) if ids_of_rows(matrix, table_a, table_b) else ({}, {})))
            for matrix in alike
        },
    )


def _weights(a: Snapshot, b: Snapshot, matrix: str, ids_a: RowsOfIds, ids_b: RowsOfIds) -> RowDifference:
    which = pairs(a, b, matrix, ids_a, ids_b)
    differing, largest = 0, 0.0
    for _, rows_a, rows_b in blocks(a, b, matrix, which):
        apart = (rows_a - rows_b).abs().amax(dim=1)
        differing, largest = differing + int((apart != 0).sum()), max(largest, float(apart.max()))
    return RowDifference(compared=len(which[0]), differing=differing, largest=largest)

"""What training did to the rows of a collection between two snapshots: which moved, how far, and those of the head."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from embershard.config import DirectIds, layout_difference, spelled_out
from embershard.errors import FingerprintMismatch
from embershard.store.head import HeadDrift, head_drift
from embershard.store.loading import read_tensors
from embershard.store.moves import COSINE_QUANTILES, RELATIVE_QUANTILES, Moves, quantiles
from embershard.store.offline import config_of, rows_of_ids
from embershard.store.pairing import IdDifference, compare_ids, ids_of_rows, pairs

if TYPE_CHECKING:
    from embershard.config import TableSpec
    from embershard.store.manifest import Snapshot
    from embershard.store.pairing import RowsOfIds


@dataclass(frozen=True, kw_only=True, slots=True)
class RowDrift:
    """One row that moved."""

    id: int | str | None
    """Its id, by name where it has one; None: it is no id's own."""
    row: int
    """Its number in the matrix after."""
    move: float
    """|after − before|; not finite if a number of the row isn't."""
    relative: float
    """The same by |before|; NaN if that is 0 or something isn't finite."""
    cosine: float
    """Of before and after; NaN if either is 0 or something isn't finite."""
    updates: int | None
    """That had changed it before; None: it isn't known, as the snapshots, or one of them, don't count."""
    updates_since: int | None
    """That have changed it since, or since it started anew; likewise."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MatrixDrift:
    """The rows of one matrix."""

    compared: int
    """Rows that both have: of the same id where ids own rows, else of the same number."""
    moved: int
    """Of those, with a number that differs."""
    trained: int | None
    """Of those compared, that more updates have reached than before; None: it isn't known, as no counts are."""
    relative: Mapping[str, float] | None
    """Quantiles (`RELATIVE_QUANTILES`) among the rows that moved; None if it is defined for none."""
    cosine: Mapping[str, float] | None
    """Likewise (`COSINE_QUANTILES`)."""
    most_moved: Sequence[RowDrift]
    """Those that moved farthest, the farthest first."""
    frozen: int
    """Rows that are frozen in both."""
    frozen_moved: int
    """Of those, that moved all the same, which must never be."""
    frozen_most_moved: Sequence[RowDrift]
    """Of those, that moved farthest."""
    head: HeadDrift | None
    """What became of the rows that matter most; None: it isn't known which they are, as no counts are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TableDrift:
    """One table."""

    rows: tuple[int, int]
    """Before and after."""
    ids: IdDifference | None
    """Who owns which row; None where nothing tells."""
    matrices: Mapping[str, MatrixDrift]
    """{matrix: …}: all that the table is made of."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Drift:
    """All tables of a collection, before and after."""

    before: Snapshot
    """The one."""
    after: Snapshot
    """The other."""
    tables: Mapping[str, TableDrift]
    """{table: …}."""


def drift(before: Snapshot, after: Snapshot, *, top: int = 10) -> Drift:
    """Compares two snapshots of one collection, each of which was verified; names the `top` most moved rows of each
    matrix, 1 at least.

    A few numbers of every row are in memory, and of the rows themselves a block.

    Raises:
        FingerprintMismatch: they are of different collections, with the difference.
        SnapshotError: one can't be read.
    """
    if lines := layout_difference(before.manifest["layout"], after.manifest["layout"]):
        raise FingerprintMismatch(
            f"{after.path}: is of another collection than {before.path}, so that its rows have not come of those: "
            f"{spelled_out(lines)} (here: before, there: after); give two snapshots of one collection, or tell them "
            "apart with `embershard diff`"
        )
    was, now = (config_of(side) for side in (before, after))
    tables = {table.name: _table(before, after, table, now.table(table.name), top) for table in was.tables}
    return Drift(before=before, after=after, tables=tables)


def _table(before: Snapshot, after: Snapshot, was: TableSpec, now: TableSpec, top: int) -> TableDrift:
    ids = rows_of_ids(before, was), rows_of_ids(after, now)
    names = {row: key for key, row in ids[1].items()}
    direct = isinstance(now.ids, DirectIds)

    def owner_of(row: int) -> int | str | None:
        return names.get(row, row if direct else None)

    def matrix_drift(matrix: str) -> MatrixDrift:
        if ids_of_rows(matrix, was, now):
            return _matrix(before, after, matrix, ids, owner_of, top)
        return _matrix(before, after, matrix, ({}, {}), lambda _: None, top)

    matrices = {matrix.name: matrix_drift(matrix.name) for matrix in now.matrices}
    return TableDrift(rows=(was.rows, now.rows), ids=compare_ids(*ids), matrices=matrices)


def _matrix(
    before: Snapshot,
    after: Snapshot,
    matrix: str,
    ids: tuple[RowsOfIds, RowsOfIds],
    owner_of: Callable[[int], int | str | None],
    top: int,
) -> MatrixDrift:
    which = which_M, now_M = pairs(before, after, matrix, *ids)
    was, now = (_books(side, matrix) for side in (before, after))
    moves = Moves.of(before, after, matrix, which)
    frozen_M = (was["frozen"][which_M] & now["frozen"][now_M]) != 0
    frozen_V = frozen_M[moves.pairs_V]
    updates_M, updates_since_M, head = None, None, None
    if "sightings" in was and "sightings" in now:
        updates_M, sightings_R = was["updates"][which_M], now["sightings"].clone()
        updates_since_M = _since(updates_M, now["updates"][now_M])
        sightings_R[now_M] = _since(was["sightings"][which_M], sightings_R[now_M])
        head = head_drift(was["sightings"], sightings_R, which_M[moves.pairs_V], moves)

    def farthest(chosen_V: Tensor) -> list[RowDrift]:
        at_V = chosen_V.nonzero()[:, 0]
        order_V = moves.move_V[at_V].argsort(descending=True, stable=True)  # what isn't a number comes first
        return [told(at) for at in at_V[order_V[:top]].tolist()]

    def told(at: int) -> RowDrift:
        pair = int(moves.pairs_V[at])
        row = int(now_M[pair])
        return RowDrift(
            id=owner_of(row),
            row=row,
            move=float(moves.move_V[at]),
            relative=float(moves.relative_V[at]),
            cosine=float(moves.cosine_V[at]),
            updates=None if updates_M is None else int(updates_M[pair]),
            updates_since=None if updates_since_M is None else int(updates_since_M[pair]),
        )

    return MatrixDrift(
        compared=len(now_M),
        moved=len(moves.pairs_V),
        trained=None if updates_since_M is None else int((updates_since_M > 0).sum()),
        relative=quantiles(moves.relative_V, RELATIVE_QUANTILES),
        cosine=quantiles(moves.cosine_V, COSINE_QUANTILES),
        most_moved=farthest(torch.ones_like(frozen_V)),
        frozen=int(frozen_M.sum()),
        frozen_moved=int(frozen_V.sum()),
        frozen_most_moved=farthest(frozen_V),
        head=head,
    )


def _books(snapshot: Snapshot, matrix: str) -> dict[str, Tensor]:
    """{kind: [R]}: what is known of every row; sightings only where they are counted."""
    names = {kind: f"{matrix}.{kind}" for kind in ("updates", "sightings", "frozen")}
    read = read_tensors(snapshot, snapshot.tensors.keys() & names.values())
    books = {kind: read[name] for kind, name in names.items() if name in read}
    return {"frozen": torch.zeros(len(books["updates"]), dtype=torch.uint8)} | books


def _since(before_M: Tensor, after_M: Tensor) -> Tensor:
    """How much counts have grown; one that is smaller is of a row that started anew, and began at 0."""
    return torch.where(after_M < before_M, after_M, after_M - before_M)

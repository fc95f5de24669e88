"""Snapshots without a server: finding one, what its tables are, and the vectors of a table's ids as they are served."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from embershard.arrays import tensor_of
from embershard.config import DirectIds, HashedIds, VocabularyIds, parse_config
from embershard.errors import InvalidInput
from embershard.factor import combine, finish, stored_rows
from embershard.formats import Vectors
from embershard.rowwise import floats
from embershard.store import manifest
from embershard.store.id_files import names_of, read_id_file
from embershard.store.loading import read_tensors

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embershard.config import Config, TableSpec
    from embershard.store.manifest import Snapshot

BLOCK_ROWS = 65_536
"""Rows that are worked on at a time, so that it takes little memory beside what is read and what is made."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Export:
    """The vectors of a table's ids."""

    vectors: Vectors
    """Of every id, in the order of rows."""
    unnamed: int = 0
    """Rows that no name stands for, and that are therefore left out."""
    integers_as_text: int = 0
    """Integer ids that are given as text, because others are strings."""


def find_snapshot(path: Path) -> Snapshot:
    """The snapshot whose folder this is, or the newest of a data directory; its files verified.

    Raises:
        SnapshotError: there is none, or it is damaged.
    """
    found = manifest.find_snapshot(path)
    found.verify()
    return found


def config_of(snapshot: Snapshot) -> Config:
    """A configuration of a snapshot's tables, as far as it tells of them.

    How rows start, it doesn't tell, nor how fast they learn; of a list of names only a digest, so that it is left out.
    """
    told = snapshot.manifest
    tables = [
        {
            **table,
            "name": name,
            "ids": {key: value for key, value in table["ids"].items() if key != "names"},
            "optimizer": {"kind": told["optimizers"][name]},
        }
        for name, table in told["layout"]["tables"].items()
    ]
    collection = {"name": told["collection"], "seed": told["layout"]["seed"]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is to be said of a configuration was said when it was served
        return parse_config({"collection": collection, "tables": tables}, source=str(snapshot.path))


def rows_of_ids(snapshot: Snapshot, table: TableSpec) -> dict[int | str, int]:
    """{id: row} of all ids that own one by a vocabulary or have one by a list of names, in the order of rows.

    Raises:
        SnapshotError: the file that tells it is damaged.
    """
    first = table.ids.fallback_rows if isinstance(table.ids, VocabularyIds) else 0
    state = read_id_file(snapshot.path, table.name)
    return {key: first + row for key, row in names_of(state)} if state else {}


def export(snapshot: Snapshot, name: str, *, row_numbers: bool = False) -> Export:
    """The vectors of all ids of a table as they are served, before any pooling.

    `row_numbers`: of a table of direct ids, every row by its number, even if there is a list of names.

    Raises:
        InvalidInput: there is no such table, or no list of its ids, or nothing in it.
        SnapshotError: the snapshot can't be read.
    """
    tables = {table.name: table for table in config_of(snapshot).tables}
    if name not in tables:
        raise InvalidInput(f"{snapshot.path}: there is no table {name!r}; it has {', '.join(tables)}")
    table = tables[name]
    where = f"{snapshot.path}: table {name!r}"
    if isinstance(table.ids, HashedIds):
        raise InvalidInput(
            f"{where} has hashed ids: any id has a vector there, and nothing tells which were asked for, so that there "
            "is no list of ids to export; look up those that you know"
        )
    if row_numbers and not isinstance(table.ids, DirectIds):
        raise InvalidInput(f"{where} has vocabulary ids, which are no row numbers; export them as they are")
    rows = {} if row_numbers else rows_of_ids(snapshot, table)
    if isinstance(table.ids, VocabularyIds) and not rows:
        raise InvalidInput(f"{where} has no id that owns a row yet, so that there is nothing to export")
    if rows:
        vectors_ND = served(snapshot, table, np.fromiter(rows.values(), np.int64, len(rows)))
        unnamed = table.rows - len(rows) if isinstance(table.ids, DirectIds) else 0
        return _named(where, list(rows), vectors_ND, unnamed)
    vectors_ND = served(snapshot, table, np.arange(table.rows))
    padding = table.ids.padding
    if isinstance(padding, int) and 0 <= padding < table.rows:
        vectors_ND[padding] = 0
    return Export(vectors=Vectors(ids=np.arange(table.rows), vectors_ND=vectors_ND))


def served(snapshot: Snapshot, table: TableSpec, rows_N: NDArray[np.int64]) -> NDArray[np.float32]:
    """float32 [N, D]: the vectors that these rows of a table make."""
    matrices = table.matrices
    tensors = read_tensors(snapshot, [f"{matrix.name}.weight" for matrix in matrices])
    stored = [tensors[f"{matrix.name}.weight"] for matrix in matrices if not matrix.shared]
    shared = [tensors[f"{matrix.name}.weight"] for matrix in matrices if matrix.shared]
    vectors_ND = np.empty((len(rows_N), table.dim), np.float32)
    for start in range(0, len(rows_N), BLOCK_ROWS):
        rows_M = stored_rows(table, tensor_of(rows_N[start : start + BLOCK_ROWS]))
        gathered = [floats(rows_SD[numbers]) for rows_SD, numbers in zip(stored, rows_M, strict=True)]
        made = finish(table, combine(table, gathered), shared[0] if shared else None)
        vectors_ND[start : start + BLOCK_ROWS] = made.numpy()
    return vectors_ND


def _named(where: str, ids: list[int | str], vectors_ND: NDArray[np.float32], unnamed: int) -> Export:
    integers = sum(isinstance(key, int) for key in ids)
    if integers == len(ids):
        return Export(vectors=Vectors(ids=np.array(ids, np.int64), vectors_ND=vectors_ND))
    texts = tuple(str(key) for key in ids)
    if len(set(texts)) < len(texts):
        strings = {key for key in ids if isinstance(key, str)}
        twice = next(key for key in ids if isinstance(key, int) and str(key) in strings)
        raise InvalidInput(
            f"{where} has both the integer {twice} and the string {str(twice)!r} as ids, which no file of one kind of "
            "ids can tell apart"
        )
    return Export(vectors=Vectors(ids=texts, vectors_ND=vectors_ND), unnamed=unnamed, integers_as_text=integers)

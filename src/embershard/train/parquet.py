"""Parquet files as a source: a chunk is a row group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from embershard.errors import InvalidInput
from embershard.train.columns import Columns, Kind
from embershard.train.reading import named, reading
from embershard.train.source import Piece


@dataclass(frozen=True, kw_only=True, slots=True)
class _Group:
    """Where a chunk is."""

    path: Path
    metadata: Any
    """Of the file, so that it is read once."""
    number: int
    """Of the row group in its file."""
    first_row: int
    """Of the row group in its file."""

    def read(self, names: Sequence[str]) -> pa.Table:
        with pq.ParquetFile(self.path, metadata=self.metadata, page_checksum_verification=True) as file:
            return file.read_row_group(self.number, columns=list(names))


class ParquetFiles:
    """Row groups in the order of the files; see `embershard.train.source`.

    Each row group is decoded as a whole, so it should fit into memory several times. Where rows are split by time, the
    column of times is read beforehand, to count.

    Raises:
        InvalidInput: a file can't be read, lacks a column, or has one of another type than it must be, or than the
            first file has; or there is no row.
    """

    def __init__(self, paths: Sequence[Path], columns: Columns) -> None:
        self.title = named(paths, columns.split)
        self.max_lengths = columns.max_lengths
        self._columns = columns
        self.kinds, self._groups = _opened(paths, columns)
        self.chunks = len(self._groups)
        self._rows = cache(self._count)
        if not any(self._rows(chunk) for chunk in range(self.chunks)):
            raise InvalidInput(f"{self.title}: there is no row")

    @cached_property
    def examples(self) -> int | None:
        """All examples."""
        return sum(self._rows(chunk) for chunk in range(self.chunks))

    def pieces(self, chunk: int) -> Iterator[Piece]:
        """One, not decoded."""
        yield Piece(rows=self._rows(chunk), read=lambda: self._read(chunk))

    def _count(self, chunk: int) -> int:
        group, split = self._groups[chunk], self._columns.split
        if split is None:
            return int(group.metadata.row_group(group.number).num_rows)
        with reading(group.path):
            times_B = group.read([split.column])[split.column].combine_chunks()
            return int(split.kept(times_B, group.first_row).true_count)

    def _read(self, chunk: int) -> pa.Table:
        group = self._groups[chunk]
        with reading(group.path):
            return self._columns.convert(group.read(self._columns.names), self.kinds, group.first_row)


def _opened(paths: Sequence[Path], columns: Columns) -> tuple[dict[str, Kind], list[_Group]]:
    """What the ids are, the same in all files, and the row groups."""
    kinds: dict[str, Kind] = {}
    groups = []
    for path in paths:
        with reading(path):
            with pq.ParquetFile(path) as file:
                schema, metadata = file.schema_arrow, file.metadata
            columns.check_names(schema.names)
            found = columns.kinds(schema)
            kinds = kinds or found
            for feature, kind in found.items():
                if kind != kinds[feature]:
                    raise InvalidInput(
                        f"column {columns.inputs[feature]!r} holds {kind}, and that of {paths[0]} {kinds[feature]}; "
                        "all files must hold the same"
                    )
        first_row = 0
        for number in range(metadata.num_row_groups):
            groups.append(_Group(path=path, metadata=metadata, number=number, first_row=first_row))
            first_row += metadata.row_group(number).num_rows
    return kinds, groups

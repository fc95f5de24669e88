"""CSV and TSV files as a source: a chunk is a file, which is read from its beginning, a block at a time.

The first block of every file tells what its columns hold: numbers, dates and timestamps as pyarrow reads them. Ids are
read as text, and converted as those of any other file. Empty cells are null.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, types

from embershard.errors import InvalidInput
from embershard.train.columns import Columns, split_text
from embershard.train.reading import named, reading
from embershard.train.schema import FeatureSpec
from embershard.train.source import Piece

BLOCK_BYTES: Final = 2**22
"""What is read and decoded at once; no line is longer."""

_IdType: TypeAlias = Literal["int64", "uint64", "string"]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Shown:
    """What the first block of a file shows."""

    schema: pa.Schema
    """The types of all columns; those of ids alone are text."""
    ids: dict[str, _IdType | None]
    """{feature: what its ids are}; None: there are none."""
    rows: int
    """How many there are."""


class TextFiles:
    """Files in their order; see `embershard.train.source`.

    How many examples there are isn't known until they are read, and whoever begins in the middle has all read that
    comes before.

    Raises:
        InvalidInput: a file can't be read, lacks a column, or has one whose first block isn't what it must be; or no
            file has a row.
    """

    examples: int | None = None

    def __init__(self, paths: Sequence[Path], columns: Columns, delimiter: str) -> None:
        self.title = named(paths, columns.split)
        self.max_lengths = columns.max_lengths
        self.chunks = len(paths)
        self._paths, self._delimiter = paths, delimiter
        self._headers: dict[Path, list[str]] = {}
        # What the columns are read as: first ids, and then what the first blocks show of all others.
        self._types = {column: pa.large_string() for column in columns.inputs.values() if column not in columns.plain}
        shown = {path: self._shown(path, columns) for path in paths}
        if not any(block.rows for block in shown.values()):
            raise InvalidInput(f"{self.title}: there is no row")
        self._columns = replace(columns, features=_typed([block.ids for block in shown.values()], columns.features))
        for path, block in shown.items():
            with reading(path):
                self.kinds = self._columns.kinds(block.schema)
        for column in columns.plain:
            kind = _common(
                {path: block.schema.field(column).type for path, block in shown.items() if block.rows}, column
            )
            whole = types.is_integer(kind) and column in columns.numbers  # so far: a later one may have a fraction
            self._types[column] = pa.float64() if whole else kind

    def pieces(self, chunk: int) -> Iterator[Piece]:
        """Blocks, as they are read."""
        path, first_row = self._paths[chunk], 0
        with reading(path), self._open(path, self._columns.names) as reader:
            for block in reader:
                table = self._columns.convert(pa.Table.from_batches([block]), self.kinds, first_row)
                first_row += block.num_rows
                yield Piece.of(table)

    def _shown(self, path: Path, columns: Columns) -> _Shown:
        """What the first block of a file shows."""
        with reading(path), self._open(path) as reader:
            self._headers[path] = reader.schema.names
            columns.check_names(self._headers[path])
            block = next(iter(reader), None)
            table = reader.schema.empty_table() if block is None else pa.Table.from_batches([block])
            ids = {
                feature: spec.type or _ids_type(columns.inputs[feature], table[columns.inputs[feature]], spec.separator)
                for feature, spec in columns.features.items()
            }
        # Nulls alone seem to be numbers.
        kinds = [pa.float64() if types.is_null(field.type) else field.type for field in table.schema]
        schema = pa.schema(list(zip(table.schema.names, kinds, strict=True)))
        return _Shown(schema=schema, ids=ids, rows=table.num_rows)

    @contextmanager
    def _open(self, path: Path, names: Sequence[str] | None = None) -> Iterator[Any]:
        """A reader of these columns, or of all."""
        try:
            # One thread alone can tell which row is wrong; training goes on meanwhile.
            with csv.open_csv(
                path,
                read_options=csv.ReadOptions(block_size=BLOCK_BYTES, use_threads=False),
                parse_options=csv.ParseOptions(delimiter=self._delimiter),
                convert_options=csv.ConvertOptions(
                    column_types=self._types, include_columns=names, null_values=[""], strings_can_be_null=True
                ),
            ) as reader:
                yield reader
        except pa.ArrowInvalid as error:
            raise InvalidInput(_told(str(error), self._headers.get(path, []))) from error


def _typed(
    shown: Sequence[Mapping[str, _IdType | None]], features: Mapping[str, FeatureSpec]
) -> dict[str, FeatureSpec]:
    """The features, each with a type: integers where all ids of all first blocks are, else strings."""
    typed = {}
    for feature, spec in features.items():
        found = {block[feature] for block in shown} - {None}
        typed[feature] = replace(spec, type=found.pop() if len(found) == 1 else "string")
    return typed


def _ids_type(column: str, texts: Any, separator: str | None) -> _IdType | None:
    """What the ids of a block are; None: there are none."""
    if separator is not None:
        texts = pc.list_flatten(split_text(texts, separator))
    texts = texts.filter(pc.not_equal(texts.cast(pa.large_string()), ""))
    if not len(texts):
        return None
    if _are(texts, pa.int64()):
        return "int64"
    if _are(texts, pa.float64()):
        raise InvalidInput(
            f"column {column!r} holds numbers that aren't all int64, such as {texts[0]}; ids are integers or strings: "
            'say type = "string" or "uint64"'
        )
    return "string"


def _are(texts: Any, wanted: pa.DataType) -> bool:
    try:
        texts.cast(wanted)
    except pa.ArrowInvalid:
        return False
    return True


def _common(kinds: Mapping[Path, pa.DataType], column: str) -> pa.DataType:
    """What a column is read as, the same in all files.

    Raises:
        InvalidInput: files show different types, not only numbers with and without fractions.
    """
    if pa.float64() in kinds.values():
        kinds = {path: pa.float64() if types.is_integer(kind) else kind for path, kind in kinds.items()}
    first, common = next(iter(kinds.items()))
    for path, kind in kinds.items():
        if kind != common:
            raise InvalidInput(f"{path}: column {column!r} is {kind}, and that of {first} {common}; write them alike")
    return common


def _told(message: str, header: Sequence[str]) -> str:
    """pyarrow's message with the column's name; it counts rows as lines, from 1, the header's."""
    if (found := re.match(r"In CSV column #(\d+): ", message)) and header:
        message = f"column {header[int(found[1])]!r}: {message[found.end() :]}"
    return message[:300].replace("Row #", "line ").replace("(try to increase block size?)", f"of {BLOCK_BYTES:,} bytes")

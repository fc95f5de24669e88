"""CSV and TSV files as a source: a chunk is a file, which is read from its beginning, a block at a time.

The first block of every file tells what its columns hold: numbers, dates and timestamps as pyarrow reads them. Ids are
read as text, and converted as those of any other file. Empty cells are null.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any, Final, Literal

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
        others = {*columns.numbers, *([columns.split.column] if columns.split else [])}
        self._types = {column: pa.large_string() for column in columns.inputs.values() if column not in others}
        blocks = {path: self._first_block(path, columns) for path in paths}
        if not any(block.num_rows for block in blocks.values()):
            raise InvalidInput(f"{self.title}: there is no row")
        self._columns = replace(columns, features=_typed(blocks, columns))
        self._types |= dict.fromkeys(columns.numbers, pa.float64())
        for path, block in blocks.items():
            with reading(path):
                self._kinds = self._columns.kinds(block.schema)
                self._types |= {name: pa.bool_() for name in columns.numbers if types.is_boolean(block[name].type)}
        if columns.split:
            self._types[columns.split.column] = _time_type(blocks, columns.split.column, columns.split.border)

    def pieces(self, chunk: int) -> Iterator[Piece]:
        """Blocks, as they are read."""
        path, first_row = self._paths[chunk], 0
        with reading(path), self._open(path, self._columns.names) as reader:
            for block in reader:
                table = self._columns.convert(pa.Table.from_batches([block]), self._kinds, first_row)
                first_row += block.num_rows
                yield Piece.of(table)

    def _first_block(self, path: Path, columns: Columns) -> pa.Table:
        """Of the columns that are read, with the types that they seem to have; nulls alone seem to be numbers."""
        with reading(path), self._open(path) as reader:
            self._headers[path] = reader.schema.names
            columns.check_names(self._headers[path])
            block = next(iter(reader), None)
            table = reader.schema.empty_table() if block is None else pa.Table.from_batches([block])
            table = table.select(columns.names)
            kinds = [pa.float64() if types.is_null(field.type) else field.type for field in table.schema]
            return table.cast(pa.schema(zip(table.schema.names, kinds, strict=True)))

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


def _typed(blocks: dict[Path, pa.Table], columns: Columns) -> dict[str, FeatureSpec]:
    """The features, each with a type: integers where all ids of all first blocks are, else strings."""
    typed = {}
    for feature, spec in columns.features.items():
        seen = set()
        for path, block in blocks.items():
            with reading(path):
                seen.add(spec.type or _seen(block, columns.inputs[feature], spec.separator))
        kinds: list[Literal["string", "int64", "uint64"]] = ["string", "int64", "uint64"]
        typed[feature] = replace(spec, type=next((kind for kind in kinds if kind in seen), "string"))
    return typed


def _seen(block: pa.Table, column: str, separator: str | None) -> str | None:
    """What the ids of a block are; None: there are none."""
    texts = block[column]
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


def _time_type(blocks: dict[Path, pa.Table], column: str, border: object) -> pa.DataType:
    """What times are read as: the same in all files."""
    found = {block[column].type for block in blocks.values() if block.num_rows}
    if len(found) == 1:
        return found.pop()
    if not isinstance(border, date):
        return pa.float64()
    raise InvalidInput(
        f"column {column!r} is {' in one file and '.join(sorted(map(str, found)))} in another; write times alike"
    )


def _told(message: str, header: Sequence[str]) -> str:
    """pyarrow's message with the column's name; it counts rows as lines, from 1, the header's."""
    if (found := re.match(r"In CSV column #(\d+): ", message)) and header:
        message = f"column {header[int(found[1])]!r}: {message[found.end() :]}"
    return message[:300].replace("Row #", "line ").replace("(try to increase block size?)", f"of {BLOCK_BYTES:,} bytes")

"""Turns the columns of a file into features, labels and dense numbers, and checks them.

Shapes: B rows, N ids, F dense columns. Rows are counted from 0 in errors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from embershard.errors import InvalidInput
from embershard.train.schema import FeatureSpec
from embershard.train.source import DENSE, FEATURES, LABEL
from embershard.train.split import Split

if TYPE_CHECKING:
    from numpy.typing import NDArray


_NUMBERS: Final = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal)


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """What the ids of a feature are."""

    bag: bool
    """Any number an example, or one."""
    text: bool
    """Strings, or integers."""

    def __str__(self) -> str:
        return f"{'bags of ' if self.bag else ''}{'strings' if self.text else 'integers'}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Columns:
    """Which columns of a file are read, and as what."""

    features: Mapping[str, FeatureSpec]
    """By the feature's name."""
    label: str | None = None
    """Column of numbers or booleans."""
    dense: Sequence[str] = ()
    """Columns of numbers."""
    split: Split | None = None
    """Which rows; None: all."""
    inputs: dict[str, str] = field(init=False)
    """{feature: its column}."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", {name: spec.column or name for name, spec in self.features.items()})

    @property
    def numbers(self) -> list[str]:
        """The columns that must be numbers."""
        return [*([] if self.label is None else [self.label]), *self.dense]

    @property
    def plain(self) -> list[str]:
        """The columns that hold no ids: numbers and times."""
        return [*self.numbers, *([] if self.split is None else [self.split.column])]

    @property
    def names(self) -> list[str]:
        """All columns that are read, each once."""
        return list(dict.fromkeys([*self.inputs.values(), *self.plain]))

    @property
    def max_lengths(self) -> dict[str, int]:
        """{feature: longest bag}."""
        return {name: spec.max_length for name, spec in self.features.items() if spec.max_length is not None}

    def check_names(self, present: Sequence[str]) -> None:
        """Raises InvalidInput unless each column is there once."""
        for name in self.names:
            if present.count(name) != 1:
                raise InvalidInput(
                    f"must have one column {name!r}; it has {', '.join(map(repr, present[:20])) or 'none'}"
                )

    def kinds(self, schema: pa.Schema) -> dict[str, Kind]:
        """What the ids of each feature are, if all columns have types that can be read.

        Raises:
            InvalidInput: naming the column, its type and what is allowed.
        """
        for name in self.numbers:
            kind = schema.field(name).type
            if not any(fits(kind) for fits in _NUMBERS):
                raise InvalidInput(f"column {name!r} is {kind}; it must be numbers or booleans")
        if self.split is not None:
            self.split.check(schema.field(self.split.column).type)
        return {
            feature: _kind(spec, self.inputs[feature], schema.field(self.inputs[feature]).type)
            for feature, spec in self.features.items()
        }

    def convert(self, raw: pa.Table, kinds: Mapping[str, Kind], first_row: int) -> pa.Table:
        """What `embershard.train.source` says that a chunk is made of, without the rows that the split leaves out.

        Args:
            raw: the columns as they are in the file.
            kinds: as `kinds` told.
            first_row: the number of the first row, for errors.

        Raises:
            InvalidInput: naming column, row and what is allowed.
        """
        read = {name: _Column(name, _combined(raw[name]), first_row) for name in self.names}
        made = {
            FEATURES + feature: read[self.inputs[feature]].ids(spec, kinds[feature])
            for feature, spec in self.features.items()
        }
        if self.label is not None:
            made[LABEL] = pa.array(read[self.label].numbers())
        if self.dense:
            dense_BF = np.stack([read[name].numbers() for name in self.dense], axis=1)
            made[DENSE] = pa.FixedSizeListArray.from_arrays(pa.array(dense_BF.reshape(-1)), dense_BF.shape[1])
        table = pa.table(made)
        return table if self.split is None else table.filter(self.split.kept(read[self.split.column].array, first_row))


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of this type holds strings."""
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def split_text(texts: Any, separator: str) -> Any:
    """Lists of what stands between separators: large_string [B] → lists of large_string [B], null of null."""
    return pc.split_pattern(texts.cast(pa.large_string()), separator)


def _is_list(kind: pa.DataType) -> bool:
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _kind(spec: FeatureSpec, column: str, kind: pa.DataType) -> Kind:
    bag = _is_list(kind)
    inner = kind.value_type if bag else kind
    inner = inner.value_type if types.is_dictionary(inner) else inner
    if not (is_text(inner) or types.is_integer(inner)):
        raise InvalidInput(
            f"column {column!r} is {kind}; ids are integers or strings, one an example or lists of them "
            '(of numbers in text, type = "string" makes strings)'
        )
    cut = not bag and spec.separator is not None
    if cut and not is_text(inner):
        raise InvalidInput(f"column {column!r} is {kind}; separator cuts text, and lists need none: leave it out")
    if spec.max_length is not None and not (bag or cut):
        raise InvalidInput(f"column {column!r} has one id an example; max_length is for bags: leave it out")
    return Kind(bag=bag or cut, text=is_text(inner) if spec.type is None else spec.type == "string")


@dataclass(frozen=True, slots=True)
class _Column:
    """One column of some rows, whose errors tell where they are."""

    name: str
    array: Any
    first_row: int

    def wrong(self, row: int, why: str) -> InvalidInput:
        return InvalidInput(f"column {self.name!r} row {self.first_row + row}: {why}")

    def numbers(self) -> NDArray[np.float32]:
        """float32 [B], finite."""
        if self.array.null_count:
            raise self.wrong(_first(self.array.is_null()), "the number is null; fill it in, or leave the row out")
        wide_B = self.array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        with np.errstate(over="ignore"):  # what overflows becomes infinite, and is told
            numbers_B: NDArray[np.float32] = wide_B.astype(np.float32)
        if not np.isfinite(numbers_B).all():
            row = int(np.argmin(np.isfinite(numbers_B)))
            raise self.wrong(row, f"is {wide_B[row]}; numbers must be finite, also as float32")
        return numbers_B

    def ids(self, spec: FeatureSpec, kind: Kind) -> Any:
        """int64 or large_string [B], or large lists of them [B]."""
        array = _plain(self.array)
        if not kind.bag:
            return self._ids(array, np.arange(len(array)), spec, kind)
        cut = is_text(array.type)
        if cut:
            assert spec.separator is not None, "text is a bag only if it is cut"
            array = split_text(array, spec.separator)
        ids_N, rows_N = pc.list_flatten(array), pc.list_parent_indices(array)
        if cut:
            there_N = pc.not_equal(ids_N, "")
            ids_N, rows_N = ids_N.filter(there_N), rows_N.filter(there_N)
        lengths_B = np.bincount(rows_N.to_numpy(), minlength=len(array))
        ends = pa.array(np.concatenate(([0], np.cumsum(lengths_B))), pa.int64())
        return pa.LargeListArray.from_arrays(ends, self._ids(_plain(ids_N), rows_N.to_numpy(), spec, kind))

    def _ids(self, ids_N: Any, rows_N: NDArray[np.int64], spec: FeatureSpec, kind: Kind) -> Any:
        """int64 or large_string [N]; each id is of the row that `rows_N` says."""
        if ids_N.null_count:
            raise self.wrong(
                int(rows_N[_first(ids_N.is_null())]),
                "the id is null; only a bag may be, which is empty then (text has bags where a separator is given)",
            )
        unsigned = not kind.text and "uint64" in (spec.type, str(ids_N.type)) and spec.type != "int64"
        wanted = pa.large_string() if kind.text else pa.uint64() if unsigned else pa.int64()
        try:
            made_N = ids_N.cast(wanted)
            made_N.validate(full=kind.text)  # a string may be no UTF-8
        except pa.ArrowInvalid as error:
            at = _first_wrong(ids_N, wanted)
            why = "is no UTF-8 text" if kind.text else f"{ids_N[at].as_py()!r:.100} is no {wanted}"
            raise self.wrong(int(rows_N[at]), why) from error
        return made_N.view(pa.int64()) if unsigned else made_N


def _combined(column: Any) -> Any:
    """One array of a column's chunks; strings of over 2 GiB need large offsets first."""
    return (column.cast(pa.large_string()) if is_text(column.type) else column).combine_chunks()


def _plain(array: Any) -> Any:
    return array.cast(array.type.value_type) if types.is_dictionary(array.type) else array


def _first(flags_N: Any) -> int:
    """Where the first is true."""
    return int(pc.index(flags_N, True).as_py())


def _first_wrong(ids_N: Any, wanted: pa.DataType) -> int:
    """The place of the first id that can't be `wanted`; one can't."""
    fine, until = 0, len(ids_N)
    while until - fine > 1:
        middle = (fine + until) // 2
        try:
            ids_N.slice(fine, middle - fine).cast(wanted).validate(full=True)
            fine = middle
        except pa.ArrowInvalid:
            until = middle
    return fine

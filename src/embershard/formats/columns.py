"""Parquet: a column `id` of integers or strings, and a column `vector` of lists of floats, all of one length."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from embershard.errors import InvalidInput
from embershard.formats.files import needed, writing
from embershard.formats.vectors import Vectors

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

_COLUMNS: Final = ["id", "vector"]


def read_parquet(path: Path) -> Vectors:
    """Other columns are not read; rows come in the file's order."""
    arrow = needed("pyarrow")
    parquet = needed("pyarrow.parquet")
    try:
        with path.open("rb") as file, parquet.ParquetFile(file, page_checksum_verification=True) as opened:
            names = opened.schema_arrow.names
            for column in _COLUMNS:
                if names.count(column) != 1:
                    raise InvalidInput(
                        f"must have one column {column!r}; it has {', '.join(map(repr, names[:20])) or 'none'}"
                    )
            table = opened.read(columns=_COLUMNS)
        return Vectors.of(_ids_of(table["id"]), _matrix_of(table["vector"]))
    except (arrow.ArrowException, UnicodeDecodeError) as error:
        raise InvalidInput(f"is no Parquet file, or is damaged: {error}") from error


def write_parquet(path: Path, vectors: Vectors, *, overwrite: bool) -> None:
    """`id` becomes int64 or string, `vector` a list of D float32."""
    arrow = needed("pyarrow")
    parquet = needed("pyarrow.parquet")
    table = arrow.table(
        {
            "id": arrow.array(vectors.ids, arrow.string() if isinstance(vectors.ids, tuple) else arrow.int64()),
            "vector": arrow.FixedSizeListArray.from_arrays(arrow.array(vectors.vectors_ND.reshape(-1)), vectors.dim),
        }
    )
    with writing(path, overwrite=overwrite) as file:
        # Vectors hardly repeat their numbers, so a dictionary of them costs and gains nothing.
        parquet.write_table(table, file, use_dictionary=False, write_page_checksum=True)


def _ids_of(column: Any) -> NDArray[Any] | list[str]:
    types = needed("pyarrow.types")
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    _check_no_null(column, "id")
    if types.is_integer(column.type):
        integers: NDArray[Any] = column.to_numpy()
        return integers
    if types.is_string(column.type) or types.is_large_string(column.type) or types.is_string_view(column.type):
        strings: list[str] = column.to_pylist()
        return strings
    raise InvalidInput(f"column 'id' is {column.type}; it must be int64 or string")


def _matrix_of(column: Any) -> NDArray[Any]:
    """A column of lists → [N, D]."""
    compute, types = needed("pyarrow.compute"), needed("pyarrow.types")
    kind = column.type
    if not (
        (types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))
        and types.is_floating(kind.value_type)
    ):
        raise InvalidInput(f"column 'vector' is {kind}; it must be a list of float16, float32 or float64")
    _check_no_null(column, "vector")
    if not len(column):
        return np.empty((0, 0), np.float32)
    lengths_N = compute.list_value_length(column).to_numpy()
    dim = int(lengths_N[0])
    if (lengths_N != dim).any():
        row = int((lengths_N != dim).argmax())
        raise InvalidInput(f"row {row}: the vector has {lengths_N[row]:,} numbers, and row 0 has {dim:,}")
    flat = compute.list_flatten(column)
    if flat.null_count:
        row = int(flat.is_null().to_numpy().argmax()) // dim
        raise InvalidInput(f"row {row}: a number of the vector is null")
    matrix_ND: NDArray[Any] = flat.to_numpy().reshape(len(column), dim)
    return matrix_ND


def _check_no_null(column: Any, name: str) -> None:
    if column.null_count:
        raise InvalidInput(f"row {int(column.is_null().to_numpy().argmax())}: the {name} is null")

"""What a table's rows are made of: one matrix of stored rows, or several that make up a row together.

| factor              | stored                                  | row i                              |
|---------------------|-----------------------------------------|------------------------------------|
| none                | rows × dim                              | row i                              |
| low_rank            | rows × r, and a shared r × dim          | row i times the projection         |
| quotient_remainder  | ⌈rows / R⌉ × dim, and R × dim           | row i // R with row i % R          |

Low rank: r numbers of a row travel, and every rank keeps a copy of the projection. Quotient and remainder: Shi et al.
2020, "Compositional embeddings using complementary partitions".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from embershard.config import InitSpec, LowRank, QuotientRemainder, TableSpec

if TYPE_CHECKING:
    from embershard.config import Config

_SMALLEST = 1e-12
"""Added under the root of a squared length, so that a row of zeros has a direction: none."""
_LAYER_EPS = 1e-5
"""Added to the variance, as torch.nn.LayerNorm does."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Matrix:
    """Stored rows: what engines and snapshots know of a table."""

    name: str
    """Unique in the collection: no name of a table has a colon."""
    table: TableSpec
    """The table that it is, or is a part of."""
    rows: int
    """Rows."""
    dim: int
    """Numbers in a row."""
    dtype: str
    """float32 or float16."""
    init: InitSpec
    """How rows start,"""
    mean: float = 0.0
    """around this number."""
    shared: bool = False
    """Whether every vector of the table needs all of it, so that each rank keeps a copy."""


def matrices_of(table: TableSpec) -> tuple[Matrix, ...]:
    """The matrices of a table, those first whose rows ids ask for."""

    def matrix(part: str, rows: int, dim: int, init: InitSpec = table.init, **others: object) -> Matrix:
        name = f"{table.name}:{part}" if part else table.name
        described = {"table": table, "dtype": table.dtype, **others}
        return Matrix(name=name, rows=rows, dim=dim, init=init, **described)  # type: ignore[arg-type]  # checked above

    match table.factor:
        case None:
            return (matrix("", table.rows, table.dim),)
        case LowRank(rank=rank):
            # Its columns have length 1 in expectation, so that vectors are as large as rows of an unfactored table.
            spread = InitSpec(kind="normal", scale=rank**-0.5)
            projection = matrix("projection", rank, table.dim, spread, dtype="float32", shared=True)
            return matrix("", table.rows, rank), projection
        case QuotientRemainder(combine=combine, remainders=remainders):
            assert remainders is not None
            quotients = -(-table.rows // remainders)
            dim = table.dim // 2 if combine == "concat" else table.dim
            # A product starts as the quotient's row, a little stretched: small numbers times each other would vanish.
            near_one = InitSpec(kind="normal", scale=0.1)
            second = {"init": near_one, "mean": 1.0} if combine == "product" else {}
            return matrix("quotient", quotients, dim), matrix("remainder", remainders, dim, **second)  # type: ignore[arg-type]


def all_matrices(config: Config) -> list[Matrix]:
    """The matrices of all tables of a collection."""
    return [matrix for table in config.tables for matrix in matrices_of(table)]


def parameters_of(table: TableSpec) -> int:
    """Learned numbers of a table, optimizer state apart."""
    return sum(matrix.rows * matrix.dim for matrix in matrices_of(table))


def needs_rows(table: TableSpec) -> bool:
    """Whether a gradient can only be pulled back to the rows by whoever knows them: the way isn't linear."""
    factor = table.factor
    product = isinstance(factor, QuotientRemainder) and factor.combine == "product"
    return product or isinstance(factor, LowRank) or table.normalise != "none"


def stored_rows(table: TableSpec, rows_M: Tensor) -> list[Tensor]:
    """Row numbers of a table → row numbers of its matrices, without the shared one."""
    if isinstance(table.factor, QuotientRemainder):
        assert table.factor.remainders is not None
        quotient_M = rows_M // table.factor.remainders
        return [quotient_M, rows_M - quotient_M * table.factor.remainders]
    return [rows_M]


def combine(table: TableSpec, stored: Sequence[Tensor]) -> Tensor:
    """Rows of the matrices [M, …] → rows of the table [M, D], or [M, r] where a projection is still to come."""
    if not isinstance(table.factor, QuotientRemainder):
        return stored[0]
    first_MD, second_MD = stored
    match table.factor.combine:
        case "product":
            return first_MD * second_MD
        case "sum":
            return first_MD + second_MD
        case "concat":
            return torch.cat([first_MD, second_MD], dim=1)


def spread(table: TableSpec, gradients_MD: Tensor) -> list[Tensor]:
    """Gradients of rows of the table → of rows of its matrices, where `combine` is linear."""
    if not isinstance(table.factor, QuotientRemainder):
        return [gradients_MD]
    if table.factor.combine == "concat":
        return list(gradients_MD.chunk(2, dim=1))
    return [gradients_MD, gradients_MD]


def finish(table: TableSpec, rows_ND: Tensor, projection_RD: Tensor | None) -> Tensor:
    """Sums of rows → vectors: projected, scaled, normalised."""
    if projection_RD is not None:
        rows_ND = rows_ND @ projection_RD
    if table.scale == "sqrt_dim":
        rows_ND = rows_ND * table.dim**0.5
    match table.normalise:
        case "l2":
            return rows_ND * (rows_ND.square().sum(dim=1, keepdim=True) + _SMALLEST).rsqrt()
        case "layer":
            return torch.nn.functional.layer_norm(rows_ND, [table.dim], eps=_LAYER_EPS)
        case _:
            return rows_ND

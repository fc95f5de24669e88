"""What of a table is stored: one matrix of rows, or several that make up a row together.

| factor              | stored                                  | row i                              |
|---------------------|-----------------------------------------|------------------------------------|
| none                | rows × dim                              | row i                              |
| low_rank            | rows × r, and a shared r × dim          | row i times the projection         |
| quotient_remainder  | ⌈rows / R⌉ × dim, and R × dim           | row i // R with row i % R          |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from embershard.config.specs import InitSpec, LowRank, QuotientRemainder

if TYPE_CHECKING:
    from embershard.config.tables import TableSpec


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
    """How rows start: the spread."""
    mean: float = 0.0
    """How rows start: the number that they are spread around."""
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
        case QuotientRemainder(combine=combine):
            remainders = table.remainders
            quotients = -(-table.rows // remainders)
            dim = table.dim // 2 if combine == "concat" else table.dim
            # A product starts as the quotient's row, a little stretched: small numbers times each other would vanish.
            near_one = InitSpec(kind="normal", scale=0.1)
            second = {"init": near_one, "mean": 1.0} if combine == "product" else {}
            return matrix("quotient", quotients, dim), matrix("remainder", remainders, dim, **second)  # type: ignore[arg-type]

"""One table: its rows, what its ids mean, how vectors are made of rows; and what of it is stored.

| factor              | stored                                  | row i                              |
|---------------------|-----------------------------------------|------------------------------------|
| none                | rows × dim                              | row i                              |
| low_rank            | rows × r, and a shared r × dim          | row i times the projection         |
| quotient_remainder  | ⌈rows / R⌉ × dim, and R × dim           | row i // R with row i % R          |
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import field, replace
from functools import cached_property
from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from embershard.config.specs import (
    CLOSED,
    MAX_DIM,
    MAX_ROWS,
    DirectIds,
    HashedIds,
    InitSpec,
    LowRank,
    Name,
    OptimizerSpec,
    QuotientRemainder,
    VocabularyIds,
)

SERVES_ONLY = "stores int8 rows, which are for serving only"
"""Why something can't be done to a table."""


@dataclass(frozen=True, kw_only=True, config=CLOSED)
class TableSpec:
    """One table of learned rows."""

    name: Name
    """Unique in the collection."""
    rows: Annotated[int, Field(strict=True, ge=1, le=MAX_ROWS)]
    """Rows of the table."""
    dim: Annotated[int, Field(strict=True, ge=1, le=MAX_DIM)]
    """Numbers in a vector."""
    features: list[Name] = field(default_factory=list)
    """Features that read this table; none given: one with the table's name."""
    ids: Annotated[DirectIds | HashedIds | VocabularyIds, Field(discriminator="kind")] = field(
        default_factory=DirectIds
    )
    """How a raw id becomes rows."""
    factor: Annotated[LowRank | QuotientRemainder, Field(discriminator="kind")] | None = None
    """How a row is made of fewer stored numbers; none given: it is stored as it is."""
    scale: Literal["none", "sqrt_dim"] = "none"
    """sqrt_dim: vectors are multiplied by the root of dim (Vaswani et al. 2017)."""
    normalise: Literal["none", "l2", "layer"] = "none"
    """Of every id's vector before pooling: l2 (length 1) or layer (mean 0, variance 1)."""
    pooling: Literal["none", "sum", "mean"] = "none"
    """How the ids of one example become one vector."""
    dtype: Literal["float32", "float16", "int8"] = "float32"
    """Of the stored rows; optimizer state, projections and answers are float32. int8: dim + 8 bytes a row, row-wise
    (`rowwise`), for serving only: such a table is frozen, and its rows come from snapshots and publications."""
    init: InitSpec = field(default_factory=InitSpec)
    """How rows start."""
    optimizer: OptimizerSpec | None = None
    """How gradients move rows; none given: the collection's."""
    frozen: Annotated[bool, Field(strict=True)] = False
    """Whether the table stays bit for bit as it is: gradients have no effect, and other changes are refused."""
    counts: Annotated[bool, Field(strict=True)] = False
    """Whether it keeps how often each row was updated and sighted: 8 bytes a row; else one byte tells whether an update
    has reached it. May be turned on and off: counts then begin with what is known."""

    def __post_init__(self) -> None:
        if not self.features:
            object.__setattr__(self, "features", [self.name])
        if self.serves_only:
            object.__setattr__(self, "frozen", True)
        self._check_ids()
        if isinstance(self.factor, QuotientRemainder):
            self._check_pairs(self.factor)
        if self.scale != "none" and self.normalise != "none":
            raise ValueError(
                f"scale = {self.scale!r} is undone by normalise = {self.normalise!r}; leave one of them out"
            )

    def _check_ids(self) -> None:
        if isinstance(self.ids, HashedIds) and self.ids.hashes > self.rows:
            raise ValueError(f"ids.hashes = {self.ids.hashes} is more than rows = {self.rows}")
        if isinstance(self.ids, VocabularyIds) and self.ids.fallback_rows >= self.rows:
            raise ValueError(
                f"ids.fallback_rows = {self.ids.fallback_rows} leaves no row for ids of their own: rows = {self.rows} "
                "counts both"
            )
        if isinstance(self.ids, DirectIds) and self.ids.names is not None:
            count = len(self.ids.name_list.names)
            if count > self.rows:
                raise ValueError(f"ids.names lists {count:,} ids, more than rows = {self.rows:,}")

    def _check_pairs(self, factor: QuotientRemainder) -> None:
        if factor.combine == "concat" and self.dim % 2:
            raise ValueError(f"factor.combine = 'concat' joins two halves, so dim = {self.dim} must be even")
        if factor.remainders is not None and factor.remainders > self.rows:
            raise ValueError(f"factor.remainders = {factor.remainders} is more than rows = {self.rows}")

    @cached_property
    def remainders(self) -> int:
        """R of quotient and remainder; 0 without them."""
        if not isinstance(self.factor, QuotientRemainder):
            return 0
        return self.factor.remainders or math.isqrt(self.rows - 1) + 1

    def resized(self, rows: int) -> TableSpec:
        """The same with other rows; each keeps its pair of quotient and remainder."""
        factor = self.factor
        if isinstance(factor, QuotientRemainder):
            factor = replace(factor, remainders=self.remainders)
        return replace(self, rows=rows, factor=factor)

    @property
    def hashes(self) -> int:
        """Most rows that one id has."""
        return 1 if isinstance(self.ids, DirectIds) else self.ids.hashes

    @property
    def signed(self) -> bool:
        """Whether rows have signs."""
        return not isinstance(self.ids, DirectIds) and self.ids.signed

    @property
    def capacity(self) -> int:
        """Ids that may own a row."""
        match self.ids:
            case DirectIds():
                return self.rows
            case HashedIds():
                return 0
            case VocabularyIds():
                return self.rows - self.ids.fallback_rows

    @cached_property
    def matrices(self) -> tuple[Matrix, ...]:
        """What is stored, those first whose rows ids ask for."""
        return _matrices_of(self)

    @cached_property
    def own_matrices(self) -> tuple[str, ...]:
        """Names of those whose rows ids ask for."""
        return tuple(matrix.name for matrix in self.matrices if not matrix.shared)

    @cached_property
    def numbers_per_id(self) -> int:
        """Of its rows: stored ones, or those of the vector if they are more."""
        return self.hashes * max(self.dim, sum(matrix.dim for matrix in self.matrices if not matrix.shared))

    @cached_property
    def parameters(self) -> int:
        """Learned numbers, optimizer state apart."""
        return sum(matrix.rows * matrix.dim for matrix in self.matrices)

    @cached_property
    def needs_rows(self) -> bool:
        """Whether a gradient can only be pulled back to the rows by whoever knows them: the way isn't linear."""
        product = isinstance(self.factor, QuotientRemainder) and self.factor.combine == "product"
        return product or isinstance(self.factor, LowRank) or self.normalise != "none"

    @property
    def serves_only(self) -> bool:
        """Whether its rows are stored in a form that nothing can move."""
        return self.dtype == "int8"

    @property
    def plain(self) -> bool:
        """Whether an id's vector is what is stored of its row, and nothing is pooled."""
        return self.factor is None and self.scale == self.normalise == self.pooling == "none"

    @property
    def counts_lookups(self) -> bool:
        """Whether lookups are sightings."""
        return isinstance(self.ids, VocabularyIds) and self.ids.count_lookups

    @property
    def owns_rows(self) -> bool:
        """Whether a stored row may belong to one id alone, so that it can be overwritten, frozen or started."""
        return self.capacity > 0 and not isinstance(self.factor, QuotientRemainder)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
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
    """float32, float16 or int8."""
    init: InitSpec
    """How rows start: the spread."""
    mean: float = 0.0
    """How rows start: the number that they are spread around."""
    shared: bool = False
    """Whether every vector of the table needs all of it, so that each rank keeps a copy."""


def _matrices_of(table: TableSpec) -> tuple[Matrix, ...]:
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
            start = InitSpec(kind="normal", scale=rank**-0.5)
            projection = matrix("projection", rank, table.dim, start, dtype="float32", shared=True)
            return matrix("", table.rows, rank), projection
        case QuotientRemainder(combine=combine):
            remainders = table.remainders
            quotients = -(-table.rows // remainders)
            dim = table.dim // 2 if combine == "concat" else table.dim
            # A product starts as the quotient's row, a little stretched: small numbers times each other would vanish.
            near_one = InitSpec(kind="normal", scale=0.1)
            second = {"init": near_one, "mean": 1.0} if combine == "product" else {}
            return matrix("quotient", quotients, dim), matrix("remainder", remainders, dim, **second)  # type: ignore[arg-type]

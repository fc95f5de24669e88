"""One table: its rows, what its ids mean, how vectors are made of rows, and how rows start and move."""

from __future__ import annotations

import math
import warnings
from dataclasses import field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field
from pydantic.dataclasses import dataclass

from embershard.id_list import read_id_list

CLOSED = ConfigDict(extra="forbid")
"""Unknown keys are errors."""

# Strict: a number is a number, not a string that looks like one, and True is no 1.
_Int64 = Annotated[int, Field(strict=True, ge=-(2**63), le=2**63 - 1)]

MAX_ROWS = 2**40
"""Rows of one table; far over what memory holds, and small enough that no row number overflows."""
MAX_DIM = 2**16

Name = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.\-]{0,127}$")]


def _kernel_exists(kind: str) -> str:
    reasons = {
        "adam": "FBGEMM has no exact CPU kernel for it",
        "partial_rowwise_adam": "FBGEMM has no exact CPU kernel for it",
        "lamb": "FBGEMM has no exact CPU kernel for it",
        "lars_sgd": "FBGEMM has no exact CPU kernel for it",
    }
    known = ("sgd", "adagrad", "rowwise_adagrad")
    if kind not in known:
        because = f" ({reasons[kind]})" if kind in reasons else ""
        raise ValueError(f"is not an optimizer that every engine honours exactly{because}; allowed: {', '.join(known)}")
    return kind


@dataclass(frozen=True, kw_only=True, config=CLOSED)
class OptimizerSpec:
    """How gradients move rows."""

    kind: Annotated[str, AfterValidator(_kernel_exists)] = "rowwise_adagrad"
    """sgd, adagrad (one sum of squares a number) or rowwise_adagrad (one a row)."""
    learning_rate: Annotated[float, Field(strict=True, ge=0, le=1e6, allow_inf_nan=False)] = 0.05
    """Step size."""
    eps: Annotated[float, Field(strict=True, ge=1e-10, le=1, allow_inf_nan=False)] = 1e-8
    """Added to the root of the sum of squares; sgd doesn't use it."""


@dataclass(frozen=True, kw_only=True, config=CLOSED)
class DirectIds:
    """The id is the row number."""

    kind: Literal["direct"] = "direct"
    padding: _Int64 | None = None
    """This id answers zeros and takes no gradient; it may lie outside the table."""
    names: Path | None = None
    """A file with one id a line, in the order of the rows: callers may ask by these strings, too, and the list is part
    of the fingerprint. Relative to the configuration file."""

    def __post_init__(self) -> None:
        if self.names is not None:
            read_id_list(self.names)


@dataclass(frozen=True, kw_only=True, config=CLOSED)
class HashedIds:
    """Any int64 or string, by k seeded hashes: the k rows, each with its sign, are summed.

    Weinberger et al. 2009 (signs), Svenstrup et al. 2017 (several hashes).
    """

    kind: Literal["hashed"] = "hashed"
    hashes: Annotated[int, Field(strict=True, ge=1, le=16)] = 1
    """k: rows per id."""
    signed: Annotated[bool, Field(strict=True)] = False
    """Whether each row is multiplied by a seeded sign, so that collisions cancel in expectation."""
    padding: _Int64 | str | None = None
    """This id answers zeros and takes no gradient; it may lie outside the table."""


@dataclass(frozen=True, kw_only=True, config=CLOSED)
class VocabularyIds:
    """Any int64 or string: ids that updates name often own a row, all others are hashed into a reserved region.

    Frequent ids apart, the rest hashed: Zhang et al. 2020 (frequency-aware double hashing).
    """

    kind: Literal["vocabulary"] = "vocabulary"
    fallback_rows: Annotated[int, Field(strict=True, ge=1, le=MAX_ROWS)]
    """The table's first rows, shared by ids without a row of their own; all others are for ids that have one."""
    hashes: Annotated[int, Field(strict=True, ge=1, le=16)] = 2
    """k: fallback rows per id."""
    signed: Annotated[bool, Field(strict=True)] = True
    """Whether each fallback row is multiplied by a seeded sign."""
    admit_after: Annotated[int, Field(strict=True, ge=1, le=2**31)] = 1
    """Sightings after which an id is given a row, by the update that brings the last of them."""
    evict: Literal["lfu", "ttl"] = "lfu"
    """Who makes room in a full table: lfu (the least frequent, for an id that was sighted more often) or ttl (nobody
    before their time is up)."""
    ttl_s: Annotated[int, Field(strict=True, ge=1, le=2**40)] | None = None
    """Seconds after its last sighting that an id loses its row; with lfu as well, if given."""
    count_lookups: Annotated[bool, Field(strict=True)] = False
    """Whether lookups count as sightings, too; they never admit."""
    candidates: Annotated[int, Field(strict=True, ge=1, le=MAX_ROWS)] | None = None
    """Ids without a row whose sightings are remembered; none given: as many as may own one, at least 65,536. Once they
    are more, the half that wasn't seen for longest is forgotten."""
    padding: _Int64 | str | None = None
    """This id answers zeros and takes no gradient; it may lie outside the table."""

    def __post_init__(self) -> None:
        if self.evict == "ttl" and self.ttl_s is None:
            raise ValueError("evict = 'ttl' needs ttl_s, the seconds that an id keeps its row without being sighted")
        if self.hashes > self.fallback_rows:
            raise ValueError(f"hashes = {self.hashes} is more than fallback_rows = {self.fallback_rows}")


@dataclass(frozen=True, kw_only=True, config=CLOSED)
class LowRank:
    """Rows of r numbers, and one learned r × dim projection that all rows share."""

    kind: Literal["low_rank"] = "low_rank"
    rank: Annotated[int, Field(strict=True, ge=1, le=MAX_DIM)]
    """r: numbers in a stored row."""


@dataclass(frozen=True, kw_only=True, config=CLOSED)
class QuotientRemainder:
    """Two small matrices in place of a large one: row i is made of row i // R of one and row i % R of the other.

    Shi et al. 2020. Each i has a pair of its own.
    """

    kind: Literal["quotient_remainder"] = "quotient_remainder"
    combine: Literal["product", "sum", "concat"] = "product"
    """How the two rows become one."""
    remainders: Annotated[int, Field(strict=True, ge=1, le=MAX_ROWS)] | None = None
    """R: rows of the second matrix; none given: the root of the rows, rounded up, so that both are equally large."""


@dataclass(frozen=True, kw_only=True, config=CLOSED)
class InitSpec:
    """How rows start, seeded by collection, table and row."""

    kind: Literal["normal", "uniform", "zeros"] = "normal"
    """normal (mean 0, standard deviation `scale`), uniform (from -`scale` to `scale`) or zeros."""
    scale: Annotated[float, Field(strict=True, ge=0, le=1e4, allow_inf_nan=False)] = 0.01
    """Standard deviation, or half the width."""


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
    dtype: Literal["float32", "float16"] = "float32"
    """Of the stored rows; optimizer state, projections and answers are float32."""
    init: InitSpec = field(default_factory=InitSpec)
    """How rows start."""
    optimizer: OptimizerSpec | None = None
    """How gradients move rows; none given: the collection's."""
    frozen: Annotated[bool, Field(strict=True)] = False
    """Whether the table stays bit for bit as it is: gradients have no effect, and other changes are refused."""

    def __post_init__(self) -> None:
        if not self.features:
            object.__setattr__(self, "features", [self.name])
        self._check_ids()
        if isinstance(self.factor, LowRank) and self.factor.rank >= self.dim:
            warnings.warn(
                f"table {self.name!r}: factor.rank = {self.factor.rank} is not less than dim = {self.dim}, so that the "
                "factor saves nothing; leave it out, or give a smaller rank",
                stacklevel=2,
            )
        if isinstance(self.factor, QuotientRemainder):
            self._complete(self.factor)
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
            count = len(read_id_list(self.ids.names).names)
            if count > self.rows:
                raise ValueError(f"ids.names lists {count:,} ids, more than rows = {self.rows:,}")

    def _complete(self, factor: QuotientRemainder) -> None:
        if factor.combine == "concat" and self.dim % 2:
            raise ValueError(f"factor.combine = 'concat' joins two halves, so dim = {self.dim} must be even")
        if factor.remainders is None:
            # Written down, because a table that grows must keep it: it decides which pair an id has.
            root = math.isqrt(self.rows - 1) + 1
            object.__setattr__(self, "factor", QuotientRemainder(combine=factor.combine, remainders=root))
        elif factor.remainders > self.rows:
            raise ValueError(f"factor.remainders = {factor.remainders} is more than rows = {self.rows}")

    @property
    def hashes(self) -> int:
        """Most rows that one id has."""
        return 1 if isinstance(self.ids, DirectIds) else self.ids.hashes

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

    @property
    def owns_rows(self) -> bool:
        """Whether a stored row may belong to one id alone, so that it can be overwritten, frozen or started."""
        return self.capacity > 0 and not isinstance(self.factor, QuotientRemainder)

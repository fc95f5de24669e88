"""What a table is told: what its ids mean, what its rows are made of, how they start and move."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field
from pydantic.dataclasses import dataclass

from embershard.name_list import NameList, read_name_list

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
            _ = self.name_list

    @cached_property
    def name_list(self) -> NameList:
        """What the file says, read once; of no file, nothing."""
        return read_name_list(self.names) if self.names is not None else NameList.of([], "")


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
    """Whether lookups count as sightings, too; they never admit, but each makes a version."""
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
    """R: rows of the second matrix; none given: the root of the rows that the table begins with, rounded up, so that
    both are equally large. A table that grows keeps it."""


@dataclass(frozen=True, kw_only=True, config=CLOSED)
class InitSpec:
    """How rows start, seeded by collection, table and row."""

    kind: Literal["normal", "uniform", "zeros"] = "normal"
    """normal (mean 0, standard deviation `scale`), uniform (from -`scale` to `scale`) or zeros."""
    scale: Annotated[float, Field(strict=True, ge=0, le=1e4, allow_inf_nan=False)] = 0.01
    """Standard deviation, or half the width."""

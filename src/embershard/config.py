"""The configuration of a collection: keyword-only dataclasses, checked on construction, read from one TOML file."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections import Counter
from dataclasses import asdict, field, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from embershard.errors import ConfigError

_CLOSED = ConfigDict(extra="forbid")

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


@dataclass(frozen=True, kw_only=True, config=_CLOSED)
class OptimizerSpec:
    """How gradients move rows."""

    kind: Annotated[str, AfterValidator(_kernel_exists)] = "rowwise_adagrad"
    """sgd, adagrad (one sum of squares a number) or rowwise_adagrad (one a row)."""
    learning_rate: Annotated[float, Field(strict=True, ge=0, le=1e6, allow_inf_nan=False)] = 0.05
    """Step size."""
    eps: Annotated[float, Field(strict=True, ge=1e-10, le=1, allow_inf_nan=False)] = 1e-8
    """Added to the root of the sum of squares; sgd doesn't use it."""


@dataclass(frozen=True, kw_only=True, config=_CLOSED)
class DirectIds:
    """The id is the row number."""

    kind: Literal["direct"] = "direct"
    padding: _Int64 | None = None
    """This id answers zeros and takes no gradient; it may lie outside the table."""


@dataclass(frozen=True, kw_only=True, config=_CLOSED)
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


@dataclass(frozen=True, kw_only=True, config=_CLOSED)
class InitSpec:
    """How rows start, seeded by collection, table and row."""

    kind: Literal["normal", "uniform", "zeros"] = "normal"
    """normal (mean 0, standard deviation `scale`), uniform (from -`scale` to `scale`) or zeros."""
    scale: Annotated[float, Field(strict=True, ge=0, le=1e4, allow_inf_nan=False)] = 0.01
    """Standard deviation, or half the width."""


@dataclass(frozen=True, kw_only=True, config=_CLOSED)
class TableSpec:
    """One table of learned rows."""

    name: Name
    """Unique in the collection."""
    rows: Annotated[int, Field(strict=True, ge=1, le=MAX_ROWS)]
    """Rows of the table."""
    dim: Annotated[int, Field(strict=True, ge=1, le=MAX_DIM)]
    """Numbers in a row."""
    features: list[Name] = field(default_factory=list)
    """Features that read this table; none given: one with the table's name."""
    ids: Annotated[DirectIds | HashedIds, Field(discriminator="kind")] = field(default_factory=DirectIds)
    """How a raw id becomes rows."""
    pooling: Literal["none", "sum", "mean"] = "none"
    """How the ids of one example become one vector."""
    dtype: Literal["float32", "float16"] = "float32"
    """Of the stored rows; optimizer state and answers are float32."""
    init: InitSpec = field(default_factory=InitSpec)
    """How rows start."""
    optimizer: OptimizerSpec | None = None
    """How gradients move rows; none given: the collection's."""

    def __post_init__(self) -> None:
        if not self.features:
            object.__setattr__(self, "features", [self.name])
        if isinstance(self.ids, HashedIds) and self.ids.hashes > self.rows:
            raise ValueError(f"ids.hashes = {self.ids.hashes} is more than rows = {self.rows}")


@dataclass(frozen=True, kw_only=True, config=_CLOSED)
class LimitSpec:
    """Bounds on what callers may ask and have waiting; answers that a caller doesn't read have none yet."""

    message_bytes: Annotated[int, Field(strict=True, ge=1024, le=2**30)] = 64 * 2**20
    """Largest request, and most bytes of vectors in an answer."""
    ids_per_request: Annotated[int, Field(strict=True, ge=1, le=2**30)] = 2**20
    """Ids of all features of one request together."""
    numbers_per_request: Annotated[int, Field(strict=True, ge=1, le=2**40)] = 2**26
    """Numbers that one request gathers or moves, of four bytes each: ids × hashes × dim, over its features."""
    queued_requests: Annotated[int, Field(strict=True, ge=1)] = 1024
    """Lookups that wait for a tick on one rank; updates, and lookups that wait for a version, as many again each."""
    queued_numbers: Annotated[int, Field(strict=True, ge=1)] = 2**28
    """Numbers that each of the three gather or move together."""
    wait_ms: Annotated[int, Field(strict=True, ge=1, le=3_600_000)] = 10_000
    """Longest wait in the queue of a request that brings no deadline."""
    group_timeout_s: Annotated[int, Field(strict=True, ge=2, le=3600)] = 120
    """Longest that a rank waits for its peers before all leave together."""
    snapshots_kept: Annotated[int, Field(strict=True, ge=1)] = 3
    """Older snapshots are deleted once a new one is complete."""


@dataclass(frozen=True, kw_only=True, config=_CLOSED)
class CollectionSpec:
    """What the tables have in common."""

    name: Name
    """Shown to callers."""
    seed: Annotated[int, Field(strict=True, ge=0, le=2**63 - 1)] = 0
    """Seeds initialisation and hashing."""


@dataclass(frozen=True, kw_only=True, config=_CLOSED)
class Config:
    """A whole configuration file."""

    collection: CollectionSpec
    """What the tables have in common."""
    tables: Annotated[list[TableSpec], Field(min_length=1)]
    """At least one."""
    optimizer: OptimizerSpec = field(default_factory=OptimizerSpec)
    """For tables without their own."""
    limits: LimitSpec = field(default_factory=LimitSpec)
    """Bounds."""

    def __post_init__(self) -> None:
        for what, names in (
            ("table", [table.name for table in self.tables]),
            ("feature", [feature for table in self.tables for feature in table.features]),
        ):
            if repeated := [name for name, count in Counter(names).items() if count > 1]:
                raise ValueError(f"{what} {repeated[0]!r} is there more than once")

    def optimizer_of(self, table: TableSpec) -> OptimizerSpec:
        """The table's own optimizer, or the collection's."""
        return table.optimizer or self.optimizer

    def layout(self) -> dict[str, Any]:
        """What decides which vector an id gets: two collections with one layout answer alike."""
        return {
            "seed": self.collection.seed,
            "tables": {
                table.name: {
                    "rows": table.rows,
                    "dim": table.dim,
                    "features": list(table.features),
                    "ids": asdict(table.ids),
                    "pooling": table.pooling,
                    "dtype": table.dtype,
                }
                for table in self.tables
            },
        }

    def fingerprint(self) -> str:
        """Names the layout: 16 hexadecimal digits of a SHA-256."""
        canonical = json.dumps(self.layout(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def layout_difference(ours: dict[str, Any], theirs: dict[str, Any], path: str = "") -> list[str]:
    """Spells out where two layouts differ, one line a place: `tables.user.rows: 5 here, 6 there`."""
    lines = []
    for key in sorted(ours.keys() | theirs.keys()):
        where = f"{path}.{key}".lstrip(".")
        mine, other = (side.get(key, "absent") for side in (ours, theirs))
        if isinstance(mine, dict) and isinstance(other, dict):
            lines += layout_difference(mine, other, where)
        elif mine != other:
            short = ("present" if isinstance(side, dict) else repr(side) for side in (mine, other))
            lines.append(f"{where}: {next(short)} here, {next(short)} there")
    return lines


def load_config(path: str | Path) -> Config:
    """Reads a TOML file.

    Raises:
        ConfigError: naming file, table, key, the value and what is allowed.
    """
    try:
        text = Path(path).read_bytes().decode()
        data = tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"{path}: can't read the configuration: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: is not valid TOML: {error}") from error
    return parse_config(data, source=str(path))


def parse_config(data: dict[str, Any], *, source: str = "configuration") -> Config:
    """Checks a configuration given as a dictionary; `source` names it in errors."""
    data = _with_kinds(data)
    try:
        return TypeAdapter(Config).validate_python(data)
    except ValidationError as error:
        problems = [_explain(data, problem) for problem in error.errors(include_url=False)]
        raise ConfigError("\n".join(f"{source}: {problem}" for problem in problems)) from error


def _with_kinds(data: dict[str, Any]) -> dict[str, Any]:
    """Makes `ids = {padding = 0}` mean direct ids: the kind has a default like every other key."""
    tables = data.get("tables")
    if not isinstance(tables, list):
        return data
    filled = [
        {**table, "ids": {"kind": "direct", **table["ids"]}}
        if isinstance(table, dict) and isinstance(table.get("ids"), dict)
        else table
        for table in tables
    ]
    return {**data, "tables": filled}


def _explain(data: dict[str, Any], problem: Any) -> str:
    """One line for one problem: where, the value, what is wrong, what is allowed."""
    where: list[str] = []
    here: Any = data
    last = len(problem["loc"]) - 1
    for depth, step in enumerate(problem["loc"]):
        if isinstance(here, list) and isinstance(step, int):
            name = here[step].get("name", "") if isinstance(here[step], dict) else ""
            where.append(f"[{step}]" + (f" {name!r}" if name else ""))
        elif isinstance(here, dict) and (step in here or depth == last):
            where.append(str(step))
        else:
            continue  # the name of a union's member, not a key
        here = here[step] if isinstance(here, list) else here.get(step, {})
    place = " ".join(where).replace("tables [", "tables[") or "top level"
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "missing":
        return f"{place}: this key is required"
    if problem["type"] == "unexpected_keyword_argument":
        return f"{place}: unknown key; allowed here: {', '.join(_allowed(problem['loc']))}"
    if problem["type"] == "union_tag_invalid":
        return f"{place} kind = {problem['ctx']['tag']!r}: allowed: {problem['ctx']['expected_tags']}"
    if problem["type"] == "dataclass_type":
        message = "must be a table of keys, such as { kind = … }"
    value = problem["input"]
    shown = "" if is_dataclass(value) or isinstance(value, (dict, list)) else f" = {value!r}"
    return f"{place}{shown}: {message[0].lower()}{message[1:]}"


def _allowed(location: tuple[str | int, ...]) -> list[str]:
    """The keys of the dataclass in which the last step of a location stands."""
    by_place: dict[str, Any] = {
        "collection": CollectionSpec,
        "tables": TableSpec,
        "optimizer": OptimizerSpec,
        "limits": LimitSpec,
        "init": InitSpec,
        "direct": DirectIds,
        "hashed": HashedIds,
    }
    owner = next((by_place[step] for step in reversed(location[:-1]) if step in by_place), Config)
    return [item.name for item in fields(owner)]

"""A whole configuration: tables, what they have in common, and bounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import asdict, field, replace
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from embershard.config.layout import GROWING, fingerprint_of
from embershard.config.specs import (
    CLOSED,
    DirectIds,
    HashedIds,
    Name,
    OptimizerSpec,
    QuotientRemainder,
    VocabularyIds,
)
from embershard.config.tables import Matrix, TableSpec
from embershard.errors import InvalidInput

_NO_SETTINGS = ("name", "rows", "counts")
"""What of a table doesn't decide how an update changes rows."""


@dataclass(frozen=True, kw_only=True, config=CLOSED)
class LimitSpec:
    """Bounds on what callers may ask, have waiting, and hold.

    What calls make one rank hold in memory, beside its tables, is at most `in_flight_messages` × `message_bytes`
    (1 GiB) for requests and answers, `queued_numbers` × 4 bytes (1 GiB) for rows that were read or are to be changed,
    and some 100 KiB a connection; what arrives within a fifth of a second or so may go beyond it.
    """

    message_bytes: Annotated[int, Field(strict=True, ge=1024, le=2**30)] = 64 * 2**20
    """Largest request, and most bytes of vectors in an answer."""
    ids_per_request: Annotated[int, Field(strict=True, ge=1, le=2**30)] = 2**20
    """Ids of all features of one request together."""
    numbers_per_request: Annotated[int, Field(strict=True, ge=1, le=2**40)] = 2**26
    """Numbers that one request gathers or moves, of four bytes each: ids × hashes × dim, over its features."""
    queued_requests: Annotated[int, Field(strict=True, ge=1)] = 1024
    """Lookups that wait for a tick on one rank; updates, and lookups that wait for a version, as many again each.
    Callers (connections) take turns; once it is full, one who has less waiting takes the place of one who has more."""
    queued_numbers: Annotated[int, Field(strict=True, ge=1)] = 2**28
    """Numbers that each of the three gather or move together."""
    queue_ms: Annotated[int, Field(strict=True, ge=1, le=60_000)] = 30
    """Once lookups wait for longer than this for the engine, new ones are refused until they don't: those that are
    accepted are answered soon. Callers are told to try again after as long."""
    wait_ms: Annotated[int, Field(strict=True, ge=1, le=3_600_000)] = 10_000
    """Longest wait in the queue of a request that brings no deadline."""
    calls: Annotated[int, Field(strict=True, ge=8)] = 1024
    """Calls at once on one rank, streams counted, and connections. No connection may have more of them than are left
    for all others, so that one alone has half, and two have a third each."""
    in_flight_messages: Annotated[int, Field(strict=True, ge=8)] = 16
    """Messages of `message_bytes` for which there is memory: requests and answers that are on their way are smaller as
    a rule, and so many more. They are shared among connections as `calls` are."""
    stalled_s: Annotated[int, Field(strict=True, ge=1, le=3600)] = 10
    """Longest that a caller may take to send one request, or to take one answer; then its call, or its connection,
    ends."""
    group_timeout_s: Annotated[int, Field(strict=True, ge=2, le=3600)] = 120
    """Longest that a rank waits for its peers before all leave together."""
    update_share: Annotated[float, Field(strict=True, ge=0.01, le=0.99)] = 0.5
    """Share of an engine's time that updates may take while lookups wait."""
    clients_remembered: Annotated[int, Field(strict=True, ge=1, le=10**7)] = 100_000
    """Clients whose last updates are known, so that one that comes again isn't applied twice; of more, those are
    forgotten that have been silent for longest."""
    snapshots_kept: Annotated[int, Field(strict=True, ge=1)] = 3
    """Older snapshots are deleted once a new one is complete."""


@dataclass(frozen=True, kw_only=True, config=CLOSED)
class DurabilitySpec:
    """What outlives a process."""

    log: Literal["fsync", "os", "none"] = "fsync"
    """What an acknowledged update survives: fsync (a power failure), os (the end of the process) or none (neither:
    what came after the last snapshot is lost)."""
    replay_s: Annotated[int, Field(strict=True, ge=1, le=86_400)] = 10
    """Once applying the log again would take about so long, a snapshot is begun; with log = none, so many seconds of
    updates are lost at most, and those that come while it is written."""


@dataclass(frozen=True, kw_only=True, config=CLOSED)
class CollectionSpec:
    """What the tables have in common."""

    name: Name
    """Shown to callers."""
    seed: Annotated[int, Field(strict=True, ge=0, le=2**63 - 1)] = 0
    """Seeds initialisation and hashing."""


@dataclass(frozen=True, kw_only=True, config=CLOSED)
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
    durability: DurabilitySpec = field(default_factory=DurabilitySpec)
    """What outlives a process."""

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
        return {"seed": self.collection.seed, "tables": {table.name: _layout(table) for table in self.tables}}

    @property
    def dtypes(self) -> dict[str, str]:
        """{table: of its stored rows}."""
        return {table.name: table.dtype for table in self.tables}

    def fingerprint(self) -> str:
        """A digest of the layout, the rows of tables that may grow left out."""
        return fingerprint_of(self.layout())

    def settings(self) -> dict[str, Any]:
        """What decides how an update changes rows, beside the rows themselves; JSON can hold it."""
        tables = {}
        for table in self.tables:
            described = {**asdict(table), "optimizer": asdict(self.optimizer_of(table)), "ids": _policy(table)}
            tables[table.name] = {key: value for key, value in described.items() if key not in _NO_SETTINGS}
        return {"clients_remembered": self.limits.clients_remembered, "tables": tables}

    @property
    def matrices(self) -> list[Matrix]:
        """What is stored of all tables."""
        return [matrix for table in self.tables for matrix in table.matrices]

    def table(self, name: str) -> TableSpec:
        """The table of this name.

        Raises:
            InvalidInput: there is none.
        """
        for table in self.tables:
            if table.name == name:
                return table
        raise InvalidInput(f"there is no table {name!r}; the collection has {', '.join(t.name for t in self.tables)}")

    def table_of_feature(self, feature: str) -> TableSpec:
        """The table that a feature reads; there must be one."""
        return next(table for table in self.tables if feature in table.features)

    def with_frozen(self, tables: Collection[str]) -> Config:
        """The same where these tables are frozen, too."""
        return replace(self, tables=[replace(t, frozen=True) if t.name in tables else t for t in self.tables])

    def grown(self, rows: Mapping[str, int]) -> Config:
        """The same with other numbers of rows, {table: rows}."""
        tables = [table.resized(rows.get(table.name, table.rows)) for table in self.tables]
        return replace(self, tables=tables)

    def fitted(self, layout: dict[str, Any]) -> Config:
        """The same as a collection that began with another number of rows, if its layout is otherwise ours.

        Tables that may grow have as many rows as there, and the remainders that came of how many it began with.
        """
        found, tables = layout["tables"], []
        for table in self.tables:
            factor, there = table.factor, found.get(table.name, {})
            if isinstance(factor, QuotientRemainder) and factor.remainders is None and there.get("factor"):
                factor = replace(factor, remainders=there["factor"].get("remainders"))
            rows = there.get("rows", table.rows) if table.ids.kind in GROWING else table.rows
            tables.append(replace(table, rows=rows, factor=factor))
        try:
            fitted = replace(self, tables=tables)
        except ValueError:
            return self
        return fitted if fingerprint_of(layout) == fitted.fingerprint() else self


def _layout(table: TableSpec) -> dict[str, Any]:
    layout: dict[str, Any] = {
        "rows": table.rows,
        "dim": table.dim,
        "features": list(table.features),
        "ids": _ids_layout(table),
        "pooling": table.pooling,
        "dtype": table.dtype,
    }
    if table.factor is not None:
        layout["factor"] = asdict(table.factor) | ({"remainders": table.remainders} if table.remainders else {})
    return layout | {key: getattr(table, key) for key in ("scale", "normalise") if getattr(table, key) != "none"}


def _policy(table: TableSpec) -> dict[str, Any]:
    """All of its kind of ids, and not where a list of names is, but what."""
    return {**asdict(table.ids), **_ids_layout(table)}


def _ids_layout(table: TableSpec) -> dict[str, Any]:
    """Of a vocabulary, what its policy does is no part of it: that may be changed, and all vectors stay."""
    match table.ids:
        case DirectIds(padding=padding, names=None):
            return {"kind": "direct", "padding": padding}
        case DirectIds(padding=padding):
            return {"kind": "direct", "padding": padding, "names": table.ids.name_list.sha256}
        case HashedIds():
            return asdict(table.ids)
        case VocabularyIds():
            keys = ("kind", "fallback_rows", "hashes", "signed", "padding")
            return {key: getattr(table.ids, key) for key in keys}

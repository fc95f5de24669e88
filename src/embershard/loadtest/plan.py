"""What is asked of a service: which ids of which features, how, and how often."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from embershard.errors import InvalidInput
from embershard.v1 import embershard_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Sequence

    from embershard.client import Security

LOOKUP: Final = "lookup"
UPDATE: Final = "update"
# What is asked for unless told otherwise.
SECONDS, WARMUP_S, TIMEOUT_S = 10.0, 2.0, 10.0
FIRST_RATE: Final = 100.0
"""Requests a second, of a ramp's first step."""
IDS, BAG, ZIPF, UPDATES = 512, 10, 1.05, 0.0
DTYPE: Final = "float32"
PROCESSES, CONNECTIONS = 1, 4
IN_FLIGHT, STREAMS = 1000, 128
"""Requests under way at once, and streams, where each request has one of its own."""
SEED: Final = 0
SPACE_ROWS: Final = 10
"""Ids of a hashed or vocabulary table are drawn from so many times its rows, unless told otherwise."""
MOST_PROCESSES: Final = 256
"""Client processes, and connections of each."""
MOST_CALLERS: Final = 2_000
"""Of each process, which can't send so many requests a second as more would."""
LARGEST_SPACE: Final = 2**62
MOST_REQUESTS: Final = 20_000_000
"""Of one run: when each is due is in memory."""
CONNECTING_S: Final = 10.0
"""To be connected, and told what is served, however short the deadline of requests is."""
SHORTEST_S: Final = 0.1
LONGEST_S: Final = 86_400.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Feature:
    """A feature as the service tells it, and which of its ids are asked for."""

    name: str
    """Its name."""
    dim: int
    """Numbers of a vector."""
    pooled: bool
    """Whether vectors are of bags."""
    direct: bool
    """Whether the service refuses ids beyond the table's rows."""
    space: int
    """Ids are 0 … space - 1."""
    numbers_per_id: int
    """What an id counts towards the service's `numbers_per_request`."""


class Ready(NamedTuple):
    """A request as bytes."""

    data: bytes
    """Serialised."""
    rows: int
    """Vectors that are asked for, or gradients that are given."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """All that stays the same while the rate changes.

    Raises:
        InvalidInput: there is nothing to ask for, or what no process can do.
    """

    target: str
    """HOST:PORT."""
    security: Security | None = None
    """TLS, certificates and the token; None: what the environment says."""
    features: tuple[Feature, ...]
    """What the ids are of."""
    ids: int
    """Ids a request, over all features."""
    bag: int = BAG
    """Ids a bag, of pooled features."""
    zipf: float = ZIPF
    """The exponent of Zipf's law; 0: all ids are as frequent."""
    replay: tuple[Ready, ...] = ()
    """Lookups to send in turn, in place of drawn ones."""
    replay_file: str = ""
    """Where these are from."""
    updates: float = UPDATES
    """The share of requests that are updates."""
    stream: bool = False
    """Whether requests go by LookupStream and UpdateStream."""
    dtype: str = DTYPE
    """Of the vectors."""
    processes: int = PROCESSES
    """Client processes."""
    connections: int = CONNECTIONS
    """Of each process."""
    in_flight: int = IN_FLIGHT
    """Requests under way at once, of all processes together; the next ones wait for their turn."""
    timeout_s: float = TIMEOUT_S
    """Deadline of each request, from when it is sent."""
    seed: int = SEED
    """Everything that is drawn comes from it."""

    def __post_init__(self) -> None:
        if not 0 <= self.updates <= 1:
            raise InvalidInput(f"updates are {self.updates:g} of all requests; give a share from 0 to 1")
        if not 0 <= self.zipf <= 10:
            raise InvalidInput(f"the exponent of Zipf's law is {self.zipf:g}; give 0 (uniform) to 10")
        if self.replay and self.updates == 1:
            raise InvalidInput("requests that are replayed are lookups: leave room for them among the updates")
        if not self.replay and self.ids < len(self.features):
            raise InvalidInput(
                f"ids a request: {self.ids:,}, which is too few for {len(self.features):,} features; give each one at "
                "least, or choose features"
            )
        if max(self.processes, self.connections) > MOST_PROCESSES:
            raise InvalidInput(
                f"processes: {self.processes:,}, and connections of each: {self.connections:,}; give up to "
                f"{MOST_PROCESSES:,}"
            )
        if self.in_flight < self.processes:
            raise InvalidInput(
                f"requests in flight: {self.in_flight:,}, which is too few for {self.processes:,} processes"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Demand:
    """How much is asked for, and how long: by a rate (open loop), or by callers who wait for answers (closed loop).

    Raises:
        InvalidInput: neither or both, or more than can be held in memory.
    """

    seconds: float
    """Measured."""
    warmup_s: float
    """Before that, and not counted."""
    rate: float | None = None
    """Requests a second, of all processes together."""
    callers: int | None = None
    """Likewise."""

    def __post_init__(self) -> None:
        if (self.rate is None) == (self.callers is None):
            raise InvalidInput("give a rate (open loop) or a number of callers (closed loop): one of the two")
        if not SHORTEST_S <= self.seconds <= LONGEST_S or not 0 <= self.warmup_s <= LONGEST_S:
            raise InvalidInput(
                f"{self.seconds:g} seconds after {self.warmup_s:g} of warm-up: measure for {SHORTEST_S:g} to "
                f"{LONGEST_S:,.0f}, after 0 or more"
            )
        if self.rate is not None and not (self.rate > 0 and math.isfinite(self.rate)):
            raise InvalidInput(f"a rate of {self.rate:g} requests a second; give a finite number above 0")
        if self.rate is not None and self.rate * self.whole_s > MOST_REQUESTS:
            raise InvalidInput(
                f"{self.rate:g} requests a second for {self.whole_s:g} s are more than {MOST_REQUESTS:,} requests"
            )
        if self.callers is not None and self.callers < 1:
            raise InvalidInput(f"callers: {self.callers:,}; give one at least")

    @property
    def loop(self) -> str:
        """Its kind: open or closed."""
        return "closed" if self.rate is None else "open"

    @property
    def whole_s(self) -> float:
        """Warm-up, and what is measured."""
        return self.warmup_s + self.seconds


def features_of(
    description: pb.DescribeResponse, names: Sequence[str] | None, id_space: int | None
) -> tuple[Feature, ...]:
    """The features that are served, or those of these names.

    Direct ids are the table's rows; of others `id_space` ids are asked for, or SPACE_ROWS times the table's rows.

    Raises:
        InvalidInput: unknown names, or a feature that has no ids, or more than int64 can hold.
    """
    known = {
        name: Feature(
            name=name,
            dim=table.dim,
            pooled=table.pooling != pb.POOLING_NONE,
            direct=table.id_kind == "direct",
            space=table.rows if table.id_kind == "direct" else id_space or SPACE_ROWS * table.rows,
            numbers_per_id=table.numbers_per_id,
        )
        for table in description.tables
        for name in table.features
    }
    for name in names or ():
        if name not in known:
            raise InvalidInput(f"unknown feature {name!r}; the collection has {', '.join(known)}")
    chosen = tuple(known[name] for name in names or known)
    for feature in chosen:
        if not 1 <= feature.space <= LARGEST_SPACE:
            raise InvalidInput(
                f"feature {feature.name!r} would have {feature.space:,} ids; choose features, or an id space, of 1 to "
                f"{LARGEST_SPACE:,}"
            )
    return chosen


def dealt(total: int, parts: int) -> list[int]:
    """So many, in parts that differ by one at most: `dealt(5, 2)` is [3, 2]."""
    return [total // parts + (part < total % parts) for part in range(parts)]


def check_limits(plan: Plan, limits: pb.Limits) -> None:
    """Raises InvalidInput where the service takes no requests of this size."""
    if plan.replay:
        return
    numbers = sum(
        feature.numbers_per_id * count
        for feature, count in zip(plan.features, dealt(plan.ids, len(plan.features)), strict=True)
    )
    for what, asked, most in (
        ("ids", plan.ids, limits.ids_per_request),
        ("numbers", numbers, limits.numbers_per_request),
    ):
        if most and asked > most:
            raise InvalidInput(f"a request would have {asked:,} {what}; the service takes {most:,}: lower the ids")


def check_callers(plan: Plan, demand: Demand) -> None:
    """Raises InvalidInput where a process would have no caller, or callers would wait for each other."""
    if demand.callers is None:
        return
    most = MOST_CALLERS * plan.processes
    if demand.callers > most:
        raise InvalidInput(
            f"callers: {demand.callers:,}; give up to {most:,} ({MOST_CALLERS:,} a process): more wait for the client"
        )
    if not plan.processes <= demand.callers <= plan.in_flight:
        raise InvalidInput(
            f"callers: {demand.callers:,}; give {plan.processes:,} (one a process) to {plan.in_flight:,} (so many may "
            "be in flight)"
        )

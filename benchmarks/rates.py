"""Contestants who serve the same rows, measured one after the other in each round, and what tables say of them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
from client_processes import Callers, Clients, Ids, Slice
from clocks import interleaved
from numpy.typing import NDArray
from our_clients import OURS, Answer, Connect
from outcome import Spread, Table, told
from serving import Server

from embershard import Client

COLUMNS: Final = (
    "contestant",
    "requests/s",
    "quartiles",
    "rows/s",
    "p50 ms",
    "p99 ms",
    "p99.9 ms",
    "server CPU µs",
    "client CPU µs",
)
"""CPU is that of a request."""
READ: Final = 10_000
"""Rows that are read at once."""
PATIENT: Final = "[limits]\nqueue_ms = 1000\n"
"""Of our servers: nothing is refused where the machine is busy, as peers don't refuse anything."""
SAMPLES: Final = {0.5: 1, 0.99: 200, 0.999: 2_000}
"""{quantile: latencies below which it isn't told}."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Contestant:
    """A client, and the server that it asks."""

    connect: Connect
    """What the client processes do."""
    server: Server
    """Whose CPU time is counted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """How long it is measured."""

    rounds: int
    """That count; one more before them warms up."""
    slice_s: float
    """Of each contestant in each round."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Match:
    """Slices of every contestant, one a round, at one size of request and number of callers."""

    ids: int
    """Of a request."""
    callers: Callers
    """Who asked at once."""
    slices: Mapping[str, Sequence[Slice]]
    """{contestant: one a round}."""

    def rates(self, name: str) -> list[float]:
        """Requests a second, one a round."""
        return [part.rate for part in self.slices[name]]

    def best(self, *names: str) -> str:
        """Whose median rate is highest."""
        return max(names, key=lambda name: Spread.of(self.rates(name)).median)

    def ratio(self, ours: str, theirs: str) -> Spread:
        """Of our rate to theirs, round by round."""
        return Spread.of_ratios(self.rates(ours), self.rates(theirs))

    def table(self, title: str, note: str = "") -> Table:
        """A line a contestant."""
        return Table(title=title, columns=COLUMNS, rows=[self._line(name) for name in self.slices], note=note)

    def raw(self) -> dict[str, Any]:
        """Every figure of every round."""
        return {
            "ids": self.ids,
            "callers": self.callers.name,
            "contestants": {
                name: {
                    "requests_per_s": [round(part.rate, 2) for part in slices],
                    "requests": [len(part.latencies_s) for part in slices],
                    "p50_ms": [round(1e3 * float(np.median(part.latencies_s)), 4) for part in slices],
                    "client_cpu_s": [round(part.client_s, 4) for part in slices],
                    "server_cpu_s": [round(part.server_s, 4) for part in slices],
                }
                for name, slices in self.slices.items()
            },
        }

    def _line(self, name: str) -> list[str | float | int]:
        slices, rate = self.slices[name], Spread.of(self.rates(name))
        latencies_s = np.concatenate([part.latencies_s for part in slices])
        count = len(latencies_s)
        return [
            name,
            rate.median,
            f"{told(rate.low)} – {told(rate.high)}",
            round(rate.median * self.ids),
            *(
                1e3 * float(np.quantile(latencies_s, quantile)) if count >= least else ""
                for quantile, least in SAMPLES.items()
            ),
            1e6 * sum(part.server_s for part in slices) / count,
            1e6 * sum(part.client_s for part in slices) / count,
        ]


def measured(contestants: Mapping[str, Contestant], clients: Clients, ids: Ids, callers: Callers, plan: Plan) -> Match:
    """All of them, interleaved, by requests for the same ids."""
    slices: dict[str, list[Slice]] = {name: [] for name in contestants}

    def take(name: str) -> float:
        part = clients.ask(name, ids, callers, plan.slice_s, contestants[name].server.process)
        slices[name].append(part)
        return part.rate

    count = int(np.prod(ids.shape))
    print(f"  {count:,} ids, {callers.name}{', Zipf' * bool(ids.zipf)}", file=sys.stderr, flush=True)
    interleaved({name: partial(take, name) for name in contestants}, plan.rounds)
    return Match(ids=count, callers=callers, slices={name: parts[1:] for name, parts in slices.items()})


def ours(server: Server, features: Sequence[str]) -> dict[str, Contestant]:
    """All clients of ours."""
    return {
        name: Contestant(connect=partial(connect, server.target, features), server=server)
        for name, connect in OURS.items()
    }


def all_rows(server: Server, feature: str, rows: int) -> NDArray[np.float32]:
    """Of one table, to be given to peers: each row is seeded by its number."""
    with Client(server.target, timeout_s=60) as client:
        starts = range(0, rows, READ)
        parts = [client.lookup({feature: np.arange(first, min(first + READ, rows))})[feature] for first in starts]
    return np.concatenate(parts)


def check_same(contestants: Mapping[str, Contestant], ids: Any, expected: Answer) -> None:
    """Ends the program if any of them answers other numbers."""
    for name, contestant in contestants.items():
        with contestant.connect() as ask:
            answer = ask(ids)
        for feature, rows_ND in expected.items():
            if answer[feature].dtype != np.float32 or not np.array_equal(answer[feature], rows_ND):
                sys.exit(f"{name}: the numbers of {feature} aren't those of ours, so its speed means nothing")

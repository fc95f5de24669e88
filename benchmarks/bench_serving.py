"""Serving one table against Redis, memcached, Feast's layout in Redis, and a gRPC server that does nothing.

All have the same rows and get the same ids; every client ends with a float32 array. Echoes answer ready-made bytes, as
many as ours, and are asked by the same raw client as ours.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from client_processes import FOUR_PROCESSES, FOUR_THREADS, ONE, Callers, Clients, Ids, started
from our_clients import FEATURE, OURS, RAW_STREAM, RAW_UNARY, STREAM, UNARY
from outcome import Outcome, Plot, Spread, Table, Target
from peer_clients import (
    feast_hiredis,
    feast_redis_py,
    fill_memcached,
    fill_redis,
    memcached_get_many,
    redis_mget,
    redis_py_mget,
)
from peers import check_there, echo_server, left_out, memcached_server, redis_server, versions
from rates import PATIENT, Contestant, Match, Plan, all_rows, check_same, measured, ours
from serving import served

DIM: Final = 64
SIZES: Final = (26, 512, 13_312)
ZIPF: Final = 1.05
MGET, PY_MGET = "Redis MGET, hiredis", "Redis MGET, redis-py"
FEAST, RAW_FEAST = "Feast-style HMGET, redis-py", "Feast-style HMGET, hiredis"
MEMCACHED: Final = "memcached get_many, pymemcache"
RAW: Final = {"unary": RAW_UNARY, "stream": RAW_STREAM}
"""What echoes are compared with: {way: the same client, asking ours}."""

AGAINST: Final = {MGET: "Redis MGET by raw hiredis", FEAST: "Feast-style HMGET"}
"""How targets name them."""
AT_LEAST: Final = {
    MGET: {13_312: 8.0, 512: 2.0, 26: 0.25},
    FEAST: {13_312: 40.0, 512: 12.0, 26: 1.0},
    "echo": dict.fromkeys((13_312, 512, 26), 0.75),
}
"""{against: {ids: how much of its rate}}."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """How much is measured."""

    rows: int
    """Of the table."""
    plan: Plan
    """Rounds and slices."""
    callers: Sequence[Callers]
    """Who asks at once."""


FULL: Final = Setup(rows=1_000_000, plan=Plan(rounds=9, slice_s=0.3), callers=(ONE, FOUR_THREADS, FOUR_PROCESSES))
QUICK: Final = Setup(rows=20_000, plan=Plan(rounds=1, slice_s=0.05), callers=(ONE, FOUR_THREADS))


def measure(*, quick: bool) -> Outcome:
    """Starts all servers, fills them, and has clients of their own ask them."""
    check_there("redis", "memcached")
    setup = QUICK if quick else FULL
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        contestants = _contestants(setup.rows, folder, stack)
        connects = {name: contestant.connect for name, contestant in contestants.items()}
        clients = stack.enter_context(started(connects, max(callers.processes for callers in setup.callers)))
        matches = [
            measured(contestants, clients, Ids(shape=(size,), rows=setup.rows), callers, setup.plan)
            for callers in setup.callers
            for size in SIZES
        ]
        skewed = list(_skewed(contestants, clients, setup))
    of_one = {match.ids: match for match in matches if match.callers == ONE}
    return Outcome(
        section="serving",
        configuration={
            **asdict(setup),
            "dim": DIM,
            "sizes": SIZES,
            "zipf": ZIPF,
            "seed": Ids(shape=(), rows=0).seed,
            "versions": versions("redis", "memcached"),
            "left_out": left_out(),
        },
        tables=[
            _ratios(matches),
            *(_table(match) for match in matches),
            *(_table(match, f"; Zipf {ZIPF}") for match in skewed),
        ],
        targets=list(_targets(of_one)),
        plots=[_plot(of_one)],
        raw={"uniform": [match.raw() for match in matches], "zipf": [match.raw() for match in skewed]},
    )


def _contestants(rows: int, folder: Path, stack: ExitStack) -> dict[str, Contestant]:
    """Servers that have the same rows, and clients that ask them."""
    config = f'[collection]\nname = "peers"\n{PATIENT}[[tables]]\nname = "{FEATURE}"\nrows = {rows}\ndim = {DIM}\n'
    server = stack.enter_context(served(config, folder / "embershard"))
    found = ours(server, [FEATURE])
    print("  filling peers", file=sys.stderr, flush=True)
    ids_N, rows_ND = np.arange(rows), all_rows(server, FEATURE, rows)
    if "redis" not in left_out():
        server = stack.enter_context(redis_server(folder))
        fill_redis(server.target, ids_N, rows_ND)
        for name, connect in {
            MGET: redis_mget,
            PY_MGET: redis_py_mget,
            FEAST: feast_redis_py,
            RAW_FEAST: feast_hiredis,
        }.items():
            found[name] = Contestant(connect=partial(connect, server.target, DIM), server=server)
    if "memcached" not in left_out():
        server = stack.enter_context(memcached_server(2 * rows_ND.nbytes // 2**20 + 64))
        fill_memcached(server.target, ids_N, rows_ND)
        found[MEMCACHED] = Contestant(connect=partial(memcached_get_many, server.target, DIM), server=server)
    some_N = np.random.default_rng(1).integers(0, rows, SIZES[-1])
    check_same(found, some_N, {FEATURE: rows_ND[some_N]})
    for kind in ("asyncio", "threads"):
        server = stack.enter_context(echo_server(kind, SIZES, DIM))
        for way, name in RAW.items():
            connect = partial(OURS[name], server.target, [FEATURE])
            found[f"echo by {kind}, {way}"] = Contestant(connect=connect, server=server)
    return found


def _skewed(contestants: Mapping[str, Contestant], clients: Clients, setup: Setup) -> Iterator[Match]:
    """Ids by Zipf's law, for ours and the fastest peer."""
    some = {name: contestants[name] for name in (UNARY, STREAM, MGET) if name in contestants}
    for size in SIZES:
        yield measured(some, clients, Ids(shape=(size,), rows=setup.rows, zipf=ZIPF), ONE, setup.plan)


def _targets(of_one: Mapping[int, Match]) -> Iterator[Target]:
    """Of one caller."""
    for size, match in of_one.items():
        best = match.best(UNARY, STREAM)
        for against in [name for name in AGAINST if name in match.slices]:
            note = f"the best is {best}"
            if against == FEAST:
                note += f"; {match.ratio(best, RAW_FEAST).median:.3g} against the same layout read by raw hiredis"
            yield Target(
                name=f"rows/s against {AGAINST[against]}, one caller, best of unary and stream, {size:,} ids",
                measured=match.ratio(best, against),
                target=AT_LEAST[against][size],
                sense="at least",
                note=note,
            )
        for way, mine in RAW.items():
            by_threads = match.ratio(mine, f"echo by threads, {way}").median
            yield Target(
                name=f"against a raw gRPC echo of the same bytes, one caller, {way}, {size:,} ids",
                measured=match.ratio(mine, f"echo by asyncio, {way}"),
                target=AT_LEAST["echo"][size],
                sense="at least",
                note=f"the echo is asyncio's, as ours is; {by_threads:.3g} against one by threads",
            )


def _ratios(matches: Sequence[Match]) -> Table:
    """How much faster we are than each."""
    lines: list[list[str | float | int]] = []
    for against in matches[0].slices:
        if against not in OURS:
            way = against.rpartition(" ")[2]
            mine = [RAW[way]] if against.startswith("echo") else [UNARY, STREAM]
            lines.append([against, *(str(match.ratio(match.best(*mine), against)) for match in matches)])
    return Table(
        title="Serving one table: our requests a second to theirs",
        columns=["against", *(f"{match.ids:,} ids, {match.callers.name}" for match in matches)],
        rows=lines,
        note="Medians of the rounds' ratios, and quartiles; of our Client the better of unary and stream; against "
        "echoes our raw client of the same kind." + (f" Left out: {', '.join(left_out())}." if left_out() else ""),
    )


def _table(match: Match, law: str = "") -> Table:
    return match.table(
        f"Serving one table of {DIM} numbers a row: {match.ids:,} ids a request, {match.callers.name}{law}",
        "Percentiles are told of as many requests as they need; CPU is that of a request.",
    )


def _plot(of_one: Mapping[int, Match]) -> Plot:
    names = [name for name in next(iter(of_one.values())).slices if "threads" not in name]
    return Plot(
        name="serving",
        title="Rows a second, one caller",
        x="ids a request",
        y="rows/s",
        curves={
            name: [(size, size * Spread.of(match.rates(name)).median) for size, match in of_one.items()]
            for name in names
        },
    )

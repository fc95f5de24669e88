"""Serving 26 features of unlike dims, each from a table of its own, against 26 hashes in Redis.

A request has so many ids of every feature. Redis has one hash a table, whose fields are ids; it is asked by one HMGET a
feature, all in one pipeline, by raw hiredis.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Final

import numpy as np
from client_processes import FOUR_THREADS, ONE, Ids, started
from outcome import Outcome
from peer_clients import fill_hash, redis_hashes
from peers import check_there, left_out, redis_server, versions
from rates import PATIENT, Contestant, Plan, all_rows, check_same, measured, ours
from serving import served

from embershard import Client

FEATURES: Final = tuple(f"f{number:02}" for number in range(26))
DIMS: Final = dict(zip(FEATURES, islice(cycle((4, 8, 16, 32, 64, 128)), 26), strict=True))
EXAMPLES: Final = (1, 512)
"""Of a request: ids of each feature."""
CALLERS: Final = (ONE, FOUR_THREADS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """How much is measured."""

    rows: int
    """Of each table."""
    plan: Plan
    """Rounds and slices."""


FULL: Final = Setup(rows=100_000, plan=Plan(rounds=9, slice_s=0.4))
QUICK: Final = Setup(rows=2_000, plan=Plan(rounds=1, slice_s=0.05))


def measure(*, quick: bool) -> Outcome:
    """Starts both servers, fills Redis, and has clients of their own ask them."""
    check_there("redis")
    setup = QUICK if quick else FULL
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        contestants = _contestants(setup.rows, folder, stack)
        connects = {name: contestant.connect for name, contestant in contestants.items()}
        clients = stack.enter_context(started(connects, 1))
        matches = [
            measured(contestants, clients, Ids(shape=(26, examples), rows=setup.rows), callers, setup.plan)
            for callers in CALLERS
            for examples in EXAMPLES
        ]
    configuration = {
        **asdict(setup),
        "callers": [asdict(callers) for callers in CALLERS],
        "dims": DIMS,
        "examples": EXAMPLES,
        "versions": versions("redis"),
        "left_out": left_out(),
    }
    return Outcome(
        section="features",
        configuration=configuration,
        tables=[
            match.table(
                f"26 features of dims 4 to 128: {match.ids // 26} examples a request ({match.ids:,} ids), "
                f"{match.callers.name}",
                f"Left out: {', '.join(left_out())}." if left_out() else "",
            )
            for match in matches
        ],
        raw={"matches": [match.raw() for match in matches]},
    )


def _contestants(rows: int, folder: Path, stack: ExitStack) -> Mapping[str, Contestant]:
    tables = [f'[[tables]]\nname = "{name}"\nrows = {rows}\ndim = {dim}\n' for name, dim in DIMS.items()]
    server = stack.enter_context(
        served("\n".join(['[collection]\nname = "features"', PATIENT, *tables]), folder / "embershard")
    )
    found = ours(server, FEATURES)
    if "redis" not in left_out():
        print("  filling Redis", file=sys.stderr, flush=True)
        peer = stack.enter_context(redis_server(folder))
        for feature in FEATURES:
            fill_hash(peer.target, feature, np.arange(rows), all_rows(server, feature, rows))
        found["Redis, 26 HMGET, hiredis"] = Contestant(connect=partial(redis_hashes, peer.target, DIMS), server=peer)
    some_FN = np.random.default_rng(1).integers(0, rows, (len(FEATURES), max(EXAMPLES)))
    with Client(server.target) as client:
        check_same(found, some_FN, client.lookup(dict(zip(FEATURES, some_FN, strict=True))))
    return found

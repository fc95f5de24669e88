"""Whether several front-end processes on one port would answer more than one, before anybody makes them share tables.

    python benchmarks/bench_front_ends.py [--quick]

Echoes do no more than gRPC does, so that this is the most that several front ends could gain: ours would have to agree
on versions as well. Callers are processes of their own, on the same cores.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Final

from bench_alone import alone
from client_processes import FOUR_PROCESSES, ONE, Ids, started
from our_clients import FEATURE, RAW_STREAM, RAW_UNARY, raw_stream, raw_unary
from outcome import Outcome, Table
from peers import echo_server
from rates import Contestant, Match, Plan, measured

SIZES: Final = (26, 512, 13_312)
DIM: Final = 64
ROWS: Final = 1_000_000
WAYS: Final = {RAW_UNARY: raw_unary, RAW_STREAM: raw_stream}
FRONT_ENDS: Final = (1, 2)


def measure(*, quick: bool) -> Outcome:
    """One echo against two on one port."""
    plan = Plan(rounds=1, slice_s=0.05) if quick else Plan(rounds=9, slice_s=0.5)
    with ExitStack() as stack:
        contestants: dict[str, Contestant] = {}
        for count in FRONT_ENDS:
            first = stack.enter_context(echo_server("asyncio", SIZES, DIM))
            for _ in range(count - 1):
                stack.enter_context(echo_server("asyncio", SIZES, DIM, first.target.rpartition(":")[2]))
            for way, connect in WAYS.items():
                contestants[_name(count, way)] = Contestant(
                    connect=partial(connect, first.target, [FEATURE]), server=first
                )
        connects = {name: one.connect for name, one in contestants.items()}
        clients = stack.enter_context(started(connects, FOUR_PROCESSES.processes))
        matches = [
            measured(contestants, clients, Ids(shape=(1, ids), rows=ROWS), callers, plan)
            for callers in (ONE, FOUR_PROCESSES)
            for ids in (SIZES[:2] if quick else SIZES)
        ]
    return Outcome(
        section="front_ends",
        configuration={"dim": DIM, "sizes": SIZES, "rounds": plan.rounds, "slice_s": plan.slice_s},
        tables=[_table(matches)],
        raw={"matches": [match.raw() for match in matches]},
    )


def _name(count: int, way: str) -> str:
    return f"{count} × {way}"


def _table(matches: list[Match]) -> Table:
    rows: list[list[str | float | int]] = []
    for match in matches:
        for way in WAYS:
            gain = match.ratio(_name(2, way), _name(1, way))
            rows.append([match.callers.name, match.ids, way.rpartition(" ")[2], str(gain)])
    columns = ["callers", "ids", "way", "requests/s of two / of one"]
    return Table(title="Two gRPC front ends on one port against one", columns=columns, rows=rows)


if __name__ == "__main__":
    alone(measure, __doc__)

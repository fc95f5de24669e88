"""Several ranks: gathers and ticks of the torchrec engine, against an all-to-all made by hand in the same processes.

    python benchmarks/bench_ranks.py [--quick]

torchrun starts the ranks on this host, each with one thread and all with gloo; 26 tables of dim 64 are cut row-wise
over them, and every rank asks for as many ids of each table, all ranks at once. The path made by hand is what one would
write for this and nothing else: numpy sorts ids by owner, counts, ids and rows travel by `all_to_all_single`,
`index_select` reads. Both take turns. A world with more ranks than cores is marked: there ranks wait for a core.

Duplicates: the path made by hand sends every id, or each once, which `numpy.unique` finds out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from bench_alone import alone
from outcome import Outcome, Spread, Table, Target
from processes import on_ranks

TABLES, ROWS, DIM = 26, 100_000, 64
IDS: Final = (1, 8, 64, 512)
"""Of each table."""
CALLS: Final = {1: 60, 8: 60, 64: 30, 512: 10}
"""In a row: ranks stay in step by doing equally many."""
ZIPF: Final = 1.05
SHARES: Final = (0.0, 0.25, 0.5, 0.75, 0.9)
"""Of ids that are there already."""
STAGES: Final = ("checks", "agree", "ids travel", "rows are read", "rows travel", "compose", "the rest")
SEED: Final = 7
RANK: Final = Path(__file__).with_name("bench_rank.py")


def measure(*, quick: bool) -> Outcome:
    """One group of ranks after the other."""
    cores = os.cpu_count() or 1
    worlds, rounds = ((2,), 1) if quick else ((1, 2, 4), 11)
    of_worlds = {world: on_ranks(RANK, world, rounds) for world in worlds}
    marks = {world: f"{world} ranks" + (", oversubscribed" if world > cores else "") for world in worlds}
    return Outcome(
        section="ranks",
        configuration={
            "worlds": worlds,
            "cores": cores,
            "tables": TABLES,
            "rows of a table": ROWS,
            "dim": DIM,
            "ids of a table": IDS,
            "calls a measurement": CALLS,
            "rounds": rounds,
            "backend": "gloo",
            "seed": SEED,
        },
        tables=[_gathers(of_worlds, marks), _stages(of_worlds, marks), _duplicates(of_worlds, marks)],
        targets=[*_targets(of_worlds)],
        raw={marks[world]: measured for world, measured in of_worlds.items()},
    )


def _gathers(of_worlds: Mapping[int, Any], marks: Mapping[int, str]) -> Table:
    rows: list[list[str | float | int]] = []
    for world, measured in of_worlds.items():
        for ids, of_size in measured["gather"].items():
            ours, by_hand = Spread.of(of_size["engine"]), Spread.of(of_size["by hand"])
            ratio = Spread.of_ratios(of_size["engine"], of_size["by hand"])
            rows.append([f"{marks[world]}, {ids} ids", *(s * 1e3 for s in (ours.median, by_hand.median)), ratio.median])
    return Table(
        title=f"gathers of {TABLES} tables × {DIM}: ms a call by the wall's clock",
        columns=["ranks, ids of a table a rank", "engine", "by hand", "engine / by hand"],
        rows=rows,
    )


def _stages(of_worlds: Mapping[int, Any], marks: Mapping[int, str]) -> Table:
    rows: list[list[str | float | int]] = []
    for world, measured in of_worlds.items():
        for ids, of_size in measured["tick"].items():
            rows.append([f"{marks[world]}, {ids} ids", *(Spread.of(of_size[stage]).median * 1e3 for stage in STAGES)])
    return Table(
        title="a tick's lookup by stage: ms by the wall's clock",
        columns=["ranks, ids of a table a rank", *STAGES],
        rows=rows,
        note="to travel is also to wait for the other ranks",
    )


def _duplicates(of_worlds: Mapping[int, Any], marks: Mapping[int, str]) -> Table:
    rows: list[list[str | float | int]] = []
    for world, measured in of_worlds.items():
        for name, of_kind in measured["duplicates"].items():
            each, once, engine = (Spread.of(of_kind[way]).median * 1e3 for way in ("each id", "ids once", "engine"))
            gain = Spread.of_ratios(of_kind["each id"], of_kind["ids once"]).median
            share = float(np.mean(of_kind["duplicates"]))
            rows.append([f"{marks[world]}, {name}", share, each, once, engine, gain])
    return Table(
        title=f"duplicates among {IDS[-1]} ids of each table: ms a call by the wall's clock",
        columns=["ranks, ids", "come again", "by hand, every id", "by hand, ids once", "engine", "gain of once"],
        rows=rows,
    )


def _targets(of_worlds: Mapping[int, Any]) -> Iterator[Target]:
    for ids, most in ((512, 1.3), (1, 1.6)):
        measured = of_worlds[2]["gather"][str(ids)]
        yield Target(
            name=f"two ranks against hand-made all-to-all: time at {ids} ids a table",
            measured=Spread.of_ratios(measured["engine"], measured["by hand"]),
            target=most,
            sense="at most",
        )


if __name__ == "__main__":
    alone(measure, __doc__)

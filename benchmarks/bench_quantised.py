"""Rows in fewer bits: what float32, float16 and int8 cost on the wire, in tables, and between two ranks.

    python benchmarks/bench_quantised.py [--quick]

One server has a table of each dtype; one caller asks it for the ids of one of them, unary, up to a numpy array. Answers
of int8 are float32 arrays by then; those of float16 are float16, or float32 where that is said, as numpy makes them.
Both processes are on one machine, where bytes cost little: what they save on a network comes on top.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from bench_alone import alone
from bench_tables import SEED, config_in, engine_of, use_one_thread
from clocks import WALL, Turns, interleaved, seconds_each
from outcome import Outcome, Spread, Table
from processes import on_ranks
from serving import served

from embershard import Client, codec
from embershard.engine.making import make_engine, make_world
from embershard.engine.placement import groups_of
from embershard.quiet import quieten
from embershard.rowwise import floats, quantised
from embershard.v1 import embershard_pb2 as pb

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embershard.engine.base import Engine

    Ids = NDArray[np.int64]
    Measured = Mapping[str, Sequence[float]]

DIM: Final = 64
DTYPES: Final = ("float32", "float16", "int8")
IDS: Final = (26, 512, 13_312)
BATCHES: Final = 32
"""Of ids, one after the other, so that no cache has them all."""
WIRE: Final = {
    "float32": ("float32", "float32"),
    "float16": ("float32", "float16"),
    "float16, made float32": ("float32", "float16"),
    "int8": ("float32", "int8"),
    "float32 of int8 rows": ("int8", "float32"),
    "int8 of int8 rows": ("int8", "int8"),
}
"""{contestant: (dtype of the table, dtype on the wire)}."""


def measure(*, quick: bool) -> Outcome:
    """The wire, rounding itself, gathers of one process, and of two ranks."""
    use_one_thread()
    rows, rounds = (20_000, 2) if quick else (1_000_000, 21)
    wire = _wire(rows, rounds)
    rounding = {ids: interleaved(_rounders(ids), rounds) for ids in IDS}
    gathers = {1: _one_process(rows, rounds), 2: _two_ranks(rows, rounds)}
    return Outcome(
        section="quantised",
        configuration={
            "dim": DIM,
            "rows of a table": rows,
            "ids": IDS,
            "rounds": rounds,
            "callers": 1,
            "server": "local engine, unary, loopback",
            "seed": SEED,
        },
        tables=[_wire_table(wire), _rounding_table(rounding), _gather_table(gathers), _bytes_table(rows)],
        raw={"wire": wire, "rounding": rounding, "gathers": gathers},
    )


def _config(rows: int) -> str:
    tables = "".join(f'[[tables]]\nname = "{d}"\nrows = {rows}\ndim = {DIM}\ndtype = "{d}"\n' for d in DTYPES)
    return f'[collection]\nname = "quantised"\nseed = {SEED}\n{tables}'


def _batches(rows: int, ids: int) -> list[Ids]:
    random = np.random.default_rng(SEED)
    return [random.integers(0, rows, ids) for _ in range(BATCHES)]


def _over(batches: Sequence[Ids], work: Callable[[Ids], object]) -> Callable[[], float]:
    """Seconds of each call, whose batch is always the next."""
    return partial(Turns(batches, WALL).seconds, work, least_s=0.05)


def _wire(rows: int, rounds: int) -> dict[int, Measured]:
    """{ids: {contestant: seconds a request}}."""
    with (
        tempfile.TemporaryDirectory() as folder,
        served(_config(rows), Path(folder)) as server,
        Client(server.target, timeout_s=60) as client,
    ):
        return {
            ids: interleaved({name: _over(_batches(rows, ids), _asker(client, name)) for name in WIRE}, rounds)
            for ids in IDS
        }


def _asker(client: Client, contestant: str) -> Callable[[Ids], object]:
    table, dtype = WIRE[contestant]
    if "made" in contestant:
        return lambda ids: client.lookup({table: ids}, dtype=dtype)[table].astype(np.float32)
    return lambda ids: client.lookup({table: ids}, dtype=dtype)[table]


def _rounders(ids: int) -> dict[str, Callable[[], float]]:
    """What makes bytes of float32 vectors, and floats of int8 rows."""
    rows = torch.from_numpy(np.random.default_rng(SEED).normal(size=(ids, DIM)).astype(np.float32))
    made = quantised(rows)
    answer = codec.encode_answer(["f"], [made.numpy()], [], 1)
    works: dict[str, Callable[[], object]] = {
        "int8 by FBGEMM": lambda: quantised(rows),
        "int8 by numpy": lambda: _by_numpy(rows.numpy()),
        "float16 by torch": rows.half,
        "float16 by numpy": lambda: rows.numpy().astype(np.float16),
        "floats by torch": lambda: floats(made),
        "floats by the client": lambda: codec.decode_answer(answer, pb.D_TYPE_INT8),
    }
    return {name: partial(seconds_each, work, WALL) for name, work in works.items()}


def _by_numpy(rows_ND: NDArray[np.float32]) -> NDArray[np.uint8]:
    """The same bytes."""
    low_N, high_N = rows_ND.min(axis=1), rows_ND.max(axis=1)
    width_N = high_N - low_N
    made_NT = np.empty((len(rows_ND), DIM + 8), np.uint8)
    made_NT[:, :DIM] = np.rint((rows_ND - low_N[:, None]) * (255 / (width_N + np.float32(1e-8)))[:, None])
    made_NT[:, DIM:] = np.stack([width_N / 255, low_N], axis=1).view(np.uint8)
    return made_NT


def _gathers(engine: Engine) -> dict[str, Callable[[Ids], object]]:
    """{contestant: what reads rows}."""

    def gather(table: str, as_stored: bool, ids: Ids) -> object:
        return engine.gather({table: torch.from_numpy(ids)}, {table}, as_stored=as_stored)

    contestants = {dtype: partial(gather, dtype, False) for dtype in DTYPES}
    return {**contestants, "int8 as stored": partial(gather, "int8", True)}


def _one_process(rows: int, rounds: int) -> dict[int, Measured]:
    """{ids: {contestant: seconds a gather}} of the local engine."""
    works = _gathers(engine_of(config_in(_config(rows))))
    return {
        ids: interleaved({name: _over(_batches(rows, ids), work) for name, work in works.items()}, rounds)
        for ids in IDS
    }


def _two_ranks(rows: int, rounds: int) -> dict[int, Measured]:
    """The same of the sharded engine, both ranks asking at once."""
    measured: dict[str, Measured] = on_ranks(__file__, 2, rows, rounds)
    return {int(ids): of_ids for ids, of_ids in measured.items()}


def rank_main(rows: int, rounds: int) -> None:
    """One rank: measures, and rank 0 prints a line of JSON."""
    quieten()
    use_one_thread()
    world = make_world(timeout_s=120)
    works = _gathers(make_engine(config_in(_config(rows)), world, seeded=False))
    measured = {}
    for ids in IDS:
        batches = _batches(rows, ids)[: 8 if ids > 512 else None]
        turns = Turns(batches, WALL)
        contestants = {name: partial(turns.seconds_of, work, len(batches)) for name, work in works.items()}
        measured[ids] = interleaved(contestants, rounds)
    if world.rank == 0:
        print(json.dumps(measured), flush=True)
    world.leave()


def _wire_table(wire: Mapping[int, Measured]) -> Table:
    lines: list[list[str | float | int]] = []
    for ids, of_ids in wire.items():
        for name, seconds in of_ids.items():
            size = codec.vector_bytes([(ids, DIM)], codec.DTYPE_BY_NAME[WIRE[name][1]])
            rates, gain = Spread.of([1 / one for one in seconds]), Spread.of_ratios(of_ids["float32"], seconds)
            lines.append([ids, name, size, round(rates.median), str(gain)])
    columns = ["ids", "on the wire", "bytes of vectors", "requests/s", "times float32"]
    return Table(
        title=f"One caller, unary, to a numpy array, dim {DIM}, by the wall's clock", columns=columns, rows=lines
    )


def _rounding_table(rounding: Mapping[int, Measured]) -> Table:
    lines: list[list[str | float | int]] = [
        [name, *(round(Spread.of(rounding[ids][name]).median * 1e6, 1) for ids in IDS)] for name in rounding[IDS[0]]
    ]
    columns = ["what", *(f"{ids:,} rows, µs" for ids in IDS)]
    return Table(title=f"Rounding alone, dim {DIM}, one thread, by the wall's clock", columns=columns, rows=lines)


def _gather_table(gathers: Mapping[int, Mapping[int, Measured]]) -> Table:
    lines: list[list[str | float | int]] = []
    for ranks, of_ranks in gathers.items():
        for ids, of_ids in of_ranks.items():
            for name, seconds in of_ids.items():
                rates, gain = Spread.of([ids / one for one in seconds]), Spread.of_ratios(of_ids["float32"], seconds)
                lines.append([ranks, ids, name, round(rates.median), str(gain)])
    columns = ["ranks", "ids", "table", "rows/s a rank", "times float32"]
    note = "int8 as stored is what a lookup of int8 reads; the others become float32."
    return Table(title="Gathers of random rows, by the wall's clock", columns=columns, rows=lines, note=note)


def _bytes_table(rows: int) -> Table:
    lines: list[list[str | float | int]] = []
    for group in groups_of(config_in(_config(rows)), 1):
        state = 0 if group.state_shape is None else 4
        lines.append([next(iter(group.slots)), group.bytes_per_row - state, state, group.book_bytes_per_row])
    columns = ["table", "bytes of a row", "of optimizer state", "of books"]
    return Table(title=f"Memory, dim {DIM}, rowwise_adagrad", columns=columns, rows=lines)


if __name__ == "__main__":
    if "RANK" in os.environ:
        rank_main(*map(int, sys.argv[1:]))
    else:
        alone(measure, __doc__)

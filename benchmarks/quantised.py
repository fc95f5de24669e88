"""Rows in fewer bits: what float32, float16 and int8 cost on the wire, in tables, and between two ranks.

    python benchmarks/quantised.py [--quick]

One server has a table of each dtype; one caller asks it for the ids of one of them, unary, up to a numpy array. Answers
of int8 are float32 arrays by then; those of float16 are float16, or float32 where that is said, as numpy makes them.
Both processes are on one machine, where bytes cost little: what they save on a network comes on top.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from outcome import Outcome, Spread, Table, interleaved, seconds_each

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embershard import Client
    from embershard.engine.base import Engine

    Measured = Mapping[str, Sequence[float]]

DIM: Final = 64
DTYPES: Final = ("float32", "float16", "int8")
IDS: Final = (26, 512, 13_312)
BATCHES: Final = 32
"""Of ids, one after the other, so that no cache has them all."""
SEED: Final = 7
WIRE: Final = {
    "float32": ("float32", "float32"),
    "float16": ("float32", "float16"),
    "float16, made float32": ("float32", "float16"),
    "int8": ("float32", "int8"),
    "float32 of int8 rows": ("int8", "float32"),
    "int8 of int8 rows": ("int8", "int8"),
}
"""{contestant: (dtype of the table, dtype on the wire)}."""
_RANK: Final = "--rank"


def measure(*, quick: bool) -> Outcome:
    """The wire, rounding itself, gathers of one process, and of two ranks."""
    rows, rounds = (100_000, 5) if quick else (1_000_000, 21)
    wire = _wire(rows, rounds)
    rounding = {ids: interleaved(_rounders(ids), rounds) for ids in IDS}
    gathers = {1: _alone(rows, rounds), 2: _two_ranks(rows, rounds)}
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


def _config(rows: int) -> dict[str, Any]:
    tables = [{"name": dtype, "rows": rows, "dim": DIM, "dtype": dtype} for dtype in DTYPES]
    return {"collection": {"name": "quantised", "seed": SEED}, "tables": tables}


def _toml(rows: int) -> str:
    tables = "".join(f'[[tables]]\nname = "{d}"\nrows = {rows}\ndim = {DIM}\ndtype = "{d}"\n' for d in DTYPES)
    return f'[collection]\nname = "quantised"\nseed = {SEED}\n{tables}'


def _batches(rows: int, ids: int) -> list[NDArray[np.int64]]:
    random = np.random.default_rng(SEED)
    return [random.integers(0, rows, ids) for _ in range(BATCHES)]


def _over(batches: Sequence[Any], work: Callable[[Any], object]) -> Callable[[], float]:
    """Seconds of each call, whose batch is always the next."""
    turn = iter(range(2**62))
    return lambda: seconds_each(lambda: work(batches[next(turn) % len(batches)]))


def _wire(rows: int, rounds: int) -> dict[int, Measured]:
    """{ids: {contestant: seconds a request}}."""
    from serving import served

    from embershard import Client

    with (
        tempfile.TemporaryDirectory() as folder,
        served(_toml(rows), Path(folder)) as server,
        Client(server.target, timeout_s=60) as client,
    ):
        return {
            ids: interleaved({name: _over(_batches(rows, ids), _asker(client, name)) for name in WIRE}, rounds)
            for ids in IDS
        }


def _asker(client: Client, contestant: str) -> Callable[[NDArray[np.int64]], object]:
    table, dtype = WIRE[contestant]
    if "made" in contestant:
        return lambda ids: client.lookup({table: ids}, dtype=dtype)[table].astype(np.float32)
    return lambda ids: client.lookup({table: ids}, dtype=dtype)[table]


def _rounders(ids: int) -> dict[str, Callable[[], float]]:
    """What makes bytes of float32 vectors, and floats of int8 rows."""
    import torch

    from embershard import codec
    from embershard.rowwise import floats, quantised
    from embershard.v1 import embershard_pb2 as pb

    torch.set_num_threads(1)
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
    return {name: partial(seconds_each, work) for name, work in works.items()}


def _by_numpy(rows_ND: NDArray[np.float32]) -> NDArray[np.uint8]:
    """The same bytes."""
    low_N, high_N = rows_ND.min(axis=1), rows_ND.max(axis=1)
    width_N = high_N - low_N
    made_NT = np.empty((len(rows_ND), DIM + 8), np.uint8)
    made_NT[:, :DIM] = np.rint((rows_ND - low_N[:, None]) * (255 / (width_N + np.float32(1e-8)))[:, None])
    made_NT[:, DIM:] = np.stack([width_N / 255, low_N], axis=1).view(np.uint8)
    return made_NT


def _gathers(engine: Engine, each: Callable[[Callable[[Any], object]], Callable[[], float]]) -> Any:
    """{contestant: what measures it}."""
    import torch

    def gather(table: str, as_stored: bool, ids: NDArray[np.int64]) -> object:
        return engine.gather({table: torch.from_numpy(ids)}, {table}, as_stored=as_stored)

    contestants = {dtype: partial(gather, dtype, False) for dtype in DTYPES}
    contestants["int8 as stored"] = partial(gather, "int8", True)
    return {name: each(work) for name, work in contestants.items()}


def _alone(rows: int, rounds: int) -> dict[int, Measured]:
    """{ids: {contestant: seconds a gather}} of the local engine."""
    import torch

    from embershard.config import parse_config
    from embershard.engine.local import LocalEngine
    from embershard.engine.world import SoloWorld

    torch.set_num_threads(1)
    engine = LocalEngine(parse_config(_config(rows)), SoloWorld(), seeded=False)
    return {ids: interleaved(_gathers(engine, partial(_over, _batches(rows, ids))), rounds) for ids in IDS}


def _two_ranks(rows: int, rounds: int) -> dict[int, Measured]:
    """The same of the sharded engine, both ranks asking at once."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [sys.executable, *launcher, __file__, _RANK, str(rows), str(rounds)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    shown = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True, env=environment)
    measured: dict[str, Measured] = json.loads(shown.stdout.strip().splitlines()[-1])
    return {int(ids): of_ids for ids, of_ids in measured.items()}


def rank_main(rows: int, rounds: int) -> None:
    """One rank: measures, and rank 0 prints a line of JSON."""
    import time

    import torch

    from embershard.config import parse_config
    from embershard.engine.making import make_engine, make_world
    from embershard.quiet import quieten

    quieten()
    torch.set_num_threads(1)
    world = make_world(timeout_s=120)
    engine = make_engine(parse_config(_config(rows)), world, seeded=False)

    def each(batches: Sequence[Any], work: Callable[[Any], object]) -> Callable[[], float]:
        def seconds() -> float:  # ranks stay in step by doing equally many
            start = time.perf_counter()
            for batch in batches:
                work(batch)
            return (time.perf_counter() - start) / len(batches)

        return seconds

    measured = {
        ids: interleaved(_gathers(engine, partial(each, _batches(rows, ids)[: 8 if ids > 512 else None])), rounds)
        for ids in IDS
    }
    if world.rank == 0:
        print(json.dumps(measured), flush=True)
    world.leave()


def _wire_table(wire: Mapping[int, Measured]) -> Table:
    from embershard import codec

    lines: list[list[str | float | int]] = []
    for ids, of_ids in wire.items():
        for name, seconds in of_ids.items():
            size = codec.vector_bytes([(ids, DIM)], codec.DTYPE_BY_NAME[WIRE[name][1]])
            rates, gain = Spread.of([1 / one for one in seconds]), Spread.of_ratios(of_ids["float32"], seconds)
            lines.append([ids, name, size, round(rates.median), f"{gain.median:.2f} ({gain.low:.2f}-{gain.high:.2f})"])
    columns = ["ids", "on the wire", "bytes of vectors", "requests/s", "times float32"]
    return Table(title=f"One caller, unary, to a numpy array, dim {DIM}", columns=columns, rows=lines)


def _rounding_table(rounding: Mapping[int, Measured]) -> Table:
    lines: list[list[str | float | int]] = [
        [name, *(round(Spread.of(rounding[ids][name]).median * 1e6, 1) for ids in IDS)] for name in rounding[IDS[0]]
    ]
    columns = ["what", *(f"{ids:,} rows, µs" for ids in IDS)]
    return Table(title=f"Rounding alone, dim {DIM}, one thread", columns=columns, rows=lines)


def _gather_table(gathers: Mapping[int, Mapping[int, Measured]]) -> Table:
    lines: list[list[str | float | int]] = []
    for ranks, of_ranks in gathers.items():
        for ids, of_ids in of_ranks.items():
            for name, seconds in of_ids.items():
                rates, gain = Spread.of([ids / one for one in seconds]), Spread.of_ratios(of_ids["float32"], seconds)
                told = f"{gain.median:.2f} ({gain.low:.2f}-{gain.high:.2f})"
                lines.append([ranks, ids, name, round(rates.median), told])
    columns = ["ranks", "ids", "table", "rows/s a rank", "times float32"]
    note = "int8 as stored is what a lookup of int8 reads; the others become float32."
    return Table(title="Gathers of random rows", columns=columns, rows=lines, note=note)


def _bytes_table(rows: int) -> Table:
    from embershard.config import parse_config
    from embershard.engine.placement import groups_of

    lines: list[list[str | float | int]] = []
    for group in groups_of(parse_config(_config(rows)), 1):
        state = 0 if group.state_shape is None else 4
        lines.append([next(iter(group.slots)), group.bytes_per_row - state, state, group.book_bytes_per_row])
    columns = ["table", "bytes of a row", "of optimizer state", "of books"]
    return Table(title=f"Memory, dim {DIM}, rowwise_adagrad", columns=columns, rows=lines)


def main() -> None:
    """Measures and prints; a rank of the two is started with two numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller tables, fewer rounds")
    parser.add_argument(_RANK, type=int, nargs=2, metavar=("ROWS", "ROUNDS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        rank_main(*options.rank)
        return
    for table in measure(quick=options.quick).tables:
        print(f"\n{table.title}\n" + "\n".join("  ".join(map(str, row)) for row in (table.columns, *table.rows)))


if __name__ == "__main__":
    main()

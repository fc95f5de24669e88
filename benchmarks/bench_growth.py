"""How times grow with rows, ids, tables, features, dims and bytes: curves, each with its exponent.

    python benchmarks/bench_growth.py [--quick]

An exponent e says that twice as much takes 2^e times as long; it is fitted by least squares to the logarithms. Lookups
in process take the whole road, from ids to vectors, with one thread; tables of all numbers of rows are there at once
and take turns, beside `index_select` of the same rows: what it costs that more rows fit into caches less. Tables are of
zeros, which were written.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from bench_alone import alone
from bench_tables import SEED, Direct, batches_of, config_of, engine_of, use_one_thread
from clocks import THREAD, WALL, Turns, interleaved
from outcome import Outcome, Plot, Spread, Table, Target
from serving import served

from embershard import Client
from embershard.config import parse_config

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embershard.engine.local import LocalEngine

ROWS: Final = (10**5, 10**6, 10**7, 10**8)
ROWS_DIM, ROWS_IDS = 16, 512
IDS: Final = (1, 10, 100, 1_000, 10_000, 100_000)
MANY: Final = (1, 5, 20, 100, 500)
"""Tables, or features of one table."""
DIMS: Final = (4, 16, 64, 256, 512)
TABLE_MIB: Final = (8, 64, 256, 1024)
WAYS: Final = ("lookup", "gather", "index_select")
Measured = dict[str, list[float]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """Times against one size."""

    name: str
    """What is measured, and against what."""
    unit: str
    """Of the size."""
    points: Mapping[int, list[float]]
    """{size: seconds, one a round}."""

    @property
    def medians(self) -> list[tuple[float, float]]:
        """Sizes and seconds."""
        return [(float(size), statistics.median(seconds)) for size, seconds in self.points.items()]

    @property
    def exponent(self) -> float:
        """Of the power law that fits best."""
        sizes, seconds = np.log(np.array(self.medians)).T
        return float(np.polyfit(sizes, seconds, 1)[0])


def measure(*, quick: bool) -> Outcome:
    """All curves; few points if quick."""
    use_one_thread()
    rounds, rows = (2, ROWS[:2]) if quick else (9, ROWS)
    by_rows = _by_rows(rows, rounds)
    curves = [
        *(
            Curve(name=f"{way}, by rows", unit="rows", points={size: by_rows[f"{way}, {size}"] for size in rows})
            for way in WAYS
        ),
        _curve("lookup, by ids", "ids", {size: _asking(_plain(16), {"t0": size}) for size in IDS}, rounds),
        _curve("lookup, by tables", "tables", {size: _asking(_tables(size), _one_each(size)) for size in MANY}, rounds),
        _curve(
            "lookup, by features",
            "features",
            {size: _asking(_features(size), _one_each(size)) for size in MANY},
            rounds,
        ),
        _curve("lookup, by dim", "dim", {size: _asking(_plain(size), {"t0": ROWS_IDS}) for size in DIMS}, rounds),
    ]
    if not quick:
        curves += [_served_by_rows(rows, rounds), *_by_bytes()]
    return Outcome(
        section="growth",
        configuration={
            "rows": rows,
            "dim": ROWS_DIM,
            "ids": ROWS_IDS,
            "rounds": rounds,
            "threads": 1,
            "seed": SEED,
            "dtype by rows": "float16",
        },
        tables=[_table(curves), *map(_points, curves)],
        targets=[_target(rows, by_rows)],
        plots=[_plot("rows", "rows", curves), _plot("sizes", "ids, tables, features, dim, bytes", curves)],
        raw={curve.name: dict(curve.points) for curve in curves},
    )


def _by_rows(rows: Sequence[int], rounds: int) -> Measured:
    """{"way, rows": p50, one a round}."""
    contestants: dict[str, Callable[[], float]] = {}
    for size in rows:
        engine = engine_of(config_of(size, ROWS_DIM, dtype="float16", optimizer="sgd"))
        turns = Turns(batches_of(ROWS_IDS, size), THREAD)
        for way, work in _ways(engine).items():
            contestants[f"{way}, {size}"] = partial(turns.p50, work)
    return interleaved(contestants, rounds)


def _ways(engine: LocalEngine) -> dict[str, Callable[[NDArray[np.int64]], object]]:
    weight, names, direct = engine.shards["group0"].weight, frozenset({"t0"}), Direct(engine)
    return {
        "lookup": lambda ids_N: direct.lookup({"t0": ids_N}),
        "gather": lambda ids_N: engine.gather({"t0": torch.from_numpy(ids_N)}, names),
        "index_select": lambda ids_N: weight.index_select(0, torch.from_numpy(ids_N)).float(),
    }


def _curve(name: str, unit: str, contestants: Mapping[int, Callable[[], float]], rounds: int) -> Curve:
    measured = interleaved({str(size): contestant for size, contestant in contestants.items()}, rounds)
    return Curve(name=name, unit=unit, points={int(size): seconds for size, seconds in measured.items()})


def _plain(dim: int) -> LocalEngine:
    return engine_of(config_of(100_000, dim))


def _tables(count: int) -> LocalEngine:
    return engine_of(config_of(10_000, 16, tables=count))


def _features(count: int) -> LocalEngine:
    table = {"name": "t", "rows": 100_000, "dim": 16, "features": [f"t{number}" for number in range(count)]}
    return engine_of(parse_config({"collection": {"name": "bench"}, "tables": [table]}))


def _one_each(count: int) -> dict[str, int]:
    return {f"t{number}": 1 for number in range(count)}


def _asking(engine: LocalEngine, counts: Mapping[str, int]) -> Callable[[], float]:
    random = np.random.default_rng(SEED)
    rows = engine.config.tables[0].rows
    batches = [{name: random.integers(0, rows, ids) for name, ids in counts.items()} for _ in range(64)]
    return partial(Turns(batches, THREAD).p50, Direct(engine).lookup)


def _config_text(rows: int, dim: int) -> str:
    table = f'[[tables]]\nname = "t0"\nrows = {rows}\ndim = {dim}\ndtype = "float16"\ninit = {{ kind = "zeros" }}\n'
    return f'[collection]\nname = "growth"\n[optimizer]\nkind = "sgd"\n{table}'


def _served_by_rows(rows: Sequence[int], rounds: int) -> Curve:
    """Of lookups over the wire, from one caller; every number of rows has a server of its own."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        contestants: dict[int, Callable[[], float]] = {}
        for size in rows:
            server = stack.enter_context(served(_config_text(size, ROWS_DIM), folder / str(size)))
            client = stack.enter_context(Client(server.target))
            contestants[size] = partial(Turns(batches_of(ROWS_IDS, size), WALL).p50, partial(_asked, client))
        return _curve("lookup through the service, by rows", "rows", contestants, rounds)


def _asked(client: Client, ids_N: NDArray[np.int64]) -> object:
    return client.lookup({"t0": ids_N})


def _by_bytes() -> Iterator[Curve]:
    """How long a server takes to start with new tables, to write a snapshot, and to start with that."""
    measured: dict[str, dict[int, list[float]]] = {"start": {}, "snapshot": {}, "start and load": {}}
    for mib in TABLE_MIB:
        config, size = _config_text(mib * 2**20 // 128, 64), mib * 2**20
        config = config.replace('init = { kind = "zeros" }\n', "")
        with tempfile.TemporaryDirectory() as name:
            begin = WALL()
            with served(config, Path(name)) as server, Client(server.target, timeout_s=600) as client:
                client.lookup({"t0": [1]})
                measured["start"][size] = [WALL() - begin]
                client.update({"t0": [1]}, gradients={"t0": np.ones((1, 64), np.float32)})
                begin = WALL()
                client.snapshot()
                measured["snapshot"][size] = [WALL() - begin]
            begin = WALL()
            with served(config, Path(name)) as server, Client(server.target, timeout_s=600) as client:
                client.lookup({"t0": [1]})
                measured["start and load"][size] = [WALL() - begin]
    for what, points in measured.items():
        yield Curve(name=f"{what}, by bytes of tables", unit="bytes", points=points)


def _target(rows: Sequence[int], by_rows: Measured) -> Target:
    few, many = rows[0], rows[-1]
    ours = [large / small for small, large in zip(by_rows[f"lookup, {few}"], by_rows[f"lookup, {many}"], strict=True)]
    theirs = [
        large / small
        for small, large in zip(by_rows[f"index_select, {few}"], by_rows[f"index_select, {many}"], strict=True)
    ]
    gather = statistics.median(by_rows[f"gather, {many}"]) / statistics.median(by_rows[f"gather, {few}"])
    grown = f"a lookup takes {statistics.median(ours):.2f} times as long, the gather in it {gather:.2f}"
    grown += f", index_select {statistics.median(theirs):.2f}"
    return Target(
        name=f"p50 from {few:,} to {many:,} rows: grows, against the growth of index_select",
        measured=Spread.of_ratios(ours, theirs),
        target=1.1,
        sense="at most",
        note=grown,
    )


def _table(curves: Sequence[Curve]) -> Table:
    rows: list[list[str | float | int]] = []
    for curve in curves:
        (first, first_s), *_, (last, last_s) = curve.medians
        rows.append([curve.name, f"{first:,.0f}", f"{last:,.0f}", first_s * 1e3, last_s * 1e3, curve.exponent])
    return Table(
        title="growth: ms, and the exponent",
        columns=["curve", "from", "to", "ms at first", "ms at last", "exponent"],
        rows=rows,
        note="exponent 0: doesn't grow; 1: in proportion; in process by the thread's own time, else by the clock",
    )


def _points(curve: Curve) -> Table:
    return Table(
        title=curve.name,
        columns=[curve.unit, "ms", "first quartile", "third"],
        rows=[
            [f"{size:,}", *(seconds * 1e3 for seconds in (spread.median, spread.low, spread.high))]
            for size, spread in ((size, Spread.of(seconds)) for size, seconds in curve.points.items())
        ],
    )


def _plot(name: str, x: str, curves: Sequence[Curve]) -> Plot:
    chosen = [curve for curve in curves if (curve.unit == "rows") == (name == "rows")]
    return Plot(
        name=f"growth-{name}",
        title="p50 of lookups, and of starts and snapshots",
        x=x,
        y="seconds",
        curves={f"{curve.name}: exponent {curve.exponent:.2f}": curve.medians for curve in chosen},
    )


if __name__ == "__main__":
    alone(measure, __doc__)

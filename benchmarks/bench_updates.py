"""Gradients and overwrites: what they take in the local engine, beside its gather and PyTorch, and through a server.

    python benchmarks/bench_updates.py [--quick]

In process, with one thread: `update` is all of it, from arrays to moved rows, as a tick does it for a caller; `apply`
the engine's share; `hold, apply` the road of a training job, which gathers first; `kernel alone` FBGEMM's way back, the
floor; `kernel with forward` the same by autograd. PyTorch has `nn.Embedding(sparse=True)` and its own optimizer of that
kind, Adagrad also beside `rowwise_adagrad`. All are given the same ids and gradients, in turns.

Through the service each mode of the log has a server of its own; rows a second, by callers who wait for their answers.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from bench_alone import alone
from bench_stages import clocked
from bench_tables import SEED, Direct, batches_of, config_of, engine_of, use_one_thread
from clocks import THREAD, Turns, interleaved
from outcome import Outcome, Spread, Table, Target
from serving import served

from embershard import AsyncClient
from embershard.collection import Collection
from embershard.engine import base
from embershard.engine.kernels import pooled, step_by
from embershard.engine.shard import Shard
from embershard.sums import Sums
from embershard.types import FeatureBatch, FeatureUpdate

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from embershard.engine.local import LocalEngine

IDS: Final = (26, 512, 13_312)
KINDS: Final = ("rowwise_adagrad", "adagrad", "sgd")
ROWS, DIM = 1_000_000, 64
LARGE: Final = IDS[-1]
MODES: Final = ("fsync", "os", "none")
CALLERS: Final = (1, 4)
SERVED_IDS: Final = (512, 13_312)
STAGES: Final = ("checks", "kernel", "books", "the rest")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Item:
    """What one call is given."""

    ids_N: NDArray[np.int64]
    """Which rows."""
    rows_N: Tensor
    """The same, as a tensor."""
    numbers_ND: NDArray[np.float32]
    """Gradients, or new values."""
    gradients_ND: Tensor
    """The same, as a tensor."""

    @property
    def gradients(self) -> FeatureUpdate:
        """What a caller sends of gradients."""
        return FeatureUpdate(batch=FeatureBatch(feature="t0", ids=self.ids_N), gradients=self.numbers_ND)

    @property
    def values(self) -> FeatureUpdate:
        """And of new values."""
        return FeatureUpdate(batch=FeatureBatch(feature="t0", ids=self.ids_N), values=self.numbers_ND)


def measure(*, quick: bool) -> Outcome:
    """In process by kind and size; by stage; through the service."""
    use_one_thread()
    rounds, kinds = (2, KINDS[:1]) if quick else (11, KINDS)
    seconds, stages = {}, {}
    for kind in kinds:
        engine = engine_of(config_of(ROWS, DIM, optimizer=kind), seeded=True)
        for ids in (LARGE,) if quick else IDS:
            seconds[kind, ids] = _in_process(engine, kind, ids, rounds)
            stages[kind, ids] = _by_stage(engine, ids, rounds)
    rates = _through_service(quick=quick)
    return Outcome(
        section="updates",
        configuration={"rows": ROWS, "dim": DIM, "rounds": rounds, "threads": 1, "seed": SEED, "log modes": MODES},
        tables=[_table(seconds), _table_of_stages(stages), _table_of_rates(rates)],
        targets=[*_targets(seconds)],
        raw={
            "seconds a call": {f"{kind}, {ids} ids": of_all for (kind, ids), of_all in seconds.items()},
            "seconds a stage": {f"{kind}, {ids} ids": of_all for (kind, ids), of_all in stages.items()},
            "rows/s through the service": rates,
        },
    )


def _items(ids: int) -> list[Item]:
    random = np.random.default_rng(SEED)
    # Gradients come straight from whoever made them, so that they may be in a cache; rows may not.
    numbers = [random.normal(size=(ids, DIM)).astype(np.float32) for _ in range(4)]
    return [
        Item(ids_N=batch, rows_N=torch.from_numpy(batch), numbers_ND=given, gradients_ND=torch.from_numpy(given))
        for batch, given in zip(batches_of(ids, ROWS), itertools.cycle(numbers))
    ]


def _in_process(engine: LocalEngine, kind: str, ids: int, rounds: int) -> dict[str, list[float]]:
    """{contestant: seconds a call, one a round}."""
    turns = Turns(_items(ids), THREAD, burst=max(1, 200 // ids))
    of_all = {**_ours(engine), **_kernel(engine, kind), "PyTorch": _pytorch(kind)}

    def timed(work: Callable[[Item], object]) -> Callable[[], float]:
        return lambda: turns.seconds(work, least_s=0.04)

    return interleaved({name: timed(work) for name, work in of_all.items()}, rounds)


def _ours(engine: LocalEngine) -> dict[str, Callable[[Item], object]]:
    direct, matrices = Direct(engine), frozenset({"t0"})

    def held(item: Item) -> None:
        engine.hold({"t0": item.rows_N}, {}).apply({"t0": item.gradients_ND})

    return {
        "gather": lambda item: engine.gather({"t0": item.rows_N}, matrices),
        "update": lambda item: direct.update(item.gradients),
        "overwrite": lambda item: direct.update(item.values),
        "apply": lambda item: engine.apply({"t0": item.rows_N}, {"t0": item.gradients_ND}, matrices),
        "hold, apply": held,
    }


def _kernel(engine: LocalEngine, kind: str) -> dict[str, Callable[[Item], object]]:
    kernel, one_each = engine.shards["group0"].kernel, Sums(offsets=None, coefficients_M=None)
    return {
        "kernel alone": lambda item: step_by(kernel, kind, item.rows_N, item.gradients_ND),
        "kernel with forward": lambda item: pooled(kernel, item.rows_N, one_each).backward(item.gradients_ND),
    }


def _pytorch(kind: str) -> Callable[[Item], object]:
    torch.sparse.check_sparse_tensor_invariants.disable()  # or it warns that it doesn't
    table = torch.nn.Embedding(ROWS, DIM, sparse=True)
    make = torch.optim.SGD if kind == "sgd" else torch.optim.Adagrad
    optimizer = make(table.parameters(), lr=0.05)

    def step(item: Item) -> None:
        table(item.rows_N).backward(item.gradients_ND)
        optimizer.step()
        optimizer.zero_grad()

    return step


def _by_stage(engine: LocalEngine, ids: int, rounds: int) -> dict[str, list[float]]:
    """{stage: seconds an update, one a round}, with a clock at the seams."""
    direct, items = Direct(engine), itertools.cycle(_items(ids))
    measured: dict[str, list[float]] = {stage: [] for stage in STAGES}
    seams = {"change": (Collection, "change"), "step": (base, "step_by"), "move": (Shard, "move")}
    with clocked(seams, THREAD) as spent:
        for _ in range(rounds * max(1, 2_000 // ids)):
            spent.update(dict.fromkeys(spent, 0.0))
            start = THREAD()
            direct.update(next(items).gradients)
            whole = THREAD() - start
            measured["checks"].append(spent["change"])
            measured["kernel"].append(spent["step"])
            measured["books"].append(spent["move"] - spent["step"])
            measured["the rest"].append(whole - spent["change"] - spent["move"])
    return measured


def _through_service(*, quick: bool) -> dict[str, list[float]]:
    """{what, ids, callers, mode: rows a second, one a round}."""
    modes, sizes = (MODES[-1:], SERVED_IDS[:1]) if quick else (MODES, SERVED_IDS)
    rounds, seconds = (1, 0.2) if quick else (5, 1.0)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        targets = {mode: stack.enter_context(served(_served(mode), folder / mode)).target for mode in modes}
        contestants = {
            f"{what}, {ids} ids, {callers} caller(s), {mode}": _asking(targets[mode], what, ids, callers, seconds)
            for what in ("gradients", "values")
            for ids in sizes
            for callers in CALLERS
            for mode in modes
        }
        return interleaved(contestants, rounds)


def _served(mode: str) -> str:
    head = f'[collection]\nname = "updates"\n[durability]\nlog = "{mode}"\nreplay_s = 3600\n'
    return f'{head}[[tables]]\nname = "t0"\nrows = {ROWS}\ndim = {DIM}\n'


def _asking(target: str, what: str, ids: int, callers: int, seconds: float) -> Callable[[], float]:
    return lambda: asyncio.run(_rows_per_s(target, what, ids, callers, seconds))


async def _rows_per_s(target: str, what: str, ids: int, callers: int, seconds: float) -> float:
    random = np.random.default_rng(SEED)
    batches = random.integers(0, ROWS, (16, ids))
    numbers = random.normal(size=(ids, DIM)).astype(np.float32)
    done = 0
    async with AsyncClient(target) as client:

        async def caller(first: int) -> None:
            nonlocal done
            for number in itertools.count(first):
                if time.perf_counter() >= end:
                    return
                batch = {"t0": batches[number % 16]}
                if what == "gradients":
                    await client.update(batch, gradients={"t0": numbers})
                else:
                    await client.assign(batch, values={"t0": numbers})
                done += ids

        await client.lookup({"t0": batches[0]})
        start = time.perf_counter()
        end = start + seconds
        await asyncio.gather(*(caller(first) for first in range(callers)))
        return done / (time.perf_counter() - start)


def _targets(seconds: Mapping[tuple[str, int], Mapping[str, list[float]]]) -> Iterator[Target]:
    for kind, measured in ((kind, measured) for (kind, ids), measured in seconds.items() if ids == LARGE):
        floor = Spread.of_ratios(measured["kernel alone"], measured["gather"]).median
        yield Target(
            name=f"gradient update, local engine, {LARGE:,} ids: times the gather's time, {kind}",
            measured=Spread.of_ratios(measured["update"], measured["gather"]),
            target=3,
            sense="at most",
            note=f"FBGEMM's way back alone takes {floor:.2f} times the gather",
        )
        if kind != "sgd":
            yield Target(
                name=f"gradient update, local engine, {LARGE:,} ids: against PyTorch sparse Adagrad, {kind}",
                measured=Spread.of_ratios(measured["PyTorch"], measured["update"]),
                target=5,
                sense="at least",
                note="" if kind == "adagrad" else "PyTorch has no Adagrad by rows",
            )


def _table(seconds: Mapping[tuple[str, int], Mapping[str, list[float]]]) -> Table:
    names = list(next(iter(seconds.values())))
    return Table(
        title=f"updates of {ROWS:,} rows × {DIM} in process: µs a call, of the thread's own time",
        columns=["optimizer, ids", *names, "update, million rows/s", "update / gather", "PyTorch / update"],
        rows=[
            [
                f"{kind}, {ids:,}",
                *(Spread.of(measured[name]).median * 1e6 for name in names),
                ids / Spread.of(measured["update"]).median / 1e6,
                Spread.of_ratios(measured["update"], measured["gather"]).median,
                Spread.of_ratios(measured["PyTorch"], measured["update"]).median,
            ]
            for (kind, ids), measured in seconds.items()
        ],
    )


def _table_of_stages(stages: Mapping[tuple[str, int], Mapping[str, list[float]]]) -> Table:
    return Table(
        title="where the time of an update goes: µs of the thread's own time",
        columns=["optimizer, ids", *STAGES],
        rows=[
            [f"{kind}, {ids:,}", *(Spread.of(measured[stage]).median * 1e6 for stage in STAGES)]
            for (kind, ids), measured in stages.items()
        ],
        note="books: counts of each row, frozen rows, watchers; the rest: what is done a call, and to find rows",
    )


def _table_of_rates(rates: Mapping[str, list[float]]) -> Table:
    return Table(
        title=f"updates of {ROWS:,} rows × {DIM} through the service: rows/s by the wall's clock",
        columns=["what, ids, callers, log", "rows/s", "first quartile", "third"],
        rows=[
            [name, *(getattr(Spread.of(measured), which) for which in ("median", "low", "high"))]
            for name, measured in rates.items()
        ],
    )


if __name__ == "__main__":
    alone(measure, __doc__)

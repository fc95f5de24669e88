"""Gathering in the local engine, against what else reads random rows, and against the memory itself.

    python benchmarks/bench_engine.py [--quick]

All of them answer float32 rows of the same live table for the same random ids, in turns and with one thread each, as a
server on two cores has it; ids come again only after a million others, so that rows are read from memory, not from a
cache. `gather` is `Engine.gather`; `look up` also what a request takes before and after: checks, row numbers, answers.

The memory's bandwidth for random rows is what `numpy.take` of rows of 256 bytes gets out of a table of gigabytes, with
as many threads as are best: bytes of rows read a second; each is written once, too, in order.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from bench_alone import alone
from bench_tables import DISTINCT, Direct, batches_of, config_of, engine_of, turns_of, use_one_thread
from clocks import THREAD, Turns, interleaved
from fbgemm_gpu.split_embedding_configs import SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_inference import IntNBitTableBatchedEmbeddingBagsCodegen
from outcome import Outcome, Spread, Table, Target

from embershard.types import FeatureBatch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embershard.engine.local import LocalEngine

    Ids = NDArray[np.int64]

IDS: Final = (26, 512, 13_312, 100_000)
TARGET_IDS: Final = IDS[:3]
TARGET: Final = (1_000_000, 64, "float32")
PEERS: Final = ("index_select", "index_select, out", "numpy.take", "TBE, pooled", "TBE, no bags", "TBE inference")
OURS: Final = ("gather", "at hand", "checks", "look up")
DTYPES: Final = {"float32": SparseType.FP32, "float16": SparseType.FP16}


def measure(*, quick: bool) -> Outcome:
    """Every size of table, and every number of ids."""
    use_one_thread()
    rounds = 2 if quick else 9
    sizes = [TARGET] if quick else [(r, d, t) for r in (10**6, 10**7) for d in (16, 64, 128) for t in DTYPES]
    seconds = {size: _gathers(*size, TARGET_IDS if quick else IDS, rounds) for size in sizes}
    bandwidth = _bandwidth(10**6 if quick else 10**7, rounds)
    fitting = {ids: seconds[TARGET][ids] for ids in TARGET_IDS}
    return Outcome(
        section="engine",
        configuration={"sizes": sizes, "ids": IDS, "rounds": rounds, "threads": 1, "ids before any again": DISTINCT},
        tables=[*(_table(size, of_ids) for size, of_ids in seconds.items()), _against_memory(seconds, bandwidth)],
        targets=[_target(ids, measured) for ids, measured in fitting.items()],
        raw={
            "seconds": {" × ".join(map(str, size)): of_ids for size, of_ids in seconds.items()},
            "random 256 B rows, bytes/s by threads": bandwidth,
        },
    )


def _gathers(rows: int, dim: int, dtype: str, sizes: tuple[int, ...], rounds: int) -> dict[int, dict[str, list[float]]]:
    """{ids: {contestant: seconds a call, one a round}} of one table."""
    engine = engine_of(config_of(rows, dim, dtype=dtype))
    measured = {}
    for ids in sizes:
        batches = batches_of(ids, rows)
        turns = turns_of(batches)
        of_all = {**_ours(engine, batches), **_peers(engine, ids, dtype)}

        def timed(work: Callable[[Ids], object], turns: Turns[Ids] = turns) -> Callable[[], float]:
            return lambda: turns.seconds(work)

        with torch.no_grad():
            measured[ids] = interleaved({name: timed(work) for name, work in of_all.items()}, rounds)
    return measured


def _ours(engine: LocalEngine, batches: Sequence[Ids]) -> dict[str, Callable[[Ids], object]]:
    direct, names = Direct(engine), frozenset({"t0"})
    parts = {id(ids_N): direct.read([FeatureBatch(feature="t0", ids=ids_N)]).parts[0] for ids_N in batches}
    at_hand = engine.at_hand(parts[id(batches[0])]) is not None
    return {
        "gather": lambda ids_N: engine.gather({"t0": torch.from_numpy(ids_N)}, names),
        # Rows of half precision are never at hand.
        **({"at hand": lambda ids_N: engine.at_hand(parts[id(ids_N)])} if at_hand else {}),
        "checks": lambda ids_N: direct.read([FeatureBatch(feature="t0", ids=ids_N)]),
        "look up": lambda ids_N: direct.lookup({"t0": ids_N}),
    }


def _peers(engine: LocalEngine, ids: int, dtype: str) -> dict[str, Callable[[Ids], object]]:
    """By the same tensor of rows; the kernels of TBE are given offsets that were made before."""
    shard = engine.shards["group0"]
    weight, pooled = shard.weight, shard.kernel
    unpooled = copy.copy(pooled)
    unpooled.pooling_mode = PoolingMode.NONE
    inference = IntNBitTableBatchedEmbeddingBagsCodegen(
        [("t0", len(weight), weight.shape[1], DTYPES[dtype], EmbeddingLocation.HOST)],
        pooling_mode=PoolingMode.NONE,
        weight_lists=[(weight.view(torch.uint8), None)],
        output_dtype=SparseType.FP32,
        device="cpu",
    )
    array = weight.numpy()
    each, whole = torch.arange(ids + 1), torch.tensor([0, ids])
    whole_int = whole.int()
    out = torch.empty(ids, weight.shape[1], dtype=weight.dtype)

    def taken(ids_N: Ids) -> object:
        rows = array.take(ids_N, axis=0)
        return rows if dtype == "float32" else rows.astype(np.float32)

    return {
        "index_select": lambda ids_N: weight.index_select(0, torch.from_numpy(ids_N)).float(),
        "index_select, out": lambda ids_N: torch.index_select(weight, 0, torch.from_numpy(ids_N), out=out).float(),
        "numpy.take": taken,
        "TBE, pooled": lambda ids_N: pooled(torch.from_numpy(ids_N), each),
        "TBE, no bags": lambda ids_N: unpooled(torch.from_numpy(ids_N), whole),
        "TBE inference": lambda ids_N: inference(torch.from_numpy(ids_N).int(), whole_int),
    }


def _bandwidth(rows: int, rounds: int) -> dict[int, list[float]]:
    """{threads: bytes of random rows of 256 bytes a second, one a round}."""
    table = np.zeros((rows, 64), np.float32)
    table.fill(1)  # untouched zeros would all be one page
    batches = np.stack(batches_of(13_312, rows))

    def read(of_thread: Ids) -> float:
        """Bytes a second of a thread's own time, so that others who use the machine don't count."""
        out = np.ones((13_312, 64), np.float32)  # all that a thread writes to, so that no page is new
        start = THREAD()
        for batch in of_thread:
            table.take(batch, axis=0, out=out, mode="clip")
        return of_thread.size * 256 / (THREAD() - start)

    def bytes_per_s(threads: int) -> float:
        with ThreadPoolExecutor(threads) as pool:
            return sum(pool.map(read, np.array_split(batches, threads)))

    threads = range(1, (os.cpu_count() or 1) + 1)
    measured = interleaved({str(count): lambda count=count: bytes_per_s(count) for count in threads}, rounds)  # type: ignore[misc]
    return {int(count): rates for count, rates in measured.items()}


def _best(measured: dict[str, list[float]]) -> str:
    return min(PEERS, key=lambda name: Spread.of(measured[name]).median)


def _target(ids: int, measured: dict[str, list[float]]) -> Target:
    best = _best(measured)
    ratio = Spread.of_ratios(measured[best], measured["at hand"])
    joint = Spread.of_ratios(measured[best], measured["gather"])
    over_us = (Spread.of(measured["at hand"]).median - Spread.of(measured[best]).median) * 1e6
    return Target(
        name=f"gather in the engine against the best of index_select, numpy.take, TBE: {ids:,} ids",
        measured=ratio,
        target=0.9,
        sense="at least",
        note=f"as the service reads plain rows (`at_hand`); the best is {best}, ours takes {over_us:+.1f} µs more; the "
        f"joint `gather` of tensors by matrix has {joint}",
    )


def _table(size: tuple[int, int, str], of_ids: dict[int, dict[str, list[float]]]) -> Table:
    rows, dim, dtype = size
    return Table(
        title=f"{rows:,} rows × {dim}, {dtype}: µs a call, of the thread's own time",
        columns=["ids", *OURS, *PEERS, "best / gather"],
        rows=[
            [
                f"{ids:,}",
                *(Spread.of(measured[name]).median * 1e6 if name in measured else "" for name in (*OURS, *PEERS)),
                Spread.of_ratios(measured[_best(measured)], measured["gather"]).median,
            ]
            for ids, measured in of_ids.items()
        ],
        note="float32 rows are answered, also of float16 tables",
    )


def _against_memory(
    seconds: dict[tuple[int, int, str], dict[int, dict[str, list[float]]]], bandwidth: dict[int, list[float]]
) -> Table:
    by_threads = {threads: Spread.of(rates).median for threads, rates in bandwidth.items()}
    best = max(by_threads.values())
    rows: list[list[str | float | int]] = []
    for (count, dim, dtype), of_ids in seconds.items():
        if dim * np.dtype(dtype).itemsize == 256:
            for ids, measured in of_ids.items():
                rate = ids * 256 / Spread.of(measured["gather"]).median
                rows.append([f"{count:,} × {dim}, {dtype}", ids, rate / 1e9, rate / by_threads[1], rate / best])
    threads = ", ".join(f"{rate / 1e9:.2f} GB/s with {count} thread(s)" for count, rate in by_threads.items())
    return Table(
        title="gather against the memory's bandwidth for random rows of 256 bytes",
        columns=["table", "ids", "GB/s", "of one thread's", "of the best"],
        rows=rows,
        note=f"the memory: {threads}",
    )


if __name__ == "__main__":
    alone(measure, __doc__)

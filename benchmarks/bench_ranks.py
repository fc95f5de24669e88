"""Several ranks: gathers and ticks of the torchrec engine, against an all-to-all made by hand in the same processes.

    python benchmarks/bench_ranks.py [--quick]

torchrun starts the ranks on this host, each with one thread and all with gloo; 26 tables of dim 64 are cut row-wise over
them, and every rank asks for as many ids of each table, all ranks at once. The path made by hand is what one would write
for this and nothing else: numpy sorts ids by owner, counts, ids and rows travel by `all_to_all_single`, `index_select`
reads. Both take turns. A world with more ranks than cores is marked: then ranks wait for each other's turn of a core.

Duplicates: the path made by hand sends every id, or each once, which `numpy.unique` finds out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from bench_alone import alone
from outcome import Outcome, Spread, Table, Target

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    Ids = NDArray[np.int64]
    Measured = dict[str, list[float]]

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
_RANK: Final = "--rank"


def measure(*, quick: bool) -> Outcome:
    """One group of ranks after the other."""
    cores = os.cpu_count() or 1
    worlds = (2,) if quick else (1, 2, 4)
    rounds = 5 if quick else 21
    of_worlds = {world: _run(world, rounds) for world in worlds}
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


def _run(world: int, rounds: int) -> dict[str, Any]:
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
    command = [sys.executable, *launcher, __file__, _RANK, str(rounds)]
    shown = subprocess.run(
        command, stdout=subprocess.PIPE, check=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    measured: dict[str, Any] = json.loads(shown.stdout.strip().splitlines()[-1])
    return measured


def rank_main(rounds: int) -> None:
    """One rank: measures, and rank 0 prints a line of JSON."""
    from bench_tables import config_of, use_one_thread

    from embershard.engine.making import make_engine
    from embershard.engine.world import TorchWorld
    from embershard.quiet import quieten

    quieten()
    use_one_thread()
    world = TorchWorld(timeout_s=120)
    engine = make_engine(config_of(ROWS, DIM, tables=TABLES), world, seeded=False)
    by_hand = ByHand(world.rank, world.size)
    random = np.random.default_rng(SEED + world.rank)
    measured: dict[str, Any] = {"gather": {}, "tick": {}, "duplicates": {}}
    for ids in IDS:
        batches = [random.integers(0, ROWS, (TABLES, ids)) for _ in range(64)]
        measured["gather"][ids] = _gather_against(engine, by_hand, batches, rounds)
        measured["tick"][ids] = _tick_by_stage(engine, batches, CALLS[ids] * max(1, rounds // 4))
    for name, batches in _skewed(random):
        measured["duplicates"][name] = _in_turns(
            {
                "each id": lambda batch: by_hand(batch, once=False),
                "ids once": lambda batch: by_hand(batch, once=True),
                "engine": _gather(engine),
            },
            batches,
            CALLS[512],
            rounds,
        ) | {"duplicates": [_duplicates_in(batch) for batch in batches]}
    if world.rank == 0:
        print(json.dumps(measured), flush=True)
    world.leave()


class ByHand:
    """26 tables under one another, each cut row-wise."""

    def __init__(self, rank: int, size: int) -> None:
        import torch

        self._rank, self._size, self._block = rank, size, -(-ROWS // size)
        self._weight = torch.zeros(TABLES * self._block, DIM).fill_(1.0)

    def __call__(self, batch: Ids, *, once: bool) -> Tensor:
        """The rows [tables × ids, D] of ids [tables, ids]; joint."""
        import torch
        import torch.distributed as dist

        owner = batch // self._block
        local = batch - owner * self._block + np.arange(TABLES)[:, None] * self._block
        owner_n, local_n = owner.reshape(-1), local.reshape(-1)
        if once:
            whole, back = np.unique(owner_n * (TABLES * self._block) + local_n, return_inverse=True)
            owner_n, local_n = np.divmod(whole, TABLES * self._block)
        else:
            order = np.argsort(owner_n, kind="stable")
            back = np.empty_like(order)
            back[order] = np.arange(len(order))
            local_n = local_n[order]
        sent = torch.from_numpy(np.bincount(owner_n, minlength=self._size))
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        sends, receives = sent.tolist(), received.tolist()
        asked = torch.empty(sum(receives), dtype=torch.int64)
        dist.all_to_all_single(asked, torch.from_numpy(local_n), receives, sends)
        rows = torch.empty(len(local_n), DIM)
        dist.all_to_all_single(rows, self._weight.index_select(0, asked), sends, receives)
        return rows.index_select(0, torch.from_numpy(back))


def _gather(engine: Any) -> Callable[[Ids], object]:
    import torch

    names = frozenset(engine.matrices)

    def gather(batch: Ids) -> object:
        return engine.gather({f"t{at}": torch.from_numpy(of_table) for at, of_table in enumerate(batch)}, names)

    return gather


def _gather_against(engine: Any, by_hand: ByHand, batches: Sequence[Ids], rounds: int) -> Measured:
    contestants = {"engine": _gather(engine), "by hand": lambda batch: by_hand(batch, once=False)}
    return _in_turns(contestants, batches, CALLS[batches[0].shape[1]], rounds)


def _in_turns(
    contestants: Mapping[str, Callable[[Ids], object]], batches: Sequence[Ids], calls: int, rounds: int
) -> Measured:
    """{contestant: seconds a call, one a round}; joint, as all ranks begin together."""
    import itertools
    import time

    import torch.distributed as dist
    from outcome import interleaved

    following = itertools.cycle(batches)

    def timed(work: Callable[[Ids], object]) -> Callable[[], float]:
        def seconds() -> float:
            dist.barrier()
            start = time.perf_counter()
            for batch in itertools.islice(following, calls):
                work(batch)
            return (time.perf_counter() - start) / calls

        return seconds

    return interleaved({name: timed(work) for name, work in contestants.items()}, rounds)


def _tick_by_stage(engine: Any, batches: Sequence[Ids], calls: int) -> Measured:
    """{stage: seconds of each tick}: a lookup of all ranks as a service does it, with a clock at the seams."""
    import itertools
    import time

    import torch.distributed as dist
    from bench_stages import clocked

    from embershard.collection import Collection, Read
    from embershard.engine import torchrec
    from embershard.engine.session import Session
    from embershard.engine.work import Agreement
    from embershard.types import FeatureBatch

    session = Session(engine)
    seams = {
        "checks": (Collection, "read"),
        "agree": (Agreement, "__call__"),
        "ids travel": (torchrec, "_ids_to_owners"),
        "rows are read": (torchrec, "rows_of"),
        "exchanges": (torchrec, "_exchange"),
        "counts": (torchrec, "_exchange_counts"),
        "compose": (Read, "answer"),
    }
    measured: Measured = {stage: [] for stage in STAGES}
    dist.barrier()
    with clocked(seams) as spent:
        for batch in itertools.islice(itertools.cycle(batches), calls):
            spent.update(dict.fromkeys(seams, 0.0))
            asked = [FeatureBatch(feature=f"t{at}", ids=of_table) for at, of_table in enumerate(batch)]
            start = time.perf_counter()
            session.lookup(asked)
            whole = time.perf_counter() - start
            spent["rows travel"] = spent.pop("exchanges") + spent.pop("counts") - spent["ids travel"]
            spent["the rest"] = whole - sum(spent.values())
            for stage in STAGES:
                measured[stage].append(spent[stage])
    return measured


def _skewed(random: np.random.Generator) -> Iterator[tuple[str, list[Ids]]]:
    """Ids that come several times in a batch: by Zipf's law, and so many as there are to be."""
    weights = 1 / np.arange(1, ROWS + 1) ** ZIPF
    shuffled = random.permutation(ROWS)
    yield (
        f"Zipf {ZIPF}",
        [shuffled[random.choice(ROWS, (TABLES, IDS[-1]), p=weights / weights.sum())] for _ in range(16)],
    )
    for share in SHARES:
        distinct = max(1, round(IDS[-1] * (1 - share)))
        batches = []
        for _ in range(16):
            chosen = np.stack([random.choice(ROWS, distinct, replace=False) for _ in range(TABLES)])
            again = random.integers(0, distinct, (TABLES, IDS[-1] - distinct))
            batches.append(
                random.permuted(np.concatenate([chosen, np.take_along_axis(chosen, again, axis=1)], axis=1), axis=1)
            )
        yield f"{share:.0%} come again", batches


def _duplicates_in(batch: Ids) -> float:
    return 1 - sum(len(np.unique(of_table)) for of_table in batch) / batch.size


def _gathers(of_worlds: Mapping[int, Any], marks: Mapping[int, str]) -> Table:
    rows = []
    for world, measured in of_worlds.items():
        for ids, of_size in measured["gather"].items():
            ours, by_hand = Spread.of(of_size["engine"]), Spread.of(of_size["by hand"])
            ratio = Spread.of_ratios(of_size["engine"], of_size["by hand"])
            rows.append([f"{marks[world]}, {ids} ids", *(s * 1e3 for s in (ours.median, by_hand.median)), ratio.median])
    return Table(
        title=f"gathers of {TABLES} tables × {DIM}: ms a call",
        columns=["ranks, ids of a table a rank", "engine", "by hand", "engine / by hand"],
        rows=rows,
    )


def _stages(of_worlds: Mapping[int, Any], marks: Mapping[int, str]) -> Table:
    rows = []
    for world, measured in of_worlds.items():
        for ids, of_size in measured["tick"].items():
            rows.append([f"{marks[world]}, {ids} ids", *(Spread.of(of_size[stage]).median * 1e3 for stage in STAGES)])
    return Table(
        title="a tick's lookup by stage: ms",
        columns=["ranks, ids of a table a rank", *STAGES],
        rows=rows,
        note="to travel is also to wait for the other ranks",
    )


def _duplicates(of_worlds: Mapping[int, Any], marks: Mapping[int, str]) -> Table:
    rows = []
    for world, measured in of_worlds.items():
        for name, of_kind in measured["duplicates"].items():
            each, once, engine = (Spread.of(of_kind[way]).median * 1e3 for way in ("each id", "ids once", "engine"))
            gain = Spread.of_ratios(of_kind["each id"], of_kind["ids once"]).median
            share = float(np.mean(of_kind["duplicates"]))
            rows.append([f"{marks[world]}, {name}", share, each, once, engine, gain])
    return Table(
        title=f"duplicates among {IDS[-1]} ids of each table: ms a call",
        columns=["ranks, ids", "come again", "by hand, every id", "by hand, ids once", "engine", "gain of once"],
        rows=rows,
    )


def _targets(of_worlds: Mapping[int, Any]) -> Iterator[Target]:
    for ids, most in ((512, 1.3), (1, 1.6)):
        measured = of_worlds[2]["gather"][str(ids)]
        yield Target(
            name=f"two ranks against an all-to-all made by hand: {ids} ids a table",
            measured=Spread.of_ratios(measured["engine"], measured["by hand"]),
            target=most,
            sense="at most",
        )


if __name__ == "__main__":
    if _RANK in sys.argv:
        rank_main(int(sys.argv[-1]))
    else:
        alone(measure, __doc__)

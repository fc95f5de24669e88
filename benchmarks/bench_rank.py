"""One rank of `bench_ranks`: takes its part in every measurement, and rank 0 prints them all as a line of JSON."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from bench_ranks import CALLS, DIM, IDS, ROWS, SEED, SHARES, STAGES, TABLES, ZIPF
from bench_stages import clocked
from bench_tables import config_of, use_one_thread
from clocks import WALL, Turns, interleaved
from torch import Tensor

from embershard.collection import Collection, Read
from embershard.engine import torchrec
from embershard.engine.making import make_engine
from embershard.engine.session import Session
from embershard.engine.work import Agreement
from embershard.engine.world import TorchWorld
from embershard.quiet import quieten
from embershard.types import FeatureBatch
from embershard.zipf import scattered, zipf

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ids = NDArray[np.int64]
    Measured = dict[str, list[float]]


def main(rounds: int) -> None:
    """One rank: measures, and rank 0 prints a line of JSON."""
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
        self._rank, self._size, self._block = rank, size, -(-ROWS // size)
        self._weight = torch.zeros(TABLES * self._block, DIM).fill_(1.0)

    def __call__(self, batch: Ids, *, once: bool) -> Tensor:
        """The rows [tables × ids, D] of ids [tables, ids]; joint."""
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

    turns = Turns(batches, WALL)

    def timed(work: Callable[[Ids], object]) -> Callable[[], float]:
        def seconds() -> float:
            dist.barrier()
            return turns.seconds_of(work, calls)

        return seconds

    return interleaved({name: timed(work) for name, work in contestants.items()}, rounds)


def _tick_by_stage(engine: Any, batches: Sequence[Ids], calls: int) -> Measured:
    """{stage: seconds of each tick}: a lookup of all ranks as a service does it, with a clock at the seams."""

    session = Session(engine)
    seams = {
        "checks": (Collection, "read"),
        "agree": (Agreement, "__call__"),
        "ids travel": (torchrec, "_ids_to_owners"),
        "rows are read": (torchrec, "taken"),
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
            start = WALL()
            session.lookup(asked)
            whole = WALL() - start
            spent["rows travel"] = spent.pop("exchanges") + spent.pop("counts") - spent["ids travel"]
            spent["the rest"] = whole - sum(spent.values())
            for stage in STAGES:
                measured[stage].append(spent[stage])
    return measured


def _skewed(random: np.random.Generator) -> Iterator[tuple[str, list[Ids]]]:
    """Ids that come several times in a batch: by Zipf's law, and so many as there are to be."""
    ranks_N = zipf(random, ROWS, ZIPF, 16 * TABLES * IDS[-1]) - 1
    yield f"Zipf {ZIPF}", list(scattered(ranks_N, ROWS, random).reshape(16, TABLES, IDS[-1]))
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


if __name__ == "__main__":
    main(int(sys.argv[1]))

"""What is measured in process: engines of a given size, and ids whose rows aren't in a cache any more."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import numpy as np
import torch

from embershard.config import parse_config
from embershard.engine.local import LocalEngine
from embershard.engine.world import SoloWorld

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embershard.config import Config

_Item = TypeVar("_Item")
DISTINCT: Final = 1_000_000
"""Ids that come before any comes again, by plan: their rows of 64 bytes or more are twice what an L3 cache holds."""
SEED: Final = 7


def use_one_thread() -> None:
    """As a server has it on two cores, where the other one is its front end's; so for all that is compared with it."""
    torch.set_num_threads(1)


def config_of(
    rows: int, dim: int, *, dtype: str = "float32", optimizer: str = "rowwise_adagrad", tables: int = 1
) -> Config:
    """Tables of direct ids, t0, t1 …, each with a feature of its name, and no bounds that a benchmark would meet."""
    return parse_config(
        {
            "collection": {"name": "bench", "seed": SEED},
            "optimizer": {"kind": optimizer, "learning_rate": 0.05},
            "limits": {"ids_per_request": 2**24, "numbers_per_request": 2**32},
            "tables": [{"name": f"t{number}", "rows": rows, "dim": dim, "dtype": dtype} for number in range(tables)],
        }
    )


def engine_of(config: Config, *, seeded: bool = False) -> LocalEngine:
    """Its tables in this process; of zeros, which were written, unless they are to be seeded."""
    return LocalEngine(config, SoloWorld(), seeded=seeded)


def batches_of(ids: int, rows: int) -> list[NDArray[np.int64]]:
    """Batches of random ids, so many that a row that comes again has left the caches."""
    random = np.random.default_rng(SEED)
    return list(random.integers(0, rows, (max(4, DISTINCT // ids), ids)))


class Turns(Generic[_Item]):
    """Calls a function with one batch after the other, from wherever it was left.

    Seconds are those that this thread was given a core: whatever else the machine does meanwhile isn't counted.
    """

    def __init__(self, batches: Sequence[_Item], *, burst: int = 1) -> None:
        self._batches, self._burst = itertools.cycle(batches), burst

    def seconds(self, work: Callable[[_Item], object], *, least_s: float = 0.02) -> float:
        """Seconds a call, of as many as take so long together; the clock is read once a burst."""
        calls, start = 0, time.thread_time()
        while (spent_s := time.thread_time() - start) < least_s or not calls:
            for batch in itertools.islice(self._batches, self._burst):
                work(batch)
            calls += self._burst
        return spent_s / calls


def turns_of(ids: int, rows: int) -> Turns[NDArray[np.int64]]:
    """Of random ids; bursts of small ones, so that reading the clock isn't what is measured."""
    return Turns(batches_of(ids, rows), burst=max(1, 1_000 // ids))

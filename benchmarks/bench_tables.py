"""What is measured in process: engines, what asks them, and ids whose rows aren't in a cache any more."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from clocks import THREAD, Turns

from embershard.collection import Collection
from embershard.config import parse_config
from embershard.engine.local import LocalEngine
from embershard.engine.steps import look_up, update
from embershard.engine.work import work_of_change, work_of_reads
from embershard.engine.world import SoloWorld
from embershard.types import FeatureBatch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embershard.collection import Read
    from embershard.config import Config
    from embershard.engine.steps import Found
    from embershard.engine.work import Work
    from embershard.types import FeatureUpdate

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


def config_in(text: str) -> Config:
    """The one that a server is given as a file."""
    return parse_config(tomllib.loads(text))


def engine_of(config: Config, *, seeded: bool = False) -> LocalEngine:
    """Its tables in this process; of zeros, which were written, unless they are to be seeded."""
    return LocalEngine(config, SoloWorld(), seeded=seeded)


def batches_of(ids: int, rows: int) -> list[NDArray[np.int64]]:
    """Batches of random ids, so many that a row that comes again has left the caches."""
    random = np.random.default_rng(SEED)
    return list(random.integers(0, rows, (max(4, DISTINCT // ids), ids)))


class Direct:
    """An engine that is asked as a tick asks it for one caller, with no gate and no world to agree with."""

    def __init__(self, engine: LocalEngine) -> None:
        self.engine, self._collection = engine, Collection(engine.config)

    def read(self, batches: Sequence[FeatureBatch]) -> Read:
        """A lookup that was checked."""
        return self._collection.read(batches)

    def found(self, read: Read, work: Work) -> Found:
        """Its answer, once it is known what it takes."""
        return look_up(self.engine, [read], [], work)[0]

    def at_hand(self, read: Read) -> list[NDArray[np.float32]]:
        """The same of rows that are asked for as they are, which takes nothing else."""
        found = [self.engine.at_hand(part) for part in read.parts]
        return [vectors_ND for vectors_ND in found if vectors_ND is not None]

    def lookup(self, ids: Mapping[str, NDArray[np.int64]]) -> Found:
        """All of it, from {feature: ids} to vectors."""
        read = self.read([FeatureBatch(feature=name, ids=ids_N) for name, ids_N in ids.items()])
        return self.found(read, work_of_reads([read], []))

    def update(self, given: FeatureUpdate) -> None:
        """All of it, from arrays to moved rows."""
        change = self._collection.change([given])
        if refusal := update(self.engine, change, work_of_change(change), 0):
            raise refusal


def turns_of(batches: Sequence[NDArray[np.int64]]) -> Turns[NDArray[np.int64]]:
    """By this thread's time; bursts of small ones, so that reading the clock isn't what is measured."""
    return Turns(batches, THREAD, burst=max(1, 1_000 // len(batches[0])))

"""Memory beside rows and optimizer state; finding ids of a vocabulary; from start to first answer.

    python benchmarks/bench_memory.py [--quick]

Each kind of table is made and used in a process of its own: what its resident memory has grown by, without rows and
optimizer state, a row; beside what the engine itself accounts for. A vocabulary is filled to the last row first.

Ids are found in a vocabulary in turns with a bare `pruned_hashmap` of FBGEMM, half full, as its own tables have it.
A server is started from nothing to the answer of its first lookup, in turns with an interpreter that only imports.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import psutil
import torch
from bench_alone import alone
from bench_tables import SEED, use_one_thread
from clocks import THREAD, WALL, Turns, interleaved, seconds_each
from outcome import Outcome, Spread, Table, Target
from processes import in_a_process
from serving import served

from embershard import Client
from embershard.config import TableSpec, VocabularyIds, parse_config
from embershard.engine.local import LocalEngine
from embershard.engine.session import Session
from embershard.engine.world import SoloWorld
from embershard.ids import Keys
from embershard.types import FeatureBatch, FeatureUpdate
from embershard.vocabulary import Sightings, Vocabulary

if TYPE_CHECKING:
    from numpy.typing import NDArray

FALLBACK: Final = 1024
KINDS: Final[Mapping[str, Mapping[str, Any]]] = {
    "direct": {"kind": "direct"},
    "hashed": {"kind": "hashed"},
    "vocabulary": {"kind": "vocabulary", "fallback_rows": FALLBACK, "admit_after": 1},
}
MOST_BYTES: Final = {"direct": 1, "hashed": 1, "vocabulary": 16}
"""Targets, a row."""
DIM: Final = 16
FOUND: Final = (26, 512, 13_312)
IMPORTS: Final = "import torch, fbgemm_gpu, torchrec"
_ROW: Final = "--kind"


def measure(*, quick: bool) -> Outcome:
    """Memory, ids, starts."""
    use_one_thread()
    rows, repeats = (100_000, 1) if quick else (4_000_000, 3)
    kinds = ("direct", "vocabulary") if quick else tuple(KINDS)
    owners, rounds, starts = (200_000, 2, 1) if quick else (10_000_000, 11, 5)
    memory = {kind: [in_a_process(__file__, _ROW, kind, rows) for _ in range(repeats)] for kind in kinds}
    found = _finding(owners, rounds)
    started = _starting(starts)
    return Outcome(
        section="memory",
        configuration={
            "rows": rows,
            "dim": DIM,
            "optimizer": "rowwise_adagrad",
            "owners that ids are found among": owners,
            "rounds": rounds,
            "starts": starts,
            "kinds": KINDS,
        },
        tables=[_table_of_memory(memory), _table_of_finding(found, owners), _table_of_starts(started)],
        targets=[*_targets(memory, found, started, owners)],
        raw={"memory": memory, "finding, seconds a call": found, "starts, seconds": started},
    )


def memory_main(kind: str, rows: int) -> None:
    """One kind of table: bytes a row beside rows and optimizer state, as a line of JSON."""
    use_one_thread()
    _used_engine(kind, 20_000)  # whatever comes with the first use
    process = psutil.Process()
    before = process.memory_info().rss
    engine = _used_engine(kind, rows)
    grown = process.memory_info().rss - before
    tensors = engine.tensors()
    learned = sum(tensor.nbytes for name, tensor in tensors.items() if name in ("t.weight", "t.sum"))
    books = sum(tensor.nbytes for tensor in tensors.values()) - learned
    vocabulary = sum(vocabulary.bytes for vocabulary in engine.vocabularies.values())
    found = {
        "resident": grown - learned,
        "books": books,
        "vocabulary": vocabulary,
        "rows and state": learned,
    }
    print(json.dumps({name: size / rows for name, size in found.items()}))


def _used_engine(kind: str, rows: int) -> LocalEngine:
    table = {"name": "t", "rows": rows, "dim": DIM, "ids": KINDS[kind]}
    engine = LocalEngine(parse_config({"collection": {"name": "bench"}, "tables": [table]}), SoloWorld())
    session, size = Session(engine), 2_000  # so small that what an update takes for a while is none of it
    # Every row of a vocabulary gets an owner; of other tables, some rows are moved.
    ids_of_all = np.arange(rows - FALLBACK if kind == "vocabulary" else min(rows, 10 * size))
    scattered = ids_of_all * (0x9E3779B97F4A7C15 - 2**64) if kind != "direct" else ids_of_all
    for ids in np.array_split(scattered, -(-len(scattered) // size)):
        batch = FeatureBatch(feature="t", ids=ids)
        session.update([FeatureUpdate(batch=batch, gradients=np.ones((len(ids), DIM), np.float32))], now_s=0)
    return engine


class BareMap:
    """FBGEMM's map alone."""

    def __init__(self, keys_n: NDArray[np.int64]) -> None:
        self._table = torch.full((2 * len(keys_n), 2), -1, dtype=torch.int64)
        self._whole = torch.tensor([0, len(self._table)])
        slots = torch.arange(len(keys_n))
        torch.ops.fbgemm.pruned_hashmap_insert(
            torch.from_numpy(keys_n), slots, torch.tensor([0, len(keys_n)]), self._table, self._whole
        )

    def find(self, keys_n: NDArray[np.int64]) -> object:
        """The slot of each key, or -1."""
        offsets = torch.tensor([0, len(keys_n)])
        return torch.ops.fbgemm.pruned_hashmap_lookup(torch.from_numpy(keys_n), offsets, self._table, self._whole)


def _finding(owners: int, rounds: int) -> dict[str, dict[str, list[float]]]:
    """{ids: {contestant: seconds a call, one a round}}; ids that own a row, and half of them strangers."""
    ids = VocabularyIds(fallback_rows=FALLBACK, admit_after=1)
    vocabulary = Vocabulary(TableSpec(name="t", rows=FALLBACK + owners, dim=4, ids=ids))
    random = np.random.default_rng(SEED)
    keys_n = random.integers(-(2**63), 2**63, owners)
    for some_n in np.array_split(keys_n, -(-owners // 500_000)):
        vocabulary.step(Sightings.of(Keys(keys_n=some_n, names=None)), 0, admit=True)
    assert len(vocabulary) == len(np.unique(keys_n))
    bare = BareMap(keys_n)
    measured = {}
    for size in FOUND:
        for kind in ("owners", "half are strangers"):
            batches = [random.choice(keys_n, size) for _ in range(max(8, 200_000 // size))]
            if kind != "owners":
                for batch in batches:
                    batch[::2] = random.integers(-(2**63), 2**63, len(batch[::2]))
            measured[f"{size:,} ids, {kind}"] = _found(vocabulary, bare, batches, rounds)
    return measured


def _found(
    vocabulary: Vocabulary, bare: BareMap, batches: list[NDArray[np.int64]], rounds: int
) -> dict[str, list[float]]:
    turns = Turns([Keys(keys_n=batch, names=None) for batch in batches], THREAD, burst=max(1, 1_000 // len(batches[0])))
    return interleaved(
        {
            "vocabulary": lambda: turns.seconds(vocabulary.find),
            "bare map": lambda: turns.seconds(lambda keys: bare.find(keys.keys_n)),
        },
        rounds,
    )


def _starting(rounds: int) -> dict[str, list[float]]:
    """{contestant: seconds, one a round}."""
    config = '[collection]\nname = "start"\n[[tables]]\nname = "t"\nrows = 1000\ndim = 16\n'

    def imported() -> float:
        program = [sys.executable, "-c", IMPORTS]
        return seconds_each(lambda: subprocess.run(program, check=True, stderr=subprocess.DEVNULL), WALL, least_s=0)

    def answered() -> float:
        with tempfile.TemporaryDirectory() as folder:
            start = WALL()
            with served(config, Path(folder)) as server, Client(server.target) as client:
                client.lookup({"t": [1, 2, 3]})
                return WALL() - start

    return interleaved({"server": answered, "imports": imported}, rounds, warm=rounds > 1)


def _targets(
    memory: Mapping[str, list[dict[str, float]]],
    found: Mapping[str, Mapping[str, list[float]]],
    started: Mapping[str, list[float]],
    owners: int,
) -> Iterator[Target]:
    for kind, measured in memory.items():
        resident = Spread.of([one["resident"] for one in measured]).median
        yield Target(
            name=f"memory beside rows and optimizer state, {kind}: bytes a row",
            measured=Spread.of([one["books"] + one["vocabulary"] for one in measured]),
            target=MOST_BYTES[kind],
            sense="at most",
            note=f"by what was allocated; what the process grew by: {resident:.2f}",
        )
    largest = found[f"{FOUND[-1]:,} ids, owners"]
    yield Target(
        name=f"id mapping, vocabulary of {owners:,}: against the bare map, {FOUND[-1]:,} ids",
        measured=Spread.of_ratios(largest["vocabulary"], largest["bare map"]),
        target=2,
        sense="at most",
    )
    yield Target(
        name="start to first answer, local engine, small tables: against the bare imports",
        measured=Spread.of_ratios(started["server"], started["imports"]),
        target=1.5,
        sense="at most",
        note=IMPORTS,
    )


def _table_of_memory(memory: Mapping[str, list[dict[str, float]]]) -> Table:
    columns = list(memory["direct"][0])
    return Table(
        title="memory: bytes a row",
        columns=["ids", *columns],
        rows=[
            [kind, *(Spread.of([one[column] for one in measured]).median for column in columns)]
            for kind, measured in memory.items()
        ],
        note="resident: what the process has grown by, without rows and state; books, vocabulary: as accounted for",
    )


def _table_of_finding(found: Mapping[str, Mapping[str, list[float]]], owners: int) -> Table:
    return Table(
        title=f"finding ids among {owners:,} that own a row: µs a call, of the thread's own time",
        columns=["ids", "vocabulary", "bare map", "vocabulary / bare map"],
        rows=[
            [
                name,
                *(Spread.of(seconds).median * 1e6 for seconds in measured.values()),
                Spread.of_ratios(measured["vocabulary"], measured["bare map"]).median,
            ]
            for name, measured in found.items()
        ],
    )


def _table_of_starts(started: Mapping[str, list[float]]) -> Table:
    return Table(
        title="from nothing to the first answer: s by the wall's clock",
        columns=["what", "median", "first quartile", "third"],
        rows=[
            [name, *(getattr(Spread.of(seconds), which) for which in ("median", "low", "high"))]
            for name, seconds in started.items()
        ],
    )


if __name__ == "__main__":
    if _ROW in sys.argv:
        memory_main(sys.argv[-2], int(sys.argv[-1]))
    else:
        alone(measure, __doc__)

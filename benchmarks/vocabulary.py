"""A vocabulary under a stream of ids without end: what an id costs, and that memory stays flat.

    python benchmarks/vocabulary.py [--rows R] [--ids N] [--seed S]

N distinct ids come by, in batches of 10,000 and of 100, through a vocabulary of R rows. Half of each batch has never
been seen; the rest is of ids that have been, some popular for ever, others while they are new. Beside each batch, the
same ids go through FBGEMM's raw map, which can do less: one that has the keys of those that own a row (lookups), or one
that is empty at first (insertions). Times are of one CPU, without the waiting for it that others may cause. Prints a
table, and writes it with all that it was measured on to benchmarks/results/vocabulary.json.

Shape suffixes: N ids of a batch, K keys.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import psutil
import torch
from serving import measured_on
from tqdm import tqdm

from embershard.config import TableSpec, VocabularyIds
from embershard.ids import Keys
from embershard.vocabulary import Sightings, Vocabulary

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

RESULTS: Final = Path(__file__).parent / "results" / "vocabulary.json"
LARGE, SMALL, SMALL_PER_LARGE = 10_000, 100, 10
TIMED: Final = (26, 1_000, 10_000)
"""Batches that a full vocabulary is timed with at last, and for how many steps each:"""
TIMED_STEPS: Final = 400
REBUILT: Final = 50
"""Rounds after which the raw map gets today's keys."""
MIB: Final = 2**20


class Stream:
    """Ids as they come up, and again later."""

    def __init__(self, seed: int) -> None:
        self.distinct = 0
        self._random = np.random.default_rng(seed)
        self._scramble = int(self._random.integers(2**62)) * 2 + 1

    def batch(self, size: int) -> NDArray[np.int64]:
        """int64 [N]: half are new, a quarter is of Zipf's distribution, and a quarter also, but newest first."""
        begin, quarter = self.distinct, size // 4
        self.distinct += size - 2 * quarter
        ranks_2Q = (max(begin, 1) ** self._random.random((2, quarter))).astype(np.int64)  # rank r as often as 1 / r
        ids_N = np.concatenate([np.arange(begin, self.distinct), ranks_2Q[0] - 1, np.maximum(begin - ranks_2Q[1], 0)])
        return self._random.permutation(ids_N) * self._scramble  # a bijection of int64: ids from the whole range


class RawMap:
    """FBGEMM's map alone, with 64-bit keys and four places a row."""

    def __init__(self, rows: int) -> None:
        self._table = torch.empty((4 * rows + 64, 2), dtype=torch.int64)
        self._whole = torch.tensor([0, len(self._table)])
        self.clear()

    def clear(self) -> None:
        """Forgets all keys."""
        self._table.fill_(-1)
        self.keys = 0

    def insert(self, keys: torch.Tensor, slots: torch.Tensor) -> None:
        """Adds keys."""
        self.keys += len(keys)
        torch.ops.fbgemm.pruned_hashmap_insert(keys, slots, torch.tensor([0, len(keys)]), self._table, self._whole)

    def lookup(self, keys: torch.Tensor) -> torch.Tensor:
        """Their slots, or -1."""
        slots: torch.Tensor = torch.ops.fbgemm.pruned_hashmap_lookup(
            keys, torch.tensor([0, len(keys)]), self._table, self._whole
        )
        return slots


def _times() -> array[float]:
    return array("d")


@dataclass
class Times:
    """Nanoseconds an id, batch after batch, of batches of one size."""

    find: array[float] = field(default_factory=_times)
    lookup: array[float] = field(default_factory=_times)
    sight: array[float] = field(default_factory=_times)
    step: array[float] = field(default_factory=_times)
    insert: array[float] = field(default_factory=_times)

    def summary(self) -> dict[str, float]:
        """Medians, and medians of ratios within a batch."""
        medians = {f"{name}_ns": round(statistics.median(times), 1) for name, times in vars(self).items()}
        for name, raw in (("find", "lookup"), ("step", "insert")):
            pairs = zip(getattr(self, name), getattr(self, raw), strict=True)
            medians[f"{name}_to_{raw}"] = round(statistics.median(ours / theirs for ours, theirs in pairs), 2)
        return medians


class Bench:
    """One vocabulary and the raw maps beside it."""

    def __init__(self, rows: int, seed: int) -> None:
        ids = VocabularyIds(fallback_rows=1024)
        self.vocabulary = Vocabulary(TableSpec(name="t", rows=1024 + rows, dim=4, ids=ids))
        self.stream, self._now_s = Stream(seed), 0
        self._owned, self._filled = RawMap(rows), RawMap(rows)
        self._rows, self._turn = rows, False

    @property
    def full(self) -> bool:
        """Whether there is no free row."""
        return len(self.vocabulary) == self.vocabulary.capacity

    def state(self) -> dict[str, Any]:
        """How far it is."""
        return {
            "distinct_ids": self.stream.distinct,
            "owned": len(self.vocabulary),
            "admitted": self.vocabulary.counts.admitted,
            "evicted": self.vocabulary.counts.evicted,
            "vocabulary_mib": round(self.vocabulary.bytes / MIB, 1),
        }

    def renew(self) -> None:
        """Gives the raw map for lookups the keys that own a row."""
        state = self.vocabulary.state()
        self._owned.clear()
        self._owned.insert(torch.from_numpy(state["keys"]), torch.from_numpy(state["slots"]))

    def take(self, size: int, times: Times) -> None:
        """Lets one batch come by."""
        keys = Keys(keys_n=self.stream.batch(size), names=None)
        tensor = torch.from_numpy(keys.keys_n)
        if self._filled.keys + size > self._rows:
            self._filled.clear()
        self._now_s += 1
        seen: list[Sightings] = []
        timed: dict[str, Callable[[], Any]] = {
            "find": lambda: self.vocabulary.find(keys),
            "lookup": lambda: self._owned.lookup(tensor),
            "sight": lambda: seen.append(Sightings.of(keys)),
            "step": lambda: self.vocabulary.step(seen[0], self._now_s, admit=True),
            "insert": lambda: self._filled.insert(tensor, torch.arange(size)),
        }
        self._turn = not self._turn
        order = (
            ("find", "lookup", "sight", "step", "insert")
            if self._turn
            else ("lookup", "find", "insert", "sight", "step")
        )
        for name in order:
            begin = time.thread_time_ns()
            timed[name]()
            getattr(times, name).append((time.thread_time_ns() - begin) / size)


def streamed(bench: Bench, ids: int) -> dict[str, Any]:
    """Lets distinct ids come by until there were enough; times count from when no row is free."""
    large, small, process = Times(), Times(), psutil.Process()
    tenths: list[dict[str, Any]] = []
    peak = rounds = 0
    with tqdm(total=ids, unit=" ids", unit_scale=True, desc="distinct ids") as progress:
        while bench.stream.distinct < ids:
            if rounds % REBUILT == 0:
                bench.renew()
            if not bench.full:
                large, small = Times(), Times()
            bench.take(LARGE, large)
            for _ in range(SMALL_PER_LARGE):
                bench.take(SMALL, small)
            rounds += 1
            peak = max(peak, process.memory_info().rss)
            progress.update(min(bench.stream.distinct, ids) - progress.n)
            if bench.stream.distinct >= (len(tenths) + 1) * ids // 10:
                tenths.append({**bench.state(), "peak_rss_mib": round(peak / MIB, 1)})
                peak = 0
    return {"tenths": tenths, "batches_of_10000": large.summary(), "batches_of_100": small.summary()}


def timed_when_full(bench: Bench, size: int) -> dict[str, Any]:
    """Milliseconds a step, its sightings included, of one size of batch."""
    assert bench.full
    times, evicted = Times(), bench.vocabulary.counts.evicted
    for _ in tqdm(range(TIMED_STEPS), desc=f"steps of {size:,} ids"):
        bench.take(size, times)
    steps = sorted(sum(both) * size / 1e6 for both in zip(times.sight, times.step, strict=True))
    return {
        "ids": size,
        "evicted_per_step": round((bench.vocabulary.counts.evicted - evicted) / TIMED_STEPS, 1),
        "median_ms": round(statistics.median(steps), 3),
        "p90_ms": round(steps[int(0.9 * len(steps))], 3),
        "worst_ms": round(steps[-1], 3),
        **times.summary(),
    }


def show(result: dict[str, Any]) -> None:
    """Prints what was measured."""
    print(f"{'distinct ids':>14}{'rows owned':>12}{'evicted':>12}{'vocabulary MiB':>16}{'peak RSS MiB':>14}")
    for tenth in result["tenths"]:
        print(
            f"{tenth['distinct_ids']:>14,}{tenth['owned']:>12,}{tenth['evicted']:>12,}"
            f"{tenth['vocabulary_mib']:>16,.1f}{tenth['peak_rss_mib']:>14,.1f}"
        )
    names = ("find_ns", "lookup_ns", "find_to_lookup", "sight_ns", "step_ns", "insert_ns", "step_to_insert")
    print(f"\n{'ns an id, batches of':<22}" + "".join(f"{name.removesuffix('_ns'):>16}" for name in names))
    rows = {"10,000": result["batches_of_10000"], "100": result["batches_of_100"]}
    rows |= {f"{full['ids']:,} (full)": full for full in result["full"]}
    for name, row in rows.items():
        print(f"{name:<22}" + "".join(f"{row[column]:>16,.2f}" for column in names))
    for full in result["full"]:
        print(
            f"a step of {full['ids']:>6,} ids, {full['evicted_per_step']:>7,} of them in place of others: "
            f"{full['median_ms']} ms (median), {full['p90_ms']} (90 %), {full['worst_ms']} (worst)"
        )


def main() -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="ids that may own a row (%(default)s)")
    parser.add_argument("--ids", type=int, default=10_000_000, help="distinct ids that come by (%(default)s)")
    parser.add_argument("--seed", type=int, default=7, help="of the stream (%(default)s)")
    told = parser.parse_args()
    if told.rows < LARGE or told.ids < 2 * told.rows:
        parser.error(f"--rows must be {LARGE:,} at least, and --ids twice --rows")
    torch.set_num_threads(1)
    bench = Bench(told.rows, told.seed)
    result = {"config": vars(told), "measured_on": measured_on(), **streamed(bench, told.ids)}
    bench.renew()
    result["full"] = [timed_when_full(bench, size) for size in TIMED]
    show(result)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()

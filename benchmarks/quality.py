"""Quality per byte: what a model loses when its tables are made smaller, by the way in which they are.

    make quality                        all of it, in about an hour on two cores; goes on where it was interrupted
    python benchmarks/quality.py --only movielens/rating --kinds modulo,vocabulary

For each task (data and model) and each kind of table, the settings are chosen on the end of the training data, with a
tenth of the full tables' bytes; then every kind is trained at every size, with three seeds, and measured on data that
lies later in time. benchmarks/results/quality.json has one record a trial, quality.md the table, quality.png the plot.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import movielens
import torch
from quality_kinds import KINDS
from quality_report import write_report
from quality_task import Settings, Task, trial
from tqdm import tqdm

from embershard.quiet import quieten

quieten()

ROOT: Final = Path(__file__).parents[1]
CACHE: Final = ROOT / ".data" / "quality"
"""What was measured, so that an interrupted run goes on; delete it to measure anew."""
FRACTIONS: Final = (1 / 2, 1 / 4, 1 / 10, 1 / 50)
SEEDS: Final = (0, 1, 2)
TUNED_AT: Final = 1 / 10
TUNED: Final = 3
"""Settings of a task's grid that are tried."""
COMPARED: Final = (
    "full",
    "modulo",
    "k_hash",
    "vocabulary",
    "low_rank",
    "qr",
    "vocabulary_low_rank_fp16",
    "low_rank_fp16",
    "qr_fp16",
)

Record = dict[str, Any]


class Cache:
    """Records of one task, by what was tried."""

    def __init__(self, task: str) -> None:
        CACHE.mkdir(parents=True, exist_ok=True)
        self._path = CACHE / f"{task.replace('/', '-').replace(' ', '-')}.jsonl"
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        self.records: list[Record] = []
        for record in map(json.loads, lines):
            tried = {key: record[key] for key in ("what", "kind", "fraction", "seed", "rate", "decay")}
            if self.find(**tried) is None:  # two runs at once may have measured the same
                self.records.append(record)

    def find(self, **tried: object) -> Record | None:
        """What was measured of it, if it was."""
        return next((one for one in self.records if all(one.get(key) == of for key, of in tried.items())), None)

    def add(self, record: Record) -> Record:
        """Keeps it."""
        self.records.append(record)
        with self._path.open("a") as file:
            file.write(json.dumps(record) + "\n")
        return record


def main() -> int:
    """Runs what is asked for, and writes the report of all that is known."""
    options = _options()
    torch.set_num_threads(1)  # small products: more threads only wait for each other
    tasks = [kind for name, kind in _tasks().items() if not options.only or name in options.only]
    for kind in tasks:
        try:
            _run(kind, options.kinds, options.seeds)
        except movielens.DataError as error:
            print(f"{kind.dataset}/{kind.model} is left out: {error}", file=sys.stderr)
    known = [Cache(name).records for name in _tasks()]
    records = [one for of_task in known for one in of_task if one["what"] == "trial"]
    write_report(records, ROOT / "benchmarks" / "results")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=lambda text: text.split(","), default=[], help=f"of {', '.join(_tasks())}")
    parser.add_argument(
        "--kinds", type=lambda text: text.split(","), default=list(COMPARED), help=f"of {', '.join(KINDS)}"
    )
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many (default %(default)s)")
    return parser.parse_args()


def _tasks() -> dict[str, type[Task]]:
    from quality_movielens import Likes, Ratings
    from quality_retail import NextItems, Purchases

    return {f"{task.dataset}/{task.model}": task for task in (Ratings, Likes, NextItems, Purchases)}


def _run(kind_of_task: type[Task], kinds: list[str], seeds: int) -> None:
    task, validation = kind_of_task(), kind_of_task(validate=True)
    cache = Cache(task.name)
    for name, value in task.baselines().items():
        print(f"{task.name}: {task.metric} of {name}: {value:.4f}", flush=True)
    plans = list(_plans(kinds, seeds))
    with tqdm(total=len(plans) + TUNED * len(kinds), desc=task.name, unit="trial") as progress:
        chosen = {}
        for kind in kinds:
            chosen[kind] = _choose(validation, kind, cache, progress)
        for kind, fraction, seed in plans:
            if cache.find(what="trial", kind=kind, fraction=fraction, seed=seed) is None:
                outcome = trial(task, kind, fraction, seed, chosen[kind])
                cache.add(_record("trial", task, kind, fraction, seed, chosen[kind]) | asdict(outcome))
            progress.update()


def _plans(kinds: list[str], seeds: int) -> Iterator[tuple[str, float, int]]:
    """Seed by seed, so that what is interrupted has all kinds."""
    for seed in SEEDS[:seeds]:
        for kind in kinds:
            for fraction in (1.0,) if kind == "full" else FRACTIONS:
                yield kind, fraction, seed


def _choose(validation: Task, kind: str, cache: Cache, progress: tqdm[Any]) -> Settings:
    """The settings that are best on the end of the training data."""
    tried = []
    fraction = 1.0 if kind == "full" else TUNED_AT
    for settings in validation.grid[:TUNED]:
        record = cache.find(what="choice", kind=kind, rate=settings.rate, decay=settings.decay)
        if record is None:
            outcome = trial(validation, kind, fraction, 0, settings)
            record = cache.add(_record("choice", validation, kind, fraction, 0, settings) | asdict(outcome))
        tried.append((record["value"], settings))
        progress.update()
    best = max if validation.larger_is_better else min
    return best(tried, key=lambda one: one[0])[1]


def _record(what: str, task: Task, kind: str, fraction: float, seed: int, settings: Settings) -> Record:
    return {
        "what": what,
        "dataset": task.dataset,
        "model": task.model,
        "metric": task.metric,
        "larger_is_better": task.larger_is_better,
        "kind": kind,
        "label": KINDS[kind].label,
        "fraction": fraction,
        "seed": seed,
        **asdict(settings),
    }


if __name__ == "__main__":
    sys.exit(main())

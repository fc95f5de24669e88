"""How good the models of `embershard train` are on real data, beside what a library or a few counts do with it.

    python benchmarks/prepare.py movielens; python benchmarks/prepare.py online_retail
    python benchmarks/training_quality.py [--tasks NAME,...] [--seeds N]

Each job of deploy/jobs is trained as its file says, but for its seed and that of its collection. What it is compared
with reads the same files and is measured by the same code; its settings are those that did best on validation data,
which are cut off what is learned of. What other tasks have in results/training_quality.json stays.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from click_baselines import CLICKS, read_clicks
from method import Method
from ranking_baselines import FACTORS, HAD
from rankings import read_ranking
from threadpoolctl import threadpool_limits
from training_quality_report import OURS, Record, kept, write_report

from embershard.config import Config
from embershard.engine.world import SoloWorld
from embershard.errors import EmbershardError
from embershard.quiet import quieten
from embershard.train.job import JobSpec, load_job
from embershard.train.peers import Peers
from embershard.train.setup import Setup
from embershard.train.tables import Tables
from embershard.train.trainer import Trainer

JOBS: Final = Path(__file__).parents[1] / "deploy" / "jobs"


class Task(NamedTuple):
    """What a job is compared with."""

    methods: Mapping[str, Method]
    """{name: method}."""
    read: Callable[[Path, Path, Path], Any]
    """Reads a split: what is learned of, what evaluates, and all items."""
    metric: str
    """What settings are chosen by; more is better."""
    tune: str = "tune"
    """What is learned of to choose settings, in place of `train`; `validate` evaluates them."""


TASKS: Final = {
    "movielens_ctr": Task(CLICKS, read_clicks, "auc"),
    "movielens_retrieval": Task(FACTORS, read_ranking, "ndcg@10"),
    "movielens_next_item": Task(FACTORS, read_ranking, "ndcg@10", tune="train"),
    "online_retail_next_item": Task(HAD, read_ranking, "ndcg@10"),
}


def ours(name: str, seed: int) -> Record:
    """Trains a job, from its start to its end, with this seed."""
    job, config = load_job(JOBS / f"{name}.toml")
    job = replace(job, seed=seed)
    config = replace(config, collection=replace(config.collection, seed=config.collection.seed + seed))
    settings = {"job": asdict(job), "tables": asdict(config)["tables"], "optimizer": asdict(config.optimizer)}
    return _record(name, OURS, seed, settings, lambda: _trained(job, config))


def _trained(job: JobSpec, config: Config) -> Mapping[str, float | None]:
    """As `embershard.train.run` does it, without checkpoints."""
    world = SoloWorld()
    setup = Setup(job=job, config=config, folder=JOBS, peers=Peers(world))
    model = setup.make_model()
    data, evaluation = setup.open(model)
    assert evaluation is not None, "jobs say what evaluates"
    tables = Tables(setup.make_engine(world, None))
    trainer = Trainer(tables, model, job.optimizer, peers=setup.peers, seed=job.seed)
    stream, step = setup.stream(data), 0
    for epoch in range(job.epochs):
        for batch in stream.epoch(epoch):
            read, _ = trainer.prepare(batch, step, ())
            trainer.learn(read, batch, step)
            step += 1
    return evaluation(model, tables, step)


def theirs(name: str, seeds: int) -> tuple[list[Record], list[Record]]:
    """What a job is compared with: how good it is, and which settings were tried on validation data."""
    task, found, tried = TASKS[name], [], []
    job, _ = load_job(JOBS / f"{name}.toml")
    train, evaluate = (JOBS / files[0] for files in (job.data.train, job.data.evaluate))
    items = JOBS / (job.evaluate.items or "")
    split = task.read(train, evaluate, items)
    for title, method in task.methods.items():
        if not method.grid:
            found.append(_record(name, title, 0, {}, partial(method.learn, split)))
            continue
        less = task.read(train.with_stem(task.tune), evaluate.with_stem("validate"), items)
        grid = [dict(zip(method.grid, chosen, strict=True)) for chosen in product(*method.grid.values())]
        attempts = [_record(name, title, 0, one, partial(method.learn, less, 0, **one)) for one in grid]
        best = max(attempts, key=lambda record: record["metrics"][task.metric])["settings"]
        found += [_record(name, title, seed, best, partial(method.learn, split, seed, **best)) for seed in range(seeds)]
        tried += attempts
    return found, tried


def _record(
    task: str, method: str, seed: int, settings: Mapping[str, Any], learn: Callable[[], Mapping[str, float | None]]
) -> Record:
    began_s = time.monotonic()
    metrics = dict(learn())
    seconds = time.monotonic() - began_s
    print(f"{task}, {method}, seed {seed}: {metrics}, {seconds:.1f} s", flush=True)
    return {
        "task": task,
        "method": method,
        "seed": seed,
        "seconds": seconds,
        "metrics": metrics,
        "settings": dict(settings),
    }


def main() -> int:
    """Runs the command; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default=",".join(TASKS), help="jobs (default %(default)s)")
    parser.add_argument("--seeds", type=int, default=3, help="of each job, and each method (default %(default)s)")
    options = parser.parse_args()
    quieten()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            for name in options.tasks.split(","):
                found, tried = theirs(name, options.seeds)
                found += [ours(name, seed) for seed in range(options.seeds)]
                write_report(*kept(name, found, tried))
    except FileNotFoundError as error:
        print(f"training_quality: {error} is absent: run benchmarks/prepare.py first", file=sys.stderr)
        return 1
    except EmbershardError as error:
        print(f"training_quality: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

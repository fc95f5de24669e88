"""What it costs to publish: from the end of a step to served, the tick that serves it, and how calm lookups stay.

A job in this process moves 100,000 rows of a million a step, and publishes them as deltas to a server; lookups come 200
a second from a process of their own. Each round begins with a quiet time.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from durability import CALM_ROWS, DIM, look_up_forever
from serving import measured_on, served
from tqdm import tqdm

from embershard.config import Config, parse_config
from embershard.engine.delta import write_delta
from embershard.engine.local import LocalEngine
from embershard.engine.publication import Publication
from embershard.engine.session import Session
from embershard.engine.touched import Touched
from embershard.engine.world import SoloWorld
from embershard.publisher import Publisher
from embershard.store import snapshot
from embershard.store.delta_files import write_delta_file
from embershard.store.delta_reading import read_delta
from embershard.types import FeatureBatch, FeatureUpdate

RESULTS: Final = Path(__file__).parent / "results" / "publish.json"
CONFIG: Final = f"""
[collection]
name = "publish"
[durability]
replay_s = 3600
[[tables]]
name = "item"
rows = {CALM_ROWS}
dim = {DIM}
"""
ROWS: Final = 100_000
"""Of a delta."""
ROUNDS, DELTAS = 7, 5
QUIET_S: Final = 3.0


class Job:
    """A training job."""

    def __init__(self, config: Config) -> None:
        self.engine = LocalEngine(config, SoloWorld())
        self._session, self._random = Session(self.engine), np.random.default_rng(0)
        self.touched = Touched(self.engine)

    def step(self) -> None:
        """Moves so many rows."""
        ids = self._random.permutation(CALM_ROWS)[:ROWS]
        gradients = self._random.normal(size=(ROWS, DIM)).astype(np.float32)
        self._session.update([FeatureUpdate(batch=FeatureBatch.of("item", ids), gradients=gradients)])


def measure_tick(config: Config) -> float:
    """How long one tick writes a delta that was read before, in ms, by one thread."""
    job, engine = Job(config), LocalEngine(config, SoloWorld())
    taken: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(1, ROUNDS + 1):
            job.step()
            file = write_delta_file(Path(folder), "bench", number, job.touched.take())
            publication = Publication(publisher="bench", number=number, delta=True, files=[file], layout="")
            delta = read_delta(Path(folder), publication, engine, engine.world.gather)
            start = time.perf_counter()
            write_delta(engine, delta)
            taken.append((time.perf_counter() - start) * 1e3)
    return round(statistics.median(taken), 2)


def measure(config: Config) -> dict[str, Any]:
    """Time to be served, and p99 of lookups meanwhile against the quiet time of the same round."""
    with tempfile.TemporaryDirectory() as folder, served(CONFIG, Path(folder) / "server") as server:
        context = multiprocessing.get_context("spawn")
        stop, (found, sender) = context.Event(), context.Pipe(duplex=False)
        reader = context.Process(target=look_up_forever, args=(server.target, stop, sender))
        reader.start()
        sender.close()
        os.nice(10)  # the job has a machine of its own as a rule
        job = Job(config)
        publisher = Publisher(server.target, publisher="bench", world=job.engine.world)
        begin = time.monotonic()
        publisher.full(snapshot.save(job.engine, None, 1, Path(folder) / "job", keeping=snapshot.Keeping(kept=1)))
        full_s = time.monotonic() - begin
        time.sleep(3 * QUIET_S)  # what was served before is written meanwhile
        quiet: list[tuple[float, float]] = []
        deltas: list[list[tuple[float, float]]] = []
        for _ in tqdm(range(ROUNDS), desc="publish", unit="rounds"):
            quiet.append((time.monotonic(), time.monotonic() + QUIET_S))
            time.sleep(QUIET_S)
            deltas.append([_delta(job, publisher) for _ in range(DELTAS)])
        stop.set()
        due_s, taken_s = np.array(found.recv()).T
        reader.join()
        publisher.close()

    def p99_ms(spans: list[tuple[float, float]]) -> float:
        within = np.any([(due_s >= a) & (due_s < b) for a, b in spans], axis=0)
        return float(np.quantile(taken_s[within], 0.99)) * 1e3

    of_quiet, of_deltas = [p99_ms([span]) for span in quiet], [p99_ms(spans) for spans in deltas]
    return {
        "full_s": round(full_s, 2),
        "step_to_served_s": round(statistics.median(b - a for spans in deltas for a, b in spans), 3),
        "p99_ms": {"quiet": [round(one, 2) for one in of_quiet], "publishing": [round(one, 2) for one in of_deltas]},
        "of_quiet": round(statistics.median(b / a for a, b in zip(of_quiet, of_deltas, strict=True)), 2),
    }


def _delta(job: Job, publisher: Publisher) -> tuple[float, float]:
    """From the end of a step to served."""
    job.step()
    start = time.monotonic()
    publisher.delta(job.touched.take())
    return start, time.monotonic()


def main() -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    config = parse_config(tomllib.loads(CONFIG))
    torch.set_num_threads(1)
    result = {"measured_on": measured_on(), "tick_ms": measure_tick(config), **measure(config)}
    print(json.dumps({key: value for key, value in result.items() if key != "measured_on"}, indent=2))
    RESULTS.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()

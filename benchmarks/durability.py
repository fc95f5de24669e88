"""What it costs that nothing is lost: updates a second by log mode, time to start again, and how calm lookups stay.

Modes of the log are measured in turns, each with a server of its own. Lookups come 200 a second from a process of
their own while snapshots are written, loaded and activated, and a table grows; each round begins with a quiet time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np
import torch
from serving import measured_on, served
from tqdm import tqdm

from embershard import AsyncClient, Client
from embershard.config import parse_config
from embershard.engine.clients import Clients
from embershard.engine.entries import Kind
from embershard.engine.local import LocalEngine
from embershard.engine.pipeline import Record
from embershard.engine.replica import Outcome, Replica
from embershard.engine.world import SoloWorld
from embershard.store.log import UpdateLog
from embershard.store.replay import replay

RESULTS: Final = Path(__file__).parent / "results" / "durability.json"
MODES: Final = ("fsync", "os", "none")
IDS, DIM = 100, 64
"""Of an update: 25 kB of gradients."""
CALLERS: Final = (1, 16)
ROUNDS, ROUND_S = 5, 2.0
LOGGED: Final = (25_000, 50_000, 100_000)
"""Updates in a log, of 20 ids and 16 numbers each."""
CALM_ROWS: Final = 1_000_000
CALM_PER_S: Final = 200


def config_of(rows: int, dim: int, mode: str) -> str:
    """One table, and a log."""
    head = f'[collection]\nname = "durability"\n[durability]\nlog = "{mode}"\nreplay_s = 3600\n'
    return f'{head}[[tables]]\nname = "item"\nrows = {rows}\ndim = {dim}\n'


async def updates_per_s(target: str, callers: int, seconds: float, seed: int) -> float:
    """Unary updates, each caller's one after the other."""
    random = np.random.default_rng(seed)
    work = [(random.integers(0, 100_000, IDS), random.normal(size=(IDS, DIM)).astype(np.float32)) for _ in range(32)]
    done = 0
    async with AsyncClient(target) as client:
        end = time.perf_counter() + seconds

        async def caller(first: int) -> None:
            nonlocal done
            number = first
            while time.perf_counter() < end:
                ids, gradients = work[number % len(work)]
                await client.update({"item": ids}, gradients={"item": gradients})
                done, number = done + 1, number + 1

        start = time.perf_counter()
        await asyncio.gather(*(caller(first) for first in range(callers)))
        return done / (time.perf_counter() - start)


def measure_modes() -> dict[str, Any]:
    """Updates a second, by mode and number of callers."""
    rates: dict[str, dict[int, list[float]]] = {mode: {callers: [] for callers in CALLERS} for mode in MODES}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        targets = {
            mode: stack.enter_context(served(config_of(100_000, DIM, mode), folder / mode)).target for mode in MODES
        }
        for number in tqdm(range(ROUNDS), desc="log modes", unit="rounds"):
            for callers in CALLERS:
                for mode in MODES:
                    rate = asyncio.run(updates_per_s(targets[mode], callers, ROUND_S, number))
                    rates[mode][callers].append(rate)
    return {
        f"{callers} caller(s)": {
            mode: {
                "updates_per_s": round(statistics.median(rates[mode][callers])),
                "all": [*map(round, rates[mode][callers])],
            }
            for mode in MODES
        }
        for callers in CALLERS
    }


def measure_recovery() -> list[dict[str, Any]]:
    """How long a log takes to be applied again, by as many threads as a server has."""
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) - 1))
    config = parse_config(
        {"collection": {"name": "recovery"}, "tables": [{"name": "item", "rows": 100_000, "dim": 16}]}
    )
    random = np.random.default_rng(0)
    results = []
    for count in LOGGED:
        with tempfile.TemporaryDirectory() as folder:
            about = {"layout": config.layout(), "settings": config.settings()}
            log = UpdateLog(Path(folder), mode="os", about=lambda about=about: about, last=0)  # type: ignore[misc]
            requests = [_request(random) for _ in range(256)]
            for first in range(0, count, 250):
                numbers = range(first, min(first + 250, count))
                records = [
                    Record(version=number + 1, kind=Kind.UPDATE, now_s=0, request=requests[number % 256])
                    for number in numbers
                ]
                log.append(records).result()
            log.close()
            results.append({"updates": count, **_replayed(Path(folder), config)})
    return results


def _request(random: np.random.Generator) -> bytes:
    from embershard.client.wire import update_request

    gradients = random.normal(size=(20, 16)).astype(np.float32)
    return update_request({"item": random.integers(0, 100_000, 20)}, gradients={"item": gradients}).SerializeToString()


def _none(*_: object) -> NoReturn:
    raise AssertionError("this log has neither activations nor publications")


def _replayed(folder: Path, config: Any) -> dict[str, float]:
    replica = Replica(LocalEngine(config, SoloWorld()), version=0, clients=Clients(1000), load=_none, fetch=_none)
    applying, apply = 0.0, replica.apply

    def timed(*arguments: Any, **options: Any) -> Outcome:
        nonlocal applying
        start = time.perf_counter()
        outcome = apply(*arguments, **options)
        applying += time.perf_counter() - start
        return outcome

    replica.apply = timed  # type: ignore[method-assign]
    start = time.perf_counter()
    replay(replica, folder, config)
    whole = time.perf_counter() - start
    return {"seconds": round(whole, 2), "of_them_applying": round(applying, 2)}


def look_up_forever(target: str, stop: Any, found: Any) -> None:
    """Lookups at a steady rate; of each, when it was due and how long after that it was answered."""
    random = np.random.default_rng(2)
    batches = [random.integers(0, CALM_ROWS, IDS) for _ in range(64)]
    taken = []
    with Client(target) as client:
        due, number = time.monotonic(), 0
        while not stop.is_set():
            due, number = due + 1 / CALM_PER_S, number + 1
            time.sleep(max(0.0, due - time.monotonic()))
            client.lookup({"item": batches[number % 64]})
            taken.append((due, time.monotonic() - due))
    found.send(taken)


def measure_calm() -> dict[str, Any]:
    """p99 of lookups while something is done, against the quiet time of the same round."""
    with tempfile.TemporaryDirectory() as folder, served(config_of(CALM_ROWS, DIM, "fsync"), Path(folder)) as server:
        context = multiprocessing.get_context("spawn")
        stop, (found, sender) = context.Event(), context.Pipe(duplex=False)
        reader = context.Process(target=look_up_forever, args=(server.target, stop, sender))
        reader.start()
        sender.close()
        spans: list[dict[str, tuple[float, float]]] = []
        with Client(server.target, timeout_s=600) as client:
            client.lookup({"item": [1]})
            time.sleep(3)
            for number in tqdm(range(ROUNDS), desc="calm", unit="rounds"):
                spans.append(_round(client, CALM_ROWS + (number + 1) * 100_000))
        stop.set()
        due_s, taken_s = np.array(found.recv()).T
        reader.join()
    p99_ms = {
        name: [float(np.quantile(taken_s[(due_s >= a) & (due_s < b)], 0.99)) * 1e3 for a, b in (s[name] for s in spans)]
        for name in spans[0]
    }
    return {
        name: {
            "p99_ms": [round(value, 2) for value in of_rounds],
            "of_quiet": round(statistics.median(a / b for a, b in zip(of_rounds, p99_ms["quiet"], strict=True)), 2),
            "seconds": round(statistics.median(s[name][1] - s[name][0] for s in spans), 2),
        }
        for name, of_rounds in p99_ms.items()
    }


def _round(client: Client, rows: int) -> dict[str, tuple[float, float]]:
    """When each of the things was done, and for how long, a second at least."""
    spans = {"quiet": _span(lambda: time.sleep(3))}
    ids = np.arange(IDS)
    client.update({"item": ids}, gradients={"item": np.ones((IDS, DIM), np.float32)})
    snapshot = 0

    def save() -> None:
        nonlocal snapshot
        snapshot = client.snapshot().version

    spans["snapshot"] = _span(save)
    client.update({"item": ids}, gradients={"item": np.ones((IDS, DIM), np.float32)})
    spans["load"] = _span(lambda: client.load(snapshot))
    spans["activate"] = _span(lambda: client.activate(snapshot))
    time.sleep(3)  # what was served is written meanwhile
    spans["rollback"] = _span(client.rollback)
    spans["grow"] = _span(lambda: client.grow("item", rows=rows))
    return spans


def _span(do: Callable[[], object]) -> tuple[float, float]:
    start = time.monotonic()
    do()
    time.sleep(max(0.0, 1.0 - (time.monotonic() - start)))
    return start, time.monotonic()


def main() -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    result = {
        "measured_on": measured_on(),
        "log_modes": measure_modes(),
        "recovery": measure_recovery(),
        "calm": measure_calm(),
    }
    print(json.dumps({key: value for key, value in result.items() if key != "measured_on"}, indent=2))
    RESULTS.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""What watching a server costs it: one without a metrics endpoint and tracing, beside one with both.

The watched server's metrics are scraped every second, and it traces the calls that it traces by default, to a collector
that takes all. Both servers run all the time and are asked in turn, for a short while each, as the machine has other
things to do, too; what is told are medians over the rounds, of lookups a second, and of the server's CPU time for each.
With `--base FOLDER`, the checkout of another commit is a third.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import grpc
import numpy as np
from callers import OK, ROWS, Order, run
from collector import Collector, collecting
from serving import Server, measured_on, served
from tqdm import tqdm

from embershard.v1 import embershard_pb2 as pb

RESULTS: Final = Path(__file__).parent / "results" / "observing.json"
CONFIG: Final = f"""
[collection]
name = "observing"

[[tables]]
name = "item"
rows = {ROWS}
dim = 64
"""
AT_ONCE: Final = {26: 16, 512: 16, 13_312: 3}
"""Lookups at once, by their size."""
LARGE: Final = 4_096
"""Lookups of so many ids are sent by gRPC, and smaller ones by what costs the machine less."""
SCRAPE_S: Final = 1.0
PLAIN, WATCHED, BASE = "plain", "watched", "base"


@contextmanager
def scraped(url: str) -> Iterator[None]:
    """Metrics are asked for again and again."""
    ended = threading.Event()

    def scrape() -> None:
        while not ended.wait(SCRAPE_S):
            with urllib.request.urlopen(f"{url}/metrics") as answer:
                answer.read()

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def small(order: Order) -> tuple[float, int]:
    """Lookups over a bare socket: how long it took in seconds, and how many were answered."""
    took_s, calls, _ = run(order)
    return took_s, sum(status == OK for _, _, _, status in calls)


def large(order: Order) -> tuple[float, int]:
    """The same by gRPC."""
    ids = np.random.default_rng(order.seed).integers(0, ROWS, order.ids).astype("<i8").tobytes()
    message = pb.LookupRequest(features=[pb.FeatureIds(feature="item", ids=ids)]).SerializeToString()
    options = [("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(order.target, options=options) as channel:
        lookup: Any = channel.unary_unary("/embershard.v1.EmbeddingService/Lookup")
        begun = time.perf_counter()

        def ask() -> int:
            count = 0
            while time.perf_counter() < begun + order.seconds:
                lookup(message)
                count += 1
            return count

        with ThreadPoolExecutor(order.at_once) as threads:
            counts = [future.result() for future in [threads.submit(ask) for _ in range(order.at_once)]]
        return time.perf_counter() - begun, sum(counts)


def measure(pool: ProcessPoolExecutor, server: Server, ids: int, seconds: float, seed: int) -> tuple[float, float]:
    """Lookups a second, and the server's CPU time for each, in microseconds."""
    order = Order(target=server.target, ids=ids, seconds=seconds, seed=seed, at_once=AT_ONCE[ids], throttled=False)
    begun = server.process.cpu_times()
    took_s, count = pool.submit(large if ids >= LARGE else small, order).result()
    ended = server.process.cpu_times()
    return count / took_s, (ended.user + ended.system - begun.user - begun.system) / count * 1e6


def compared(rounds: Mapping[str, list[tuple[float, float]]], base: str) -> dict[str, Any]:
    """Medians of each server, and of what it costs beside another in the same round."""
    found: dict[str, Any] = {}
    for name, measured in rounds.items():
        rates, costs = zip(*measured, strict=True)
        found[name] = {"per_s": round(statistics.median(rates), 1), "cpu_us": round(statistics.median(costs), 1)}
        if name != base:
            pairs = list(zip(measured, rounds[base], strict=True))
            found[name]["slower_percent"] = spread([100 * (1 - mine[0] / other[0]) for mine, other in pairs])
            found[name]["more_cpu_percent"] = spread([100 * (mine[1] / other[1] - 1) for mine, other in pairs])
    return found


def spread(values: list[float]) -> list[float]:
    """First quartile, median, third quartile."""
    return [round(value, 2) for value in statistics.quantiles(values, n=4)]


def show(result: dict[str, Any]) -> str:
    """As a table."""
    lines = [
        "| ids | server | lookups/s | CPU µs each | slower, % (quartiles) | more CPU, % (quartiles) |",
        "|" + "---|" * 6,
    ]
    for ids, servers in result["cases"].items():
        for name, one in servers.items():
            cells = [
                "{1} ({0} to {2})".format(*one[key]) if key in one else ""
                for key in ("slower_percent", "more_cpu_percent")
            ]
            lines.append(f"| {int(ids):,} | {name} | {one['per_s']:,} | {one['cpu_us']:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ids", type=int, nargs="+", choices=AT_ONCE, default=[*AT_ONCE], help="ids a lookup")
    parser.add_argument("--rounds", type=int, default=40, help="of each size (%(default)s)")
    parser.add_argument("--seconds", type=float, default=1.5, help="of each server in each round (%(default)s)")
    parser.add_argument("--base", type=Path, help="the checkout of another commit; then nothing is written")
    told = parser.parse_args()
    collector = Collector()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        collected = stack.enter_context(collecting(collector))
        pool = stack.enter_context(ProcessPoolExecutor(1, mp_context=get_context("spawn")))
        traces = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": collected}
        flags = ["--metrics-listen", "127.0.0.1:0"]
        servers = {
            PLAIN: stack.enter_context(served(CONFIG, folder / PLAIN)),
            WATCHED: stack.enter_context(served(CONFIG, folder / WATCHED, *flags, environment=traces)),
        }
        if told.base:
            paths = {"PYTHONPATH": f"{told.base / 'src'}:{told.base / 'service'}"}
            servers[BASE] = stack.enter_context(served(CONFIG, folder / BASE, environment=paths))
        stack.enter_context(scraped(servers[WATCHED].metrics))
        cases = {}
        for ids in told.ids:
            rounds: dict[str, list[tuple[float, float]]] = {name: [] for name in servers}
            for number in tqdm(range(told.rounds), desc=f"{ids:,} ids", unit="rounds"):
                names = [*servers] if number % 2 else [*servers][::-1]
                for name in names:
                    rounds[name].append(measure(pool, servers[name], ids, told.seconds, seed=number))
            cases[str(ids)] = compared(rounds, BASE if told.base else PLAIN)
    result = {
        "config": {"rounds": told.rounds, "seconds": told.seconds, "scrape_s": SCRAPE_S},
        "measured_on": measured_on(),
        "spans": len(collector.spans),
        "cases": cases,
    }
    print(show(result))
    if not told.base:
        RESULTS.write_text(json.dumps(result, indent=2) + "\n")
        RESULTS.with_suffix(".md").write_text(f"# What watching a server costs\n\n{show(result)}\n")


if __name__ == "__main__":
    main()

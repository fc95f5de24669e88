"""A server that is asked for three times what it can do: what it still does, how fast, and in how much memory.

First the peak, with as many lookups at once as do it best; then lookups that come at random times fixed beforehand (a
Poisson process, which doesn't wait for answers), at 70 % of the peak and at three times the peak; then the peak again,
which tells how much the machine itself had to do meanwhile. Clients are processes of their own that send ready-made
bytes (`http2.py`), so that they leave the machine to the server. Latency is told from when a lookup was to be sent, and
from when it was: where they differ, the client was late.
"""

from __future__ import annotations

import argparse
import json
import select
import statistics
import tempfile
import time
from bisect import bisect
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import psutil
from http2 import Connection
from serving import Server, measured_on, served
from tqdm import tqdm

from embershard.v1 import embershard_pb2 as pb

if TYPE_CHECKING:
    pass

RESULTS: Final = Path(__file__).parent / "results" / "overload.json"
ROWS: Final = 1_000_000
DIM: Final = 64
CONFIG: Final = f"""
[collection]
name = "overload"

[[tables]]
name = "item"
rows = {ROWS}
dim = {DIM}
"""
CLIENTS: Final = 2
CONNECTIONS: Final = 4
"""Of each client."""
AT_ONCE: Final = (8, 16, 32)
"""Lookups at once of each client, tried for the peak."""
BATCH: Final = 64
TICK_S: Final = 0.002
"""A client that doesn't wait for answers looks so often at what is due and what has come: lookups are late by half of
it, and the machine is left to the server."""
MOST: Final = 256
"""Lookups at once on one connection: the server takes no more."""
TIMEOUT_MS: Final = 2_000
OK: Final = 0
STATUS: Final = {0: "OK", 1: "CANCELLED", 4: "DEADLINE_EXCEEDED", 8: "RESOURCE_EXHAUSTED", 14: "UNAVAILABLE"}
PEAK_S: Final = 5.0


@dataclass(frozen=True)
class Order:
    """What one client is to do."""

    target: str
    ids: int
    seconds: float
    seed: int
    rate: float = 0.0
    """Lookups a second at random times; 0: as fast as answers come."""
    at_once: int = 0
    """Lookups at once, if answers are waited for."""


@dataclass
class Client:
    """Sends lookups, and notes of each (when it was to be sent, when it was, when it ended, status)."""

    order: Order
    pending: dict[tuple[int, int], tuple[float, float]] = field(default_factory=dict)
    ended: list[tuple[float, float, float, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.order.seed)
        ids = [rng.integers(0, ROWS, self.order.ids).astype("<i8").tobytes() for _ in range(64)]
        self.messages = [
            pb.LookupRequest(features=[pb.FeatureIds(feature="item", ids=part)]).SerializeToString() for part in ids
        ]
        self.connections = [Connection(self.order.target) for _ in range(CONNECTIONS)]
        self.open_on = [0] * CONNECTIONS
        self.at = {connection.socket: at for at, connection in enumerate(self.connections)}
        path = "/embershard.v1.EmbeddingService/Lookup"
        self.head = self.connections[0].head(path, timeout_ms=TIMEOUT_MS)
        gaps = rng.exponential(1 / max(self.order.rate, 1e-9), int(self.order.rate * self.order.seconds))
        self.times = np.cumsum(gaps).tolist()

    def send(self, at: int, dues: list[float]) -> None:
        """Lookups on one connection."""
        connection, now = self.connections[at], time.perf_counter()
        batch = []
        for due in dues:
            stream, data = connection.call(self.head, self.messages[len(self.pending) % len(self.messages)])
            self.pending[at, stream] = due, now
            batch.append(data)
        self.open_on[at] += len(dues)
        connection.socket.sendall(b"".join(batch))

    def receive(self, wait_s: float) -> list[int]:
        """Notes what has ended; returns on which connections."""
        found = []
        for ready in select.select(list(self.at), [], [], max(wait_s, 0))[0]:
            at = self.at[ready]
            for call in self.connections[at].receive():
                due, sent = self.pending.pop((at, call.stream))
                self.open_on[at] -= 1
                self.ended.append((due, sent, time.perf_counter(), call.status))
                found.append(at)
        return found

    def closed(self) -> None:
        """The next lookup once one has ended."""
        end = time.perf_counter() + self.order.seconds
        for number in range(self.order.at_once):
            self.send(number % CONNECTIONS, [time.perf_counter()])
        while (now := time.perf_counter()) < end:
            for at in self.receive(end - now):
                self.send(at, [time.perf_counter()])

    def open(self) -> None:
        """Lookups when their times have come, whatever becomes of those before; then the rest of the answers."""
        start = time.perf_counter()
        last = start + self.order.seconds + TIMEOUT_MS / 1000 + 5
        times, number = [start + after for after in self.times], 0
        while number < len(times) or (self.pending and time.perf_counter() < last):
            for _ in range(CONNECTIONS):
                at = self.open_on.index(min(self.open_on))
                some = times[number : number + min(MOST - self.open_on[at], BATCH)]
                if due := some[: bisect(some, time.perf_counter())]:
                    self.send(at, due)
                    number += len(due)
            time.sleep(TICK_S)
            self.receive(0)


def run(order: Order) -> tuple[float, list[tuple[float, float, float, int]], int]:
    """One client: seconds, what has become of its lookups, and how many never ended."""
    client = Client(order)
    start = time.perf_counter()
    if order.rate:
        client.open()
        # However long it took: a client that falls behind goes on after its time, and gains no goodput by it.
        return time.perf_counter() - start, client.ended, len(client.pending)
    client.closed()
    return time.perf_counter() - start, client.ended, 0


def measure(pool: ProcessPoolExecutor, server: psutil.Process, what: str, order: Order) -> dict[str, Any]:
    """All clients at once, and the server's memory and CPU time meanwhile."""
    orders = [
        Order(order.target, order.ids, order.seconds, order.seed + number, order.rate / CLIENTS, order.at_once)
        for number in range(CLIENTS)
    ]
    memory, cpu_s = [server.memory_info().rss], used_s(server)
    futures = [pool.submit(run, part) for part in orders]
    with tqdm(desc=what, total=int(order.seconds), unit="s") as bar:
        while not all(future.done() for future in futures):
            time.sleep(1)
            memory.append(server.memory_info().rss)
            bar.update(min(1, order.seconds - bar.n))
    cpu_s = used_s(server) - cpu_s
    found = [future.result() for future in futures]
    ended = np.array([call for _, calls, _ in found for call in calls])
    accepted = ended[ended[:, 3] == OK]
    in_time = sum(np.sum(np.array(calls)[:, 3] == OK) / seconds for seconds, calls, _ in found)
    return {
        "offered_per_s": round(order.rate) or None,
        "goodput_per_s": round(float(in_time), 1),
        "statuses": {STATUS.get(int(code), str(code)): count for code, count in Counter(ended[:, 3].tolist()).items()},
        "without_answer": sum(lost for _, _, lost in found),
        "ms_from_due": quantiles(accepted[:, 2] - accepted[:, 0]),
        "ms_from_sent": quantiles(accepted[:, 2] - accepted[:, 1]),
        "client_late_ms_p99": quantiles(ended[:, 1] - ended[:, 0])["p99"],
        "server_cpus": round(cpu_s / order.seconds, 2),
        "rss_mib": {"before": memory[0] >> 20, "most": max(memory) >> 20, "after": memory[-1] >> 20},
    }


def used_s(process: psutil.Process) -> float:
    """CPU time of a process, in seconds."""
    times = process.cpu_times()
    return float(times.user + times.system)


def quantiles(seconds: Any) -> dict[str, float]:
    """In milliseconds."""
    named = zip(("p50", "p90", "p99", "p999"), np.percentile(seconds, [50, 90, 99, 99.9]), strict=True)
    return {name: round(float(value) * 1000, 2) for name, value in named}


def overloaded(pool: ProcessPoolExecutor, server: Server, ids: int, seconds: float) -> dict[str, Any]:
    """Peak, 70 % and 3×, with lookups of one size."""
    tried = {
        at_once: measure(
            pool,
            server.process,
            f"{ids:,} ids, peak, {at_once * CLIENTS} at once",
            Order(server.target, ids, PEAK_S, 1, at_once=at_once),
        )
        for at_once in AT_ONCE
    }
    best, peak = max(tried.items(), key=lambda pair: float(pair[1]["goodput_per_s"]))
    rate = peak["goodput_per_s"]
    calm = measure(pool, server.process, f"{ids:,} ids, 70 %", Order(server.target, ids, seconds, 100, rate=0.7 * rate))
    crowded = measure(pool, server.process, f"{ids:,} ids, 3×", Order(server.target, ids, seconds, 200, rate=3 * rate))
    again = measure(
        pool, server.process, f"{ids:,} ids, peak again", Order(server.target, ids, PEAK_S, 1, at_once=best)
    )
    return {
        "ids": ids,
        "peak": peak,
        "peak_again": again,
        "at_70_percent": calm,
        "at_3_times": crowded,
        "goodput_of_peak": round(crowded["goodput_per_s"] / max(rate, again["goodput_per_s"]), 3),
        "p99_of_calm": round(crowded["ms_from_due"]["p99"] / calm["ms_from_due"]["p99"], 2),
    }


def show(result: dict[str, Any]) -> None:
    """Prints what was measured."""
    for case in result["cases"]:
        print(f"\nlookups of {case['ids']:,} ids")
        print(f"{'':<8}{'offered/s':>12}{'goodput/s':>12}{'p50 ms':>10}{'p99 ms':>10}{'CPUs':>8}{'most MiB':>10}")
        for name, key in (("peak", "peak"), ("70 %", "at_70_percent"), ("3×", "at_3_times"), ("again", "peak_again")):
            part = case[key]
            print(
                f"{name:<8}{part['offered_per_s'] or '':>12}{part['goodput_per_s']:>12,.1f}"
                f"{part['ms_from_due']['p50']:>10,.1f}{part['ms_from_due']['p99']:>10,.1f}{part['server_cpus']:>8}"
                f"{part['rss_mib']['most']:>10,}  {part['statuses']}"
            )
        print(
            f"at 3× the peak: {case['goodput_of_peak']:.0%} of the higher peak (to be 90 % at least), p99 "
            f"{case['p99_of_calm']} × that at 70 % (to be 3 at most)"
        )


def main() -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ids", type=int, nargs="+", default=[100, 2_000], help="ids a lookup (%(default)s)")
    parser.add_argument("--seconds", type=float, default=30, help="of each open loop (%(default)s)")
    told = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        served(CONFIG, Path(folder)) as server,
        ProcessPoolExecutor(CLIENTS, mp_context=get_context("spawn")) as pool,
    ):
        cases = [overloaded(pool, server, ids, told.seconds) for ids in told.ids]
    result = {"config": vars(told), "measured_on": measured_on(), "cases": cases}
    result["worst_goodput_of_peak"] = min(case["goodput_of_peak"] for case in cases)
    result["median_p99_of_calm"] = statistics.median(case["p99_of_calm"] for case in cases)
    show(result)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()

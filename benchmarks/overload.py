"""A server that is asked for three times what it can do: what it still does, how fast, and in how much memory.

First the peak is sought: as many lookups at once as do best. Then, in rounds, lookups come at random times fixed
beforehand (a Poisson process, which doesn't wait for answers), at 70 % of the peak and at three times the peak, with
the peak measured before and after, as the machine has other things to do, too. Clients hold back what would be
refused, as ours do (`embershard.client.throttle`); at the end three times the peak comes from clients that don't.
They are processes of their own that send ready-made bytes (`http2.py`), so that they leave the machine to the server.
Latency is told from when a lookup was to be sent, and from when it was: where they differ, the client was late.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil
from callers import HELD_BACK, OK, ROWS, Order, run
from serving import Server, measured_on, served
from tqdm import tqdm

RESULTS: Final = Path(__file__).parent / "results" / "overload.json"
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
AT_ONCE: Final = (8, 16, 32)
"""Lookups at once of each client, tried for the peak."""
STATUS: Final = {
    HELD_BACK: "held back",
    OK: "OK",
    1: "CANCELLED",
    4: "DEADLINE_EXCEEDED",
    8: "RESOURCE_EXHAUSTED",
    14: "UNAVAILABLE",
}
PEAK_S: Final = 5.0
SHOWN: Final = {
    "70 %": "at_70_percent",
    "peak": "peak_before",
    "3×": "at_3_times",
    "again": "peak_after",
}


def measure(pool: ProcessPoolExecutor, server: psutil.Process, what: str, order: Order) -> dict[str, Any]:
    """All clients at once, and the server's memory and CPU time meanwhile."""
    orders = [replace(order, seed=order.seed + number, rate=order.rate / CLIENTS) for number in range(CLIENTS)]
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


def overloaded(pool: ProcessPoolExecutor, server: Server, ids: int, told: argparse.Namespace) -> dict[str, Any]:
    """Lookups of one size."""

    def measured(what: str, **order: Any) -> dict[str, Any]:
        asked = Order(target=server.target, ids=ids, seconds=PEAK_S, seed=1)
        return measure(pool, server.process, f"{ids:,} ids, {what}", replace(asked, **order))

    tried = {at_once: measured(f"peak, {at_once * CLIENTS} at once", at_once=at_once) for at_once in AT_ONCE}
    best = max(tried, key=lambda at_once: float(tried[at_once]["goodput_per_s"]))
    rate = tried[best]["goodput_per_s"]
    rounds = []
    for number in range(told.rounds):
        calm = measured("70 %", seconds=told.seconds / 2, seed=100 + number, rate=0.7 * rate)
        before = measured("peak", at_once=best)
        crowded = measured("3×", seconds=told.seconds, seed=200 + number, rate=3 * rate)
        after = measured("peak", at_once=best)
        peak = (before["goodput_per_s"] + after["goodput_per_s"]) / 2
        rounds.append(
            {
                "peak_before": before,
                "at_70_percent": calm,
                "at_3_times": crowded,
                "peak_after": after,
                "goodput_of_peak": round(crowded["goodput_per_s"] / peak, 3),
                "p99_of_calm": round(crowded["ms_from_due"]["p99"] / calm["ms_from_due"]["p99"], 2),
            }
        )
    rude = measured("3×, nobody holds back", seconds=told.seconds, seed=300, rate=3 * rate, throttled=False)
    return {
        "ids": ids,
        "rounds": rounds,
        "at_3_times_if_nobody_holds_back": rude,
        "rude_goodput_of_peak": round(rude["goodput_per_s"] / rounds[-1]["peak_after"]["goodput_per_s"], 3),
        "goodput_of_peak": statistics.median(one["goodput_of_peak"] for one in rounds),
        "p99_of_calm": statistics.median(one["p99_of_calm"] for one in rounds),
    }


def show(result: dict[str, Any]) -> None:
    """Prints what was measured."""
    for case in result["cases"]:
        print(f"\nlookups of {case['ids']:,} ids")
        print(f"{'':<8}{'offered/s':>12}{'goodput/s':>12}{'p50 ms':>10}{'p99 ms':>10}{'CPUs':>8}{'most MiB':>10}")
        lines = [(name, one[key]) for one in case["rounds"] for name, key in SHOWN.items()]
        for name, part in [*lines, ("3× rude", case["at_3_times_if_nobody_holds_back"])]:
            print(
                f"{name:<8}{part['offered_per_s'] or '':>12}{part['goodput_per_s']:>12,.1f}"
                f"{part['ms_from_due']['p50']:>10,.1f}{part['ms_from_due']['p99']:>10,.1f}{part['server_cpus']:>8}"
                f"{part['rss_mib']['most']:>10,}  {part['statuses']}"
            )
        print(
            f"at 3× the peak, medians: {case['goodput_of_peak']:.0%} of the peak (to be 90 % at least), p99 "
            f"{case['p99_of_calm']} × that at 70 % (to be 3 at most); if nobody holds back "
            f"{case['rude_goodput_of_peak']:.0%}"
        )


def main() -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ids", type=int, nargs="+", default=[100, 2_000], help="ids a lookup (%(default)s)")
    parser.add_argument("--seconds", type=float, default=30, help="at three times the peak (%(default)s)")
    parser.add_argument(
        "--rounds", type=int, default=3, help="of 70 %%, peak, three times the peak, peak (%(default)s)"
    )
    told = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        served(CONFIG, Path(folder)) as server,
        ProcessPoolExecutor(CLIENTS, mp_context=get_context("spawn")) as pool,
    ):
        cases = [overloaded(pool, server, ids, told) for ids in told.ids]
    result = {"config": vars(told), "measured_on": measured_on(), "cases": cases}
    show(result)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()

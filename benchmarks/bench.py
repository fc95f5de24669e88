"""Runs the sections of the benchmark, each in a process of its own, and writes what they have found.

    python benchmarks/bench.py                               all of them, into benchmarks/results/
    python benchmarks/bench.py --quick                       in two minutes, into benchmarks/results/quick/
    python benchmarks/bench.py --sections bench_serving      some; results of the others stay

A section that fails is told, its results stay what they were, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import sys
import time
import traceback
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

# Sections' processes read this file again, and their clients', too: whatever is heavy is imported where it is needed.

SECTIONS: Final = (
    "bench_serving",
    "bench_profile",
    "bench_features",
    "bench_front_ends",
    "bench_engine",
    "bench_updates",
    "bench_ranks",
    "bench_growth",
    "bench_memory",
    "bench_quantised",
)
"""Modules with `measure(*, quick: bool) -> Outcome`, in the order of the report."""
PEERS: Final = {"bench_serving": ("redis", "memcached"), "bench_features": ("redis",)}
"""Other servers that sections need; told before anything that takes minutes."""
RESULTS: Final = Path(__file__).parent / "results"


def run_section(module: str, quick: bool) -> dict[str, Any]:
    """What a section has found, and on what; in a process of its own."""
    from dataclasses import asdict

    from report import versions
    from serving import measured_on

    measure = importlib.import_module(module).measure
    about = {"module": module, "date": f"{datetime.now(UTC):%Y-%m-%d}", "quick": quick}
    about |= {"measured_on": measured_on() | versions()}
    outcome = measure(quick=quick)
    targets = [asdict(target) | {"holds": target.holds} for target in outcome.targets]
    return about | asdict(outcome) | {"targets": targets}


def run(modules: list[str], folder: Path, quick: bool) -> list[str]:
    """Runs sections one after the other, and writes what each has found at once; returns those that failed."""
    from report import keep, write_report

    failed = []
    for number, module in enumerate(modules, 1):
        print(f"[{number}/{len(modules)}] {module}", file=sys.stderr, flush=True)
        start = time.monotonic()
        try:
            with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
                keep(folder, pool.submit(run_section, module, quick).result())
        except (Exception, SystemExit) as error:
            traceback.print_exception(error)
            failed.append(module)
        else:
            write_report(folder, SECTIONS)
        print(f"  {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    return failed


def main() -> int:
    """Measures and writes; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="little of everything, to see that it works")
    parser.add_argument("--sections", help=f"some of {','.join(SECTIONS)}", default=",".join(SECTIONS))
    parser.add_argument("--without", nargs="+", default=[], choices=("redis", "memcached"), help="peers to leave out")
    options = parser.parse_args()
    modules = options.sections.split(",")
    if unknown := {*modules} - {*SECTIONS}:
        parser.error(f"there is no section {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    if needed := {name for module in modules for name in PEERS.get(module, ())}:
        from peers import WITHOUT, check_there

        os.environ[WITHOUT] = ",".join(options.without)
        check_there(*sorted(needed))
    folder = RESULTS / "quick" if options.quick else RESULTS
    failed = run(modules, folder, options.quick)
    print(f"{folder / 'bench.md'} has what was found", file=sys.stderr)
    if failed:
        print(f"failed, with the reason above: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

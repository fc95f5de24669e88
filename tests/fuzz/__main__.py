"""`python -m fuzz --count 100000`: the long run."""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
from pathlib import Path

from embershard.quiet import quieten

quieten()

from fuzz.run import Found, fuzz  # noqa: E402  # after quieten, as whatever imports torch


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, help="any, unless given")
    parser.add_argument("--ranks", type=int, default=0, help="0 is the local engine")
    options = parser.parse_args()
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    print(f"N={options.count} SEED={seed} RANKS={options.ranks}")
    with tempfile.TemporaryDirectory() as folder:
        try:
            statuses = fuzz(options.count, seed, options.ranks, Path(folder))
        except Found as found:
            print(found)
            return 1
    methods = sorted({method for method, _ in statuses})
    for status in sorted({status for _, status in statuses}):
        by_method = {method: statuses[method, status] for method in methods if statuses[method, status]}
        each = ", ".join(f"{method} {count:,}" for method, count in by_method.items())
        print(f"{status:<20} {sum(by_method.values()):>9,}   {each}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

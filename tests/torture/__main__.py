"""`python -m torture --kills 200`: the long run."""

from __future__ import annotations

import argparse
import secrets
import sys

from embershard.quiet import quieten

quieten()

from torture.run import Found, torture  # noqa: E402  # after quieten, as whatever imports torch


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m torture", description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, help="of all that is random but the time; any, unless given")
    parser.add_argument("--ranks", type=int, default=0, help="0 is the local engine")
    options = parser.parse_args()
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    print(f"KILLS={options.kills} SEED={seed} RANKS={options.ranks}")
    try:
        counts = torture(kills=options.kills, seed=seed, ranks=options.ranks)
    except Found as found:
        print(found)
        return 1
    for what, count in sorted(counts.items()):
        print(f"{what:<20} {count:>9,}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

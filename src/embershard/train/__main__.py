"""`embershard train`, and the same under torchrun: `torchrun --nproc-per-node N -m embershard.train JOB.toml`."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from embershard.errors import EmbershardError
from embershard.quiet import quieten

DESCRIPTION = """\
Trains a model, and the tables of a collection with it, as a job file says; or goes on from the last checkpoint.

Under torchrun the tables are cut row-wise over the ranks:
  torchrun --nproc-per-node 4 -m embershard.train JOB.toml
"""
EXAMPLES = """\
examples:
  embershard train deploy/jobs/ctr.toml
  embershard train deploy/jobs/ctr.toml --folder runs/monday

exit status: 0 fine, 1 an error, 2 wrong usage, 143 asked to stop (SIGTERM, Ctrl-C), after a checkpoint
"""
STOPPED = 143
PATIENCE_S = 600.0
"""Longest that ranks wait for each other: one may read a large file that others have in memory."""


def parser(name: str) -> ArgumentParser:
    """The flags."""
    made = ArgumentParser(
        prog=name,
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("job", type=Path, metavar="JOB.toml", help="the job file")
    made.add_argument(
        "--folder",
        type=Path,
        metavar="DIR",
        help="of the run (default: runs/, and the job file's name)",
    )
    made.add_argument("--json", action="store_true", help="print what came of it as one JSON document")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a job on this rank; returns the exit status."""
    options = parser("embershard train").parse_args(arguments)
    rank = int(os.environ.get("RANK", "0"))
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("embershard").setLevel(logging.INFO if rank == 0 else logging.WARNING)
    folder = options.folder or Path("runs") / options.job.stem
    quieten()
    try:
        from embershard.engine.making import make_world, use_cores
        from embershard.train.run import Run

        world = make_world(timeout_s=PATIENCE_S)
        use_cores(world)
        with closing(Run(options.job, folder, world)) as run:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: run.stop())
            result = run.to_its_end()
        world.leave()
    except EmbershardError as error:
        if rank == 0:
            print(f"embershard: {error}", file=sys.stderr)
        return 1
    if result is not None:
        for line in [json.dumps(result)] if options.json else lines(result):
            print(line)
    return STOPPED if run.stopped else 0


def lines(result: dict[str, Any]) -> list[str]:
    """What came of it, for people."""
    told = [f"{result['steps']:,} steps in {result['seconds']:,.1f} s"]
    if result["examples_per_s"]:
        told[0] += f", {result['examples_per_s']:,.0f} examples/s"
    for name, value in (result["metrics"] or {}).items():
        told.append(f"{name} {'–' if value is None else format(value, '.4f')}")
    for feature, count in result["cut"].items():
        if count:
            told.append(f"{feature}: {count:,} bags were longer than max_length, and were cut")
    return [*told, f"snapshot {result['snapshot']}"]


if __name__ == "__main__":
    sys.exit(main())

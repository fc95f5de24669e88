"""`embershard train`, and the same under torchrun: `torchrun --nproc-per-node N -m embershard.train JOB.toml`."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from embershard.errors import EmbershardError, InstallError
from embershard.quiet import quieten
from embershard.train.options import parser

STOPPED = 143
PATIENCE_S = 600.0
"""Longest that ranks wait for each other: one may read a large file that others have in memory."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a job on this rank; returns the exit status."""
    options = parser("embershard train").parse_args(arguments)
    rank = int(os.environ.get("RANK", "0"))
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("embershard").setLevel(logging.INFO if rank == 0 else logging.WARNING)
    quieten()
    folder = options.folder or Path("runs") / options.job.stem
    try:
        make_world, use_cores, Run, lines = _imported()
        world = make_world(timeout_s=PATIENCE_S)
        use_cores(world)
        given = {"target": options.publish, "every_s": options.publish_every}
        publish = {key: value for key, value in given.items() if value is not None}
        with closing(Run(options.job, folder, world, publish)) as run:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: run.stop())
            result = run.to_its_end()
        world.leave()
    except EmbershardError as error:
        who = f"rank {rank}: " if rank else ""  # what is wrong with one rank alone, nobody else tells
        print(f"embershard: {who}{error}", file=sys.stderr)
        return 1
    if result is not None:
        for line in [json.dumps(result, default=str)] if options.json else lines(result):
            print(line)
    status = STOPPED if run.stopped else 0
    if world.size > 1:
        sys.stdout.flush()
        os._exit(status)  # all is written; gloo's threads have crashed processes that end with layers kept alike
    return status


def _imported() -> tuple[Any, ...]:
    """What needs all packages.

    Raises:
        InstallError: one is missing.
    """
    try:
        import matplotlib  # noqa: F401  # which is wanted at the end, when hours would be lost

        from embershard.engine.making import make_world, use_cores
        from embershard.train.outcome import lines
        from embershard.train.run import Run
    except ImportError as error:
        raise InstallError(
            f"training needs a package that isn't there ({error}): `make train`, or pip install 'embershard[train,cpu]'"
        ) from error
    return make_world, use_cores, Run, lines


if __name__ == "__main__":
    sys.exit(main())

"""The flags of a training job."""

from __future__ import annotations

import re
from argparse import ArgumentParser, ArgumentTypeError, RawDescriptionHelpFormatter
from pathlib import Path

DESCRIPTION = """\
Trains a model, and the tables of a collection with it, as a job file says; or goes on from the last checkpoint.
What a job file may say, docs/training.md tells; paths in it are relative to it. It is trusted as a program is: where
its model is package.module:Class, that code of yours is imported and run.

Under torchrun the tables are cut row-wise over the ranks:
  torchrun --nproc-per-node 4 -m embershard.train JOB.toml
"""
EXAMPLES = """\
examples:
  embershard train deploy/jobs/movielens_ctr.toml
  embershard train job.toml --folder runs/monday --json
  embershard train job.toml --publish 127.0.0.1:50051 --publish-every 30s

exit status: 0 fine, 1 an error, 2 wrong usage, 143 asked to stop (SIGTERM, Ctrl-C), after a checkpoint
"""


def parser(name: str) -> ArgumentParser:
    """Describes them; `name` is the command's."""
    made = ArgumentParser(
        prog=name,
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("job", type=Path, metavar="JOB.toml", help="the job file")
    made.add_argument(
        "--folder", type=Path, metavar="DIR", help="of the run (default: runs/, and the job file's name without suffix)"
    )
    made.add_argument(
        "--publish",
        metavar="HOST:PORT",
        help="a service that is to serve what is learned; the job's [publish] otherwise. Its authority and token come "
        "by EMBERSHARD_CA and EMBERSHARD_TOKEN_FILE, as for any client",
    )
    made.add_argument(
        "--publish-every",
        type=_seconds,
        metavar="TIME",
        help="from one publication to the next, such as 30s, 5m or 1h (default 30s)",
    )
    made.add_argument("--json", action="store_true", help="print what came of it as one JSON document")
    return made


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|h)?", text)
    seconds = float(found[1]) * {"s": 1, "m": 60, "h": 3600, None: 1}[found[2]] if found else 0.0
    if not seconds:
        raise ArgumentTypeError(f"{text!r} is no time, such as 30s, 5m or 1h")
    return seconds

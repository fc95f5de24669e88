"""The flags of a training job."""

from __future__ import annotations

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path

DESCRIPTION = """\
Trains a model, and the tables of a collection with it, as a job file says; or goes on from the last checkpoint.

Under torchrun the tables are cut row-wise over the ranks:
  torchrun --nproc-per-node 4 -m embershard.train JOB.toml
"""
EXAMPLES = """\
examples:
  embershard train deploy/jobs/movielens_ctr.toml
  embershard train job.toml --folder runs/monday --json

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
    made.add_argument("--json", action="store_true", help="print what came of it as one JSON document")
    return made

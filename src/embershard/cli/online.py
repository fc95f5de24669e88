"""The commands that talk to a server, and `doctor`: their flags, and what their help says."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path

from embershard.cli import commands
from embershard.cli.flags import Command, add_connection, add_file, add_request, count, of_feature, version
from embershard.codec import DTYPE_BY_NAME

LOOKUP = """\
examples:
  embershard lookup --ids user_id=1,2,3
  embershard lookup --ids user_id=7 --keys zip_code=90210,K1A --provenance
  embershard lookup --ids genres=3,5,9 --lengths genres=2,1 --weights genres=1,0.5,1
  echo '{"user_id": [1, 2], "tags": {"ids": ["a,b", "c"], "lengths": [2]}}' | embershard lookup --request - --json

With --json: {"version": 3, "features": {"user_id": {"dtype": "float32", "dim": 4, "pooling": "none",
"vectors": [[…], …], "provenance": ["own_row", …], "updates": [7, …], "sightings": [12, …]}}}; a vector per id, or per
example where the table pools.
"""
UPDATE = """\
examples:
  embershard update --ids user_id=1,2 --gradients gradients.npy
  embershard update --ids user_id=1,2 --values rows.npy
  echo '{"user_id": {"ids": [1], "gradients": [[0.1, 0, 0, 0]]}}' | embershard update --request - --json
  echo '{"item": {"ids": [9], "parents": {"ids": [1, 2], "lengths": [2]}}}' | embershard update --request -

Gradients have the shape that a lookup of the same ids answers, and go through the table's optimizer. Values overwrite
the rows that ids own, one vector an id. Parents start the row of each id anew, as the mean of its parents' rows. An id
of a vocabulary is given a row by values and parents. All of an update is applied, or nothing. With --json:
{"version": 4}.
"""
IMPORT = """\
examples:
  embershard import glove.txt --feature word
  embershard import users.npy --feature user_id
  embershard import counts.tsv --feature shop --metadata shops.tsv --integer-ids
  embershard import model.pt --key user.weight --feature user_id --json

The vectors become the rows that ids own, as they are: a table that scales or normalises does so with them, too. An id
of a vocabulary is given a row by it. All is checked first that can be: if a dim, an id or a number doesn't fit, nothing
is changed. With --json: {"version": 9, "rows": 10000, "left_out": 0}.
"""
GROW = """\
examples:
  embershard grow --table user --rows 200000
  embershard grow --table user --rows 200000 --mean-of user_id=1,2,3
  embershard grow --table query --capacity 50000 --json

Old rows stay bit for bit. New ones start seeded, as if the table had always been so large, unless told otherwise.
Calls go on meanwhile, and wait at the end, for the time that is told.
With --json: {"version": 5, "rows": 200000, "pause_ms": 41.5}.
"""
FREEZE = """\
examples:
  embershard freeze --ids user_id=1,2,3
  embershard freeze --keys query=jazz,folk --thaw

Gradients have no effect on a frozen row, and its optimizer state stays, too; an id of a vocabulary keeps its row. With
--json: {"version": 5, "rows": 3}.
"""
DESCRIBE = """\
examples:
  embershard describe
  embershard describe --target 10.0.0.7:50051 --json
"""
SNAPSHOT = """\
examples:
  embershard snapshot
  embershard snapshot --json
  embershard snapshot --list state/
  embershard snapshot --verify state/snapshots/000000000004
  embershard snapshot --check state/ --json

Calls are answered while a snapshot is written, and it holds what there was at one moment. With --json: {"version": 4,
"path": "state/snapshots/000000000004", "bytes": 123456}.

The other three need no server. --verify reads all of a snapshot, and the exit status is 1 if anything of it is damaged;
with --json it adds how many files, tensors and rows were right. --check tells what the rows of each tensor added up to
when they were written: the same for the same rows, whatever the number of ranks, so that two snapshots of one version
can be compared; with --json {"version": 4, "path": "…", "fingerprint": "…", "world_size": 2, "tensors": {"user.weight":
{"checksum": "5bd1e7c3a0f94e12", "rows": 100, "dtype": "float32"}, …}}. --list with --json: {"snapshots": [{"version":
4, "path": "…", "bytes": 123456, "world_size": 2}, …]}, oldest first, with "problem" in place of sizes where a manifest
is damaged.
"""
DOCTOR = """\
examples:
  embershard doctor
  embershard doctor --json

With --json: {"status": "ok", "findings": [{"name": "torch", "status": "ok", "found": "2.13.0", "remedy": ""}, …]};
a status is ok, warning or problem. The exit status is 1 if there is a problem.
"""


def add_online(command: Command) -> None:
    """Adds the commands, in the order in which help lists them."""
    one = command("lookup", commands.lookup, "Reads the vectors of ids.", LOOKUP)
    add_connection(one, timeout_s=10)
    add_request(one)
    _add_reading(one)
    one = command("update", commands.update, "Changes vectors by gradients, or overwrites or starts rows.", UPDATE)
    add_connection(one, timeout_s=10)
    add_request(one)
    _add_change(one)
    one = command("import", commands.import_, "Overwrites the rows of ids by the vectors of a file.", IMPORT)
    add_connection(one, timeout_s=60)
    _add_import(one)
    one = command("grow", commands.grow, "Gives a table more rows, or room for more ids of their own.", GROW)
    add_connection(one, timeout_s=600)
    _add_growth(one)
    one = command("freeze", commands.freeze, "Has the rows of ids stay as they are, or lets them move again.", FREEZE)
    add_connection(one, timeout_s=10)
    _add_freezing(one)
    one = command("describe", commands.describe, "Tells which collection is served, and within which limits.", DESCRIBE)
    add_connection(one, timeout_s=10)
    one = command("snapshot", commands.snapshot, "Has the server write a snapshot to its data directory.", SNAPSHOT)
    add_connection(one, timeout_s=600)
    _add_snapshots(one)
    command("doctor", commands.doctor, "Says what is installed, whether it works, and what to do about it.", DOCTOR)


def _add_reading(one: ArgumentParser) -> None:
    one.add_argument(
        "--dtype",
        choices=[*DTYPE_BY_NAME],
        default="float32",
        help="of the vectors on the wire (default %(default)s)",
    )
    one.add_argument(
        "--min-version",
        type=version,
        default=0,
        metavar="N",
        help="wait until the server has version N: what `embershard update` printed is then seen",
    )
    one.add_argument(
        "--pinned-version",
        type=version,
        default=0,
        metavar="N",
        help="read snapshot N, which must be loaded (`embershard load`), and not what is served",
    )
    one.add_argument(
        "--provenance",
        action="store_true",
        help="tell of each id where its vector comes from: own_row, fallback, padding or untrained",
    )
    one.add_argument(
        "--counts",
        action="store_true",
        help="tell of each id how many updates have moved its rows, and how often updates have named ids with them; of "
        "tables with `counts = true`",
    )


def _add_change(one: ArgumentParser) -> None:
    change = one.add_mutually_exclusive_group()
    change.add_argument(
        "--gradients", type=Path, metavar="FILE.npy", help="one gradient per vector that a lookup answers"
    )
    change.add_argument("--values", type=Path, metavar="FILE.npy", help="one vector per id")


def _add_import(one: ArgumentParser) -> None:
    add_file(one, "vectors and their ids")
    one.add_argument("--feature", required=True, help="the feature whose ids these are")
    one.add_argument(
        "--integer-ids", action="store_true", help="word2vec, tsv: the ids are integers; they are strings otherwise"
    )
    one.add_argument("--key", metavar="NAME", help="pt: which tensor, if the file has several matrices named weight")


def _add_growth(one: ArgumentParser) -> None:
    one.add_argument("--table", required=True, help="the table that is to grow")
    size = one.add_mutually_exclusive_group(required=True)
    size.add_argument("--rows", type=count, metavar="N", help="rows that the whole table has then")
    size.add_argument("--capacity", type=count, metavar="N", help="ids that may own a row then")
    fill = one.add_mutually_exclusive_group()
    fill.add_argument("--mean", action="store_true", help="new rows start as the mean of all old ones")
    fill.add_argument(
        "--mean-of",
        type=of_feature(int),
        metavar="FEATURE=ID,…",
        help="new rows start as the mean of the rows of these ids",
    )
    fill.add_argument(
        "--mean-of-keys",
        type=of_feature(str),
        dest="mean_of",
        metavar="FEATURE=KEY,…",
        help="the same with string ids, of a table with a list of names",
    )


def _add_snapshots(one: ArgumentParser) -> None:
    which = one.add_mutually_exclusive_group()
    for flag, name, text in (
        ("--verify", "PATH", "read a snapshot, or the newest of a data directory, and tell whether it is whole"),
        ("--check", "PATH", "tell what the rows of each tensor of one add up to"),
        ("--list", "DATA_DIR", "tell which snapshots there are"),
    ):
        which.add_argument(flag, type=Path, metavar=name, help=text)


def _add_freezing(one: ArgumentParser) -> None:
    which = one.add_mutually_exclusive_group(required=True)
    for flag, item, kind, text in (("--ids", "ID", int, "integer ids"), ("--keys", "KEY", str, "string ids")):
        which.add_argument(
            flag,
            type=of_feature(kind),
            action="append",
            default=[],
            metavar=f"FEATURE={item},…",
            help=f"{text} of one feature; may be repeated, and adds up",
        )
    one.add_argument("--thaw", action="store_true", help="let the rows move again")

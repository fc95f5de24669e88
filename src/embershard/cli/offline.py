"""The commands that work on snapshots, without a server: their flags, and what their help says."""

from __future__ import annotations

from pathlib import Path

from embershard.cli import archive
from embershard.cli.flags import Command, add_file, count, file_of_table

SNAPSHOT_PATH = "the folder of a snapshot, or a server's data directory: the newest one in it"

EXPORT = """\
examples:
  embershard export state/ words.parquet --table word
  embershard export state/snapshots/000000000042 users.pt --table user --row-numbers
  embershard export state/ words.tsv --table word --overwrite     # and words.metadata.tsv, for TensorBoard's projector

Writes the vectors of all ids of a table as they are served, before any pooling: factors, scale and normalisation are
applied. Of direct ids these are all rows, by number or by name; of a vocabulary all ids that own a row. A vocabulary
of integers and strings is written as text. With --json: {"version": 42, "table": "word", "ids": 10000, "dim": 50,
"unnamed": 0, "integers_as_text": 0}.
"""
DIFF = """\
examples:
  embershard diff state/snapshots/000000000041 state/snapshots/000000000042
  embershard diff yesterday/ today/ --json

Tells what differs: collections, tables, kinds of ids, seeds, rows, optimizers, which ids were added, are gone or have
another row, and how many rows have other numbers: rows of the same id where that is known, else of the same number.
The exit status is 0 whether they differ or not.
"""
DRIFT = """\
examples:
  embershard drift state/snapshots/000000000041 state/snapshots/000000000042
  embershard drift before/ fine-tuned/ --top 100 --json

Tells what training did between two snapshots of one collection, for each matrix of each table: how many rows moved, and
how far by their length before (relative move) and by the cosine of before and after; and which moved most, each with
the updates before + since. Rows are those of one id where ids own rows, else of one number.

The head is the rows that had half of all sightings before. A warning tells where any of them moved far (to a cosine
under 0.9, or by over half its length) on narrow data: spread, by the entropy of its sightings, over under half as many
rows as what came before. A frozen row that moved is a problem, and the exit status 1. Head and updates are known only
where both snapshots are of a table with `counts = true`; else JSON has null. With --json: {"before": {…}, "after": {…},
"tables": {"user": {"rows": {…}, "ids": null, "matrices": {"user": {"compared": 100000, "moved": 512,
"trained": 512, "relative": {"p50": 0.01, "p90": 0.1, "p99": 0.2, "largest": 0.3}, "cosine": {"p50": 1.0, "p10": 0.99,
"p1": 0.98, "smallest": 0.95}, "most_moved": [{"id": 7, …}, …], "head": {…}, …}}}}, "problems": [], "warnings": []}.
"""
REMAP = """\
examples:
  embershard remap state/ --config new.toml --output new-state/
  embershard remap state/ --config new.toml --output new-state/ --from word=old-words.txt

A table of direct ids may have a list of names, `ids = { names = "words.txt" }`, in the order of its rows; a snapshot is
refused under any other list. This moves each row, with its optimizer state and all else that is known of it, from the
place of its id in the snapshot's list to its place in the configuration's. Ids that are new in the list start as any
row does; rows of ids that are gone are dropped. All else must be the same. The snapshot keeps its version. With --json:
{"version": 42, "path": "new-state/snapshots/000000000042", "tables": {"word": {"moved": 9990, "stayed": 10, "added": 3,
"gone": 2, "unnamed": 0}}}.
"""
CONVERT = """\
examples:
  embershard convert state/ --config serving.toml --output serving-state/

Stores the rows of a snapshot as the dtypes of a configuration say, in fewer bits than they have: float32 as float16 or
int8, float16 as int8; all else must be the same. int8 rows are for serving only, take dim + 8 bytes each, and have no
optimizer state; `embershard diff` tells how far numbers are from what they were. The snapshot keeps its version. With
--json: {"version": 42, "path": "serving-state/snapshots/000000000042", "bytes_before": 27700000, "bytes": 8100000,
"tables": {"user": {"before": "float32", "after": "int8"}}}.
"""


def add_offline(command: Command) -> None:
    """Adds the commands, in the order in which help lists them."""
    one = command("export", archive.export, "Writes the vectors of a table's ids to a file.", EXPORT)
    one.add_argument("snapshot", type=Path, metavar="SNAPSHOT", help=SNAPSHOT_PATH)
    add_file(one, "where the vectors go")
    one.add_argument("--table", required=True, help="the table")
    one.add_argument(
        "--row-numbers", action="store_true", help="direct ids: write row numbers, even if there is a list of names"
    )
    one.add_argument("--overwrite", action="store_true", help="replace a file that is there")
    one = command("diff", archive.diff, "Tells two snapshots apart.", DIFF)
    one.add_argument("a", type=Path, metavar="A", help=SNAPSHOT_PATH)
    one.add_argument("b", type=Path, metavar="B", help="likewise")
    one = command("drift", archive.drift, "Tells which rows moved between two snapshots, and how far.", DRIFT)
    one.add_argument("before", type=Path, metavar="A", help=f"before: {SNAPSHOT_PATH}")
    one.add_argument("after", type=Path, metavar="B", help="after: likewise")
    one.add_argument(
        "--top",
        type=count,
        default=10,
        metavar="N",
        help="rows to name of each matrix, those that moved most (%(default)s)",
    )
    one = command("remap", archive.remap, "Moves the rows of a snapshot from one list of names to another.", REMAP)
    one.add_argument("snapshot", type=Path, metavar="SNAPSHOT", help=SNAPSHOT_PATH)
    one.add_argument("--config", type=Path, required=True, metavar="NEW.toml", help="the collection with the new lists")
    one.add_argument(
        "--output", type=Path, required=True, metavar="DATA_DIR", help="a data directory without any snapshot"
    )
    one.add_argument(
        "--from",
        type=file_of_table,
        action="append",
        default=[],
        dest="old_lists",
        metavar="TABLE=FILE",
        help="the old list of a table, if the snapshot has none; may be repeated",
    )
    one = command("convert", archive.convert, "Stores the rows of a snapshot in fewer bits.", CONVERT)
    one.add_argument("snapshot", type=Path, metavar="SNAPSHOT", help=SNAPSHOT_PATH)
    one.add_argument(
        "--config", type=Path, required=True, metavar="NEW.toml", help="the collection with the new dtypes"
    )
    one.add_argument(
        "--output", type=Path, required=True, metavar="DATA_DIR", help="a data directory without any snapshot"
    )

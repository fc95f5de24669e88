"""The commands about versions: which there are, and which is served."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from embershard.cli.answer import Answer
from embershard.cli.flags import Command, add_connection, connected
from embershard.cli.flags import version as version_of
from embershard.cli.offline import SNAPSHOT_PATH
from embershard.cli.publishing import publish
from embershard.v1 import embershard_pb2 as pb

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

VERSIONS = """\
examples:
  embershard versions
  embershard versions --json

With --json: {"versions": [{"version": 40, "state": "on_disk", "bytes": 123456, "rollback": false}, …]}, ascending; a
state is served, loaded or on_disk, and rollback marks what `embershard rollback` would serve.
"""
LOAD = """\
examples:
  embershard load 40
  embershard load 40 --unload

A loaded snapshot takes as much memory as the tables that are served. `embershard lookup --pinned-version 40` reads it,
and activating it takes no time. With --json: {"version": 40}.
"""
ACTIVATE = """\
examples:
  embershard activate 40

All tables of the collection change at once, between two ticks, as the next version. What was served until then stays in
memory, and is written as a snapshot: `embershard rollback` serves it again. Updates go on from the activated tables and
the rows that they had: those of a growth since are gone until a rollback. Who reads the snapshot by --pinned-version
must load it again.
With --json: {"version": 101, "activated": 40, "before": 100}.
"""
PUBLISH = """\
examples:
  embershard publish run/ --target 10.0.0.7:50051
  embershard publish run/snapshots/000000000042 --since run/snapshots/000000000041

Serves a training job's snapshot in place of all tables, all at once; what was served stays in memory, and `embershard
rollback` serves it again. With --since only what differs between the two: rows, and who owns them; the older one must
be what was published last, by the same publisher. What is cut off is sent again from where it ended.
With --json: {"version": 101, "publisher": "shop", "number": 4, "delta": false, "duplicate": false, "rows": 0, "frozen":
0, "before": 100}.
"""
ROLLBACK = """\
examples:
  embershard rollback

Undoes the last `embershard activate` or full publication, and with it all updates and deltas since. With --json: as
`embershard activate`.
"""


def add_versions(command: Command) -> None:
    """Adds the commands, in the order in which help lists them."""
    one = command("versions", versions, "Tells which versions can be served, and which is.", VERSIONS)
    add_connection(one, timeout_s=10)
    one = command("load", load, "Has a snapshot in memory beside what is served, or takes it out.", LOAD)
    _add_version(one)
    one.add_argument("--unload", action="store_true", help="take it out of memory")
    one = command("activate", activate, "Serves the tables of a snapshot.", ACTIVATE)
    _add_version(one)
    one = command("publish", publish, "Serves what a training job has made.", PUBLISH)
    one.add_argument("snapshot", type=Path, metavar="SNAPSHOT", help=SNAPSHOT_PATH)
    one.add_argument(
        "--since",
        metavar="SNAPSHOT|VERSION",
        help="only what has changed since this one: its folder, or its version beside the other",
    )
    one.add_argument("--publisher", metavar="NAME", help="who publishes (default: the name of the collection)")
    add_connection(one, timeout_s=600)
    one = command(
        "rollback", rollback, "Serves again what was served before the last activation or full publication.", ROLLBACK
    )
    add_connection(one, timeout_s=600)


def _add_version(one: ArgumentParser) -> None:
    one.add_argument("snapshot", type=version_of, metavar="VERSION", help="of a snapshot: `embershard versions`")
    add_connection(one, timeout_s=600)


def versions(options: Namespace) -> Answer:
    """What there is."""
    with connected(options) as client:
        found = client.list_versions()
    told: list[dict[str, Any]] = [
        {
            "version": one.version,
            "state": pb.VersionState.Name(one.state).removeprefix("VERSION_STATE_").lower(),
            "bytes": one.bytes,
            "rollback": one.rollback,
        }
        for one in found
    ]
    lines = [
        f"{one['version']:>12} {one['state']:<8} {_size(one['bytes']):>24}{'  ← rollback' * one['rollback']}"
        for one in told
    ]
    return Answer(document={"versions": told}, lines=lines)


def load(options: Namespace) -> Answer:
    """A snapshot in memory, or out of it."""
    with connected(options) as client:
        client.load(options.snapshot, unload=options.unload, timeout_s=options.timeout)
    state = "on disk" if options.unload else "loaded"
    return Answer(document={"version": options.snapshot}, lines=[f"version {options.snapshot} {state}"])


def activate(options: Namespace) -> Answer:
    """Other tables."""
    with connected(options) as client:
        return _activated(client.activate(options.snapshot, timeout_s=options.timeout))


def rollback(options: Namespace) -> Answer:
    """The tables of before."""
    with connected(options) as client:
        return _activated(client.rollback(timeout_s=options.timeout))


def _activated(done: pb.ActivateResponse) -> Answer:
    back = f"before {done.before}, which a rollback serves again" if done.before else "nothing is left to roll back to"
    return Answer(
        document={"version": done.version, "activated": done.activated, "before": done.before},
        lines=[f"version {done.version}", f"activated {done.activated}", back],
    )


def _size(count: int) -> str:
    return f"{count:,} bytes on disk" if count else "not on disk"

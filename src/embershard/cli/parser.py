"""The flags of every command but `serve`, whose flags are the server's own."""

from __future__ import annotations

import os
from argparse import ArgumentParser, ArgumentTypeError, Namespace, RawDescriptionHelpFormatter
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from embershard import __version__
from embershard.cli import commands
from embershard.client.wire import checked_target
from embershard.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable

_Item = TypeVar("_Item")
_Number = TypeVar("_Number", int, float)

DESCRIPTION = """\
Learned lookup tables for recommenders: serves them, reads them, changes them.

`embershard COMMAND --help` explains the flags of a command, with examples.
"""
EXAMPLES = """\
examples:
  embershard doctor
  embershard serve --config shop.toml
  embershard lookup --ids user_id=1,2,3

exit status: 0 fine, 1 an error, 2 wrong usage
"""
LOOKUP = """\
examples:
  embershard lookup --ids user_id=1,2,3
  embershard lookup --ids user_id=7 --keys zip_code=90210,K1A --provenance
  embershard lookup --ids genres=3,5,9 --lengths genres=2,1 --weights genres=1,0.5,1
  echo '{"user_id": [1, 2], "tags": {"ids": ["a,b", "c"], "lengths": [2]}}' | embershard lookup --request - --json

With --json: {"version": 3, "features": {"user_id": {"dtype": "float32", "dim": 4, "pooling": "none",
"vectors": [[…], …], "provenance": ["own_row", …]}}}; a vector per id, or per example where the table pools.
"""
UPDATE = """\
examples:
  embershard update --ids user_id=1,2 --gradients gradients.npy
  embershard update --ids user_id=1,2 --values rows.npy
  echo '{"user_id": {"ids": [1], "gradients": [[0.1, 0, 0, 0]]}}' | embershard update --request - --json

Gradients have the shape that a lookup of the same ids answers, and go through the table's optimizer. Values overwrite
rows, one vector an id, in tables of direct ids. All of an update is applied, or nothing. With --json: {"version": 4}.
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

With --json: {"version": 4, "path": "state/snapshots/000000000004", "bytes": 123456}.
"""
DOCTOR = """\
examples:
  embershard doctor
  embershard doctor --json

With --json: {"status": "ok", "findings": [{"name": "torch", "status": "ok", "found": "2.13.0", "remedy": ""}, …]};
a status is ok, warning or problem. The exit status is 1 if there is a problem.
"""


def parser() -> ArgumentParser:
    """Describes all commands. What it parses has `run`, the command's function, and `usage_error`."""
    made = ArgumentParser(
        prog="embershard",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("--version", action="version", version=f"embershard {__version__}")
    made_commands = made.add_subparsers(metavar="COMMAND", required=True)

    def command(name: str, run: Callable[[Namespace], commands.Answer], summary: str, epilog: str) -> ArgumentParser:
        one = made_commands.add_parser(
            name,
            help=summary[0].lower() + summary[1:].rstrip("."),
            description=summary,
            epilog=epilog,
            formatter_class=RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        one.set_defaults(run=run, usage_error=one.error)
        one.add_argument("--json", action="store_true", help="print one JSON document, and errors as JSON on stderr")
        return one

    made_commands.add_parser("serve", help="serves a collection of embedding tables over gRPC", add_help=False)
    one = command("lookup", commands.lookup, "Reads the vectors of ids.", LOOKUP)
    _add_connection(one, timeout_s=10)
    _add_request(one)
    _add_reading(one)
    one = command("update", commands.update, "Changes vectors by gradients, or overwrites rows.", UPDATE)
    _add_connection(one, timeout_s=10)
    _add_request(one)
    _add_change(one)
    one = command("describe", commands.describe, "Tells which collection is served, and within which limits.", DESCRIBE)
    _add_connection(one, timeout_s=10)
    one = command("snapshot", commands.snapshot, "Has the server write a snapshot to its data directory.", SNAPSHOT)
    _add_connection(one, timeout_s=600)
    command("doctor", commands.doctor, "Says what is installed, whether it works, and what to do about it.", DOCTOR)
    return made


def _add_connection(one: ArgumentParser, *, timeout_s: float) -> None:
    one.add_argument(
        "--target",
        type=_target,
        default=os.environ.get("EMBERSHARD_TARGET") or "127.0.0.1:50051",
        metavar="HOST:PORT",
        help="the server's address (EMBERSHARD_TARGET, default %(default)s)",
    )
    one.add_argument(
        "--timeout",
        type=_timeout,
        default=float(timeout_s),
        metavar="SECONDS",
        help="longest wait for an answer (default %(default)g)",
    )


def _add_request(one: ArgumentParser) -> None:
    for flag, item, kind, text in (
        ("--ids", "ID", int, "integer ids of a feature"),
        ("--keys", "KEY", str, "string ids of a feature; one that holds a comma goes into --request"),
        ("--lengths", "N", int, "ids per example (default: one id per example)"),
        ("--weights", "W", float, "weight per id, for pooled features (default: all 1)"),
    ):
        one.add_argument(
            flag,
            type=_of_feature(kind),
            action="append",
            default=[],
            metavar=f"FEATURE={item},…",
            help=f"{text}; may be repeated, and adds up",
        )
    one.add_argument(
        "--request", metavar="FILE", help="all of the request as JSON, from a file, or from standard input (-)"
    )
    one.add_argument(
        "--fingerprint",
        default="",
        metavar="HEX",
        help="refuse to talk to another collection than this one (`embershard describe` tells it)",
    )


def _add_reading(one: ArgumentParser) -> None:
    one.add_argument(
        "--dtype", choices=["float32", "float16"], default="float32", help="of the vectors (default %(default)s)"
    )
    one.add_argument(
        "--min-version",
        type=_version,
        default=0,
        metavar="N",
        help="wait until the server has version N: what `embershard update` printed is then seen",
    )
    one.add_argument(
        "--provenance",
        action="store_true",
        help="tell of each id where its vector comes from: own_row, fallback, padding or untrained",
    )


def _add_change(one: ArgumentParser) -> None:
    change = one.add_mutually_exclusive_group()
    change.add_argument(
        "--gradients", type=Path, metavar="FILE.npy", help="one gradient per vector that a lookup answers"
    )
    change.add_argument("--values", type=Path, metavar="FILE.npy", help="one vector per id")


def _of_feature(kind: Callable[[str], _Item]) -> Callable[[str], tuple[str, list[_Item]]]:
    def parse(text: str) -> tuple[str, list[_Item]]:
        feature, sign, items = text.partition("=")
        if not (feature and sign):
            raise ArgumentTypeError(f"{text!r} is not FEATURE=VALUE,VALUE…")
        try:
            return feature, [kind(item) for item in items.split(",")] if items else []
        except ValueError as error:
            raise ArgumentTypeError(f"{text!r}: {error}") from error

    return parse


def _target(text: str) -> str:
    try:
        return checked_target(text)
    except InvalidInput as error:
        raise ArgumentTypeError(str(error)) from error


def _timeout(text: str) -> float:
    return _within(text, float(text), 0.001, 1e6)


def _version(text: str) -> int:
    return _within(text, int(text), 0, 2**64 - 1)


def _within(text: str, number: _Number, low: float, high: float) -> _Number:
    if not low <= number <= high:
        raise ArgumentTypeError(f"{text} is not from {low} to {high}")
    return number

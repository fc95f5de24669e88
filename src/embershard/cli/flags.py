"""Flags that several commands share, and how what is typed becomes what is meant."""

from __future__ import annotations

import os
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from embershard import formats
from embershard.cli.answer import Answer
from embershard.client import Client, Security
from embershard.client.security import read_token
from embershard.client.wire import checked_target
from embershard.errors import InvalidInput

_Item = TypeVar("_Item")
_Number = TypeVar("_Number", int, float)

Command = Callable[[str, Callable[[Namespace], Answer], str, str], ArgumentParser]
"""(name, function, summary, text below the flags) → the parser of one command, to which flags are added."""


def add_connection(one: ArgumentParser, *, timeout_s: float) -> None:
    """Where the server is, how long to wait for it, and how to know each other."""
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
    one.add_argument(
        "--tls", action="store_true", default=None, help="speak TLS, by the system's authorities (EMBERSHARD_TLS=1)"
    )
    for flag, kind, metavar, text in (
        ("--ca", file, "FILE", "speak TLS; the server's certificate must be of this authority (EMBERSHARD_CA)"),
        ("--client-cert", file, "FILE", "mutual TLS: the client's certificate chain (EMBERSHARD_CLIENT_CERT)"),
        ("--client-key", file, "FILE", "and its key (EMBERSHARD_CLIENT_KEY)"),
        (
            "--token-file",
            file,
            "FILE",
            "has the token that is sent with each call, which is no flag as everybody on a machine sees those "
            "(EMBERSHARD_TOKEN_FILE, or the token itself in EMBERSHARD_TOKEN)",
        ),
        ("--server-name", str, "NAME", "what the server's certificate says, if it isn't HOST (EMBERSHARD_SERVER_NAME)"),
    ):
        one.add_argument(flag, type=kind, metavar=metavar, help=text)


def security_of(options: Namespace) -> Security:
    """What the flags of `add_connection` say, and else the environment.

    Raises:
        InvalidInput: it doesn't go together, or a file can't be read.
    """
    return Security.from_environment(
        tls=options.tls,
        ca=options.ca,
        certificate=options.client_cert,
        key=options.client_key,
        token=None if options.token_file is None else read_token(options.token_file),
        server_name=options.server_name,
    )


def connected(options: Namespace) -> Client:
    """A client of the server that the flags of `add_connection` name."""
    return Client(options.target, timeout_s=options.timeout, security=security_of(options))


def add_request(one: ArgumentParser) -> None:
    """Ids of features, by flags or as JSON."""
    for flag, item, kind, text in (
        ("--ids", "ID", int, "integer ids of a feature"),
        ("--keys", "KEY", str, "string ids of a feature; one that holds a comma goes into --request"),
        ("--lengths", "N", int, "ids per example (default: one id per example)"),
        ("--weights", "W", float, "weight per id, for pooled features (default: all 1)"),
    ):
        one.add_argument(
            flag,
            type=of_feature(kind),
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


def add_file(one: ArgumentParser, text: str) -> None:
    """A file of vectors, and its format."""
    known = ", ".join(f"{name} ({' '.join(form.suffixes)})" for name, form in formats.FORMATS.items())
    one.add_argument("file", type=Path, metavar="FILE", help=text)
    one.add_argument(
        "--format", choices=list(formats.FORMATS), help=f"of the file (default: as its name ends): {known}"
    )
    one.add_argument(
        "--metadata",
        type=Path,
        metavar="FILE.tsv",
        help="tsv: the file of labels (default: words.metadata.tsv beside words.tsv)",
    )


def of_feature(kind: Callable[[str], _Item]) -> Callable[[str], tuple[str, list[_Item]]]:
    """FEATURE=VALUE,VALUE… → (feature, values)."""

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


def count(text: str) -> int:
    """A number of rows."""
    return _within(text, int(text), 1, 2**64 - 1)


def file_of_table(text: str) -> tuple[str, Path]:
    """TABLE=FILE → (table, path)."""
    table, sign, path = text.partition("=")
    if not (table and sign and path):
        raise ArgumentTypeError(f"{text!r} is not TABLE=FILE")
    return table, Path(path)


def file(text: str) -> Path:
    """The path of a file."""
    if not text:
        raise ArgumentTypeError("an empty path names no file")
    return Path(text)


def names(text: str) -> list[str]:
    """A,B → the names, each there once."""
    found = [name.strip() for name in text.split(",")]
    if not all(found) or len({*found}) < len(found):
        raise ArgumentTypeError(f"{text!r} is not A,B,…, each name once")
    return found


def _timeout(text: str) -> float:
    return _within(text, float(text), 0.001, 1e6)


def version(text: str) -> int:
    """A version: any uint64."""
    return _within(text, int(text), 0, 2**64 - 1)


def _within(text: str, number: _Number, low: float, high: float) -> _Number:
    if not low <= number <= high:
        raise ArgumentTypeError(f"{text} is not from {low} to {high}")
    return number

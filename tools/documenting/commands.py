"""The command line: every command with its flags, read off the parsers themselves."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from typing import Final

from embershard_server.options import parser as server_parser

from documenting.markdown import code, table
from embershard.cli.parser import parser as command_parser
from embershard.train.options import parser as job_parser

_OF_ALL: Final = (
    "-h",
    "--json",
    "--target",
    "--tls",
    "--ca",
    "--client-cert",
    "--client-key",
    "--token-file",
    "--server-name",
)
"""Flags that many commands have: the page tells them once, above all commands."""
_STANDS_FOR: Final = re.compile(r" ?\((EMBERSHARD_[A-Z_]+(?:=\d)?)(?:, default ([^)]+))?\)")
"""What a flag's help says of its environment variable."""


def commands() -> dict[str, argparse.ArgumentParser]:
    """{name: parser} of all commands."""
    (found,) = (action for action in command_parser()._actions if isinstance(action, argparse._SubParsersAction))
    own = {"serve": server_parser("embershard serve"), "train": job_parser("embershard train")}
    return {**found.choices, **own}


def serve_flags() -> Iterator[str]:
    """The server's flags, with the environment variables that stand for them."""
    rows = []
    for action in _flags(commands()["serve"]):
        told = _help(action)
        variable, default = found.groups() if (found := _STANDS_FOR.search(told)) else (None, None)
        rows.append((_typed(action), code(variable or ""), code(default or ""), _STANDS_FOR.sub("", told)))
    yield from table(("flag", "environment variable", "default", "meaning"), rows)


def all_commands() -> Iterator[str]:
    """Each command: what it does, and its flags."""
    for name, one in commands().items():
        yield f"### embershard {name}"
        yield ""
        yield (one.description or "").partition("\n\n")[0].strip()
        yield ""
        if name == "serve":
            yield "Its flags are in [configuration](configuration.md#the-flags-of-embershard-serve)."
            yield ""
        elif rows := [(_typed(action), _help(action)) for action in _flags(one)]:
            yield from table(("flag", "meaning"), rows)
            yield ""


def _flags(one: argparse.ArgumentParser) -> list[argparse.Action]:
    return [action for action in one._actions if not {*action.option_strings} & {*_OF_ALL}]


def _typed(action: argparse.Action) -> str:
    """A flag as it is typed."""
    value = action.metavar or (f"{{{','.join(map(str, action.choices))}}}" if action.choices else action.dest.upper())
    takes_none = action.nargs == 0
    return code(" ".join([*action.option_strings[-1:], *([] if takes_none else [str(value)])]))


def _help(action: argparse.Action) -> str:
    return (action.help or "") % {**vars(action), "prog": "embershard"}

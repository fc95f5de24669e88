"""The flags of every command but `serve`, whose flags are the server's own."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable

from embershard import __version__
from embershard.cli.answer import Answer
from embershard.cli.credentials import add_credentials
from embershard.cli.loadtest_flags import add_loadtest
from embershard.cli.offline import add_offline
from embershard.cli.online import add_online
from embershard.cli.versions import add_versions

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


def parser() -> ArgumentParser:
    """Describes all commands. What it parses has `run`, the command's function, and `usage_error`."""
    made = ArgumentParser(
        prog="embershard",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.set_defaults(usage_error=made.error)
    made.add_argument("--version", action="version", version=f"embershard {__version__}")
    made_commands = made.add_subparsers(metavar="COMMAND", required=True)

    def command(name: str, run: Callable[[Namespace], Answer], summary: str, epilog: str) -> ArgumentParser:
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
    made_commands.add_parser(
        "train", help="trains a model and the tables of a collection, as a job file says", add_help=False
    )
    add_online(command)
    add_versions(command)
    add_loadtest(command)
    add_offline(command)
    add_credentials(command)
    return made

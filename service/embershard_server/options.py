"""The server's command line; every flag is also an environment variable."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from embershard.environment import flag
from embershard.errors import InvalidInput
from embershard_server.logs import FORMATS

LOG_LEVELS = ("debug", "info", "warning", "error")

EXAMPLES = """\
examples:
  embershard serve --config shop.toml
  embershard serve --config shop.toml --listen 127.0.0.1:50051 --data-dir state/
  embershard serve --config shop.toml --listen 0.0.0.0:50051 --tls-cert server.pem --tls-key server.key \\
      --tokens tokens.toml
  torchrun --nproc-per-node 4 -m embershard_server --config shop.toml --data-dir state/
  embershard serve --config shop.toml --check

Under torchrun every rank has a front end, a host's rank r on port + r, and the tables are cut row-wise over all ranks.
On SIGTERM or Ctrl-C the server finishes the calls in flight, writes a snapshot and leaves. torchrun kills ranks that
take over 30 seconds for it: with large tables, give it --shutdown-timeout SECONDS.
"""


def parser(prog: str) -> argparse.ArgumentParser:
    """Describes the flags."""
    made = argparse.ArgumentParser(
        prog=prog,
        description="Serves a collection of embedding tables over gRPC.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    add("--config", type=Path, **_or_environment("CONFIG"), help="the collection's TOML file (EMBERSHARD_CONFIG)")
    add(
        "--listen",
        **_or_environment("LISTEN", "127.0.0.1:50051"),
        metavar="HOST:PORT",
        help="address of a host's rank 0; its rank r listens on PORT + r, with PORT 0 on any free one "
        "(EMBERSHARD_LISTEN, default %(default)s)",
    )
    add(
        "--data-dir",
        type=Path,
        **_or_environment("DATA_DIR", "state"),
        help="holds the snapshots and the update log, from which it starts (EMBERSHARD_DATA_DIR, default %(default)s)",
    )
    _add_security(made)
    add(
        "--log-level",
        choices=LOG_LEVELS,
        **_or_environment("LOG_LEVEL", "info"),
        help="the least that is logged (EMBERSHARD_LOG_LEVEL, default %(default)s)",
    )
    add(
        "--log-format",
        choices=FORMATS,
        **_or_environment("LOG_FORMAT", "text"),
        help="json: an object a line (EMBERSHARD_LOG_FORMAT, default %(default)s)",
    )
    add(
        "--metrics-listen",
        **_or_environment("METRICS_LISTEN", ""),
        metavar="HOST:PORT",
        help="serve /metrics, /livez and /readyz over HTTP; rank r on PORT + r, with PORT 0 on any free one; none "
        "given: don't (EMBERSHARD_METRICS_LISTEN)",
    )
    add(
        "--provenance-every",
        type=_count,
        **_or_environment("PROVENANCE_EVERY", "64"),
        metavar="N",
        help="one lookup in N is examined for the metric of where vectors come from, 0: none "
        "(EMBERSHARD_PROVENANCE_EVERY, default %(default)s)",
    )
    add(
        "--check",
        action="store_true",
        help="read the configuration and the files that flags name, tell what would be served, and end",
    )
    return made


def _add_security(made: argparse.ArgumentParser) -> None:
    for name, metavar, text in (
        ("--tls-cert", "FILE", "the server's certificate chain, PEM; a renewed one is shown without a restart"),
        ("--tls-key", "FILE", "and its key"),
        ("--tls-client-ca", "FILE", "mutual TLS: clients must have a certificate of this authority"),
        (
            "--tokens",
            "FILE",
            "TOML of the tokens that callers must have, and their roles; read again when it changes. Or give tokens "
            "themselves, by EMBERSHARD_READ_TOKEN, EMBERSHARD_UPDATE_TOKEN and EMBERSHARD_ADMIN_TOKEN",
        ),
    ):
        variable = "EMBERSHARD_" + name[2:].replace("-", "_").upper()
        made.add_argument(
            name,
            type=Path,
            default=os.environ.get(variable) or None,
            metavar=metavar,
            help=f"{text} ({variable})",
        )
    made.add_argument(
        "--plaintext",
        action="store_true",
        help="speak plaintext on an address that others reach, which is refused otherwise (EMBERSHARD_PLAINTEXT=1)",
    )


def _or_environment(name: str, default: str | None = None) -> dict[str, Any]:
    value = os.environ.get(f"EMBERSHARD_{name}", default)
    return {"default": value, "required": value is None}


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 0 on")
    return int(text)


def parse(prog: str, arguments: Sequence[str] | None) -> argparse.Namespace:
    """Reads the command line; a wrong flag, or a wrong variable in its place, ends the program with status 2."""
    made = parser(prog)
    options = made.parse_args(arguments)
    for name, choices in (("log_level", LOG_LEVELS), ("log_format", FORMATS)):
        if (value := getattr(options, name)) not in choices:  # argparse checks flags, and not what stands in for them
            made.error(f"EMBERSHARD_{name.upper()}={value}: choose from {', '.join(choices)}")
    try:
        options.plaintext = options.plaintext or flag("EMBERSHARD_PLAINTEXT")
    except InvalidInput as error:
        made.error(str(error))
    return options

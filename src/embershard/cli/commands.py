"""What each command does: it takes the parsed flags, and answers for machines and for people."""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from embershard import doctor as checks
from embershard.cli import show
from embershard.cli.request import CHANGES, batches_of, change_of, read_request
from embershard.client import Client
from embershard.errors import InstallError

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterable, Sequence


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What a command has to say."""

    document: dict[str, Any]
    """For machines: printed as one JSON document."""
    lines: Iterable[str]
    """For people, made only if they are printed."""
    status: int = 0
    """The exit status."""


def serve(arguments: Sequence[str]) -> NoReturn:
    """Becomes the server: the same process, so that signals go straight to it.

    Raises:
        InstallError: its packages are missing.
    """
    from embershard_server.options import parser

    parser("embershard serve").parse_args(arguments)  # answers --help, and refuses wrong flags in this command's name
    if missing := [name for name, module in checks.SERVER.items() if importlib.util.find_spec(module) is None]:
        raise InstallError(
            f"the server needs {', '.join(missing)}: pip install 'embershard[cpu]', or 'embershard[gpu]' on a host "
            "with NVIDIA GPUs; `embershard doctor` tells more"
        )
    os.execv(sys.executable, [sys.executable, "-m", "embershard_server", *arguments])  # noqa: S606  # no shell is meant


def lookup(options: Namespace) -> Answer:
    """Vectors of ids."""
    request = read_request(options)
    with _client(options) as client:
        rows = client.lookup(
            batches_of(request),
            dtype=options.dtype,
            min_version=options.min_version,
            fingerprint=options.fingerprint,
            with_provenance=options.provenance,
        )
        pooling = show.pooling_of_features(client.describe())
    return Answer(document=show.rows_document(rows, pooling), lines=show.rows_lines(rows, pooling, request))


def update(options: Namespace) -> Answer:
    """Gradients or values for ids."""
    request = read_request(options, CHANGES)
    kind, change = change_of(request, options)
    with _client(options) as client:
        if kind == "gradients":
            version = client.update(batches_of(request), gradients=change, fingerprint=options.fingerprint)
        else:
            version = client.assign(batches_of(request), values=change, fingerprint=options.fingerprint)
    return Answer(document={"version": version}, lines=[f"version {version}"])


def describe(options: Namespace) -> Answer:
    """The collection that is served."""
    with _client(options) as client:
        description = client.describe()
    return Answer(document=show.description_document(description), lines=show.description_lines(description))


def snapshot(options: Namespace) -> Answer:
    """A snapshot on the server's disk."""
    with _client(options) as client:
        made = client.snapshot(timeout_s=options.timeout)
    return Answer(
        document={"version": made.version, "path": made.path, "bytes": made.bytes},
        lines=[f"version {made.version}", f"path {made.path}", f"bytes {made.bytes:,}"],
    )


def doctor(options: Namespace) -> Answer:
    """What is installed, and whether it works."""
    findings = checks.diagnose(lambda line: None if options.json else print(line, file=sys.stderr, flush=True))
    worst = checks.worst(findings)
    return Answer(
        document={"status": worst, "findings": [asdict(finding) for finding in findings]},
        lines=show.finding_lines(findings),
        status=1 if worst == "problem" else 0,
    )


def _client(options: Namespace) -> Client:
    return Client(options.target, timeout_s=options.timeout)

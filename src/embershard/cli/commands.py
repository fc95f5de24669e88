"""What each command does that talks to a server: it takes the parsed flags, and answers for machines and for people."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from embershard import doctor as checks
from embershard import formats
from embershard.cli import archive, show
from embershard.cli.answer import Answer
from embershard.cli.flags import connected
from embershard.cli.importing import import_vectors
from embershard.cli.request import CHANGES, batches_of, change_of, ids_of, read_request

if TYPE_CHECKING:
    from argparse import Namespace


def lookup(options: Namespace) -> Answer:
    """Vectors of ids."""
    request = read_request(options)
    with connected(options) as client:
        rows = client.lookup(
            batches_of(request),
            dtype=options.dtype,
            min_version=options.min_version,
            pinned_version=options.pinned_version,
            fingerprint=options.fingerprint,
            with_provenance=options.provenance,
            with_counts=options.counts,
        )
        pooling = show.pooling_of_features(client.describe())
    return Answer(
        document=show.rows_document(rows, pooling, options.dtype),
        lines=show.rows_lines(rows, pooling, options.dtype, request),
    )


def update(options: Namespace) -> Answer:
    """Gradients, values or parents for ids."""
    request = read_request(options, CHANGES)
    kind, change = change_of(request, options)
    batches, fingerprint = batches_of(request), options.fingerprint
    with connected(options) as client:
        match kind:
            case "gradients":
                version = client.update(batches, gradients=change, fingerprint=fingerprint)
            case "values":
                version = client.assign(batches, values=change, fingerprint=fingerprint)
            case _:
                version = client.start(batches, parents=change, fingerprint=fingerprint)
    return Answer(document={"version": version}, lines=[f"version {version}"])


def import_(options: Namespace) -> Answer:
    """Rows from a file of vectors."""
    vectors = formats.read(
        options.file,
        format=options.format,
        integer_ids=options.integer_ids,
        key=options.key,
        metadata=options.metadata,
    )
    with connected(options) as client:
        done = import_vectors(client, options.feature, vectors, source=str(options.file))
    left_out = [f"left out {done.left_out} (the padding id, which answers zeros by itself)"] * (done.left_out > 0)
    return Answer(document=asdict(done), lines=[f"version {done.version}", f"rows {done.rows:,}", *left_out])


def grow(options: Namespace) -> Answer:
    """More rows for a table."""
    with connected(options) as client:
        grown = client.grow(
            options.table,
            rows=options.rows,
            capacity=options.capacity,
            mean=options.mean,
            mean_of=dict([options.mean_of]) if options.mean_of else None,
            timeout_s=options.timeout,
        )
    return Answer(
        document={"version": grown.version, "rows": grown.rows, "pause_ms": grown.pause_ms},
        lines=[f"version {grown.version}", f"rows {grown.rows:,}", f"calls waited {grown.pause_ms:,.1f} ms"],
    )


def freeze(options: Namespace) -> Answer:
    """Rows that stay as they are, or move again."""
    with connected(options) as client:
        frozen = client.freeze(ids_of(options), thaw=options.thaw)
    return Answer(
        document={"version": frozen.version, "rows": frozen.rows},
        lines=[f"version {frozen.version}", f"rows {frozen.rows:,}"],
    )


def describe(options: Namespace) -> Answer:
    """The collection that is served."""
    with connected(options) as client:
        description = client.describe()
    return Answer(document=show.description_document(description), lines=show.description_lines(description))


def snapshot(options: Namespace) -> Answer:
    """A snapshot on the server's disk; or what there is to say of those that were written."""
    for path, told in (
        (options.verify, archive.verify_snapshot),
        (options.check, archive.check_snapshot),
        (options.list, archive.list_snapshots),
    ):
        if path is not None:
            return told(options)
    with connected(options) as client:
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

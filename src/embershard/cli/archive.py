"""What each command does that works on snapshots, without a server."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from embershard import doctor, formats
from embershard.cli import show_diff, show_snapshots
from embershard.cli.answer import Answer, need_packages

if TYPE_CHECKING:
    from argparse import Namespace


def verify_snapshot(options: Namespace) -> Answer:
    """Whether all bytes and rows of a snapshot are as they were written."""
    _prepare("snapshot --verify")
    from embershard.store.loading import check_rows
    from embershard.store.manifest import find_snapshot

    found = find_snapshot(options.verify)
    check_rows(found)
    files, tensors, rows = len(found.manifest["files"]), len(found.tensors), sum(found.rows.values())
    told = {"version": found.version, "path": str(found.path), "bytes": found.bytes}
    return Answer(
        document={**told, "files": files, "tensors": tensors, "rows": rows},
        lines=[
            *(f"{name} {value:,}" if name == "bytes" else f"{name} {value}" for name, value in told.items()),
            f"whole: all checksums are right (files {files:,}, tensors {tensors:,}, rows {rows:,})",
        ],
    )


def check_snapshot(options: Namespace) -> Answer:
    """What the rows of each tensor of a snapshot add up to, as its manifest says."""
    from embershard.store.manifest import find_snapshot

    found = find_snapshot(options.check)
    document = {
        "version": found.version,
        "path": str(found.path),
        "fingerprint": found.manifest["fingerprint"],
        "world_size": found.world_size,
        "tensors": {
            name: {"checksum": told["checksum"], "rows": told["shape"][0], "dtype": told["dtype"]}
            for name, told in found.tensors.items()
        },
    }
    return Answer(document=document, lines=show_snapshots.checksum_lines(document))


def list_snapshots(options: Namespace) -> Answer:
    """The snapshots of a data directory."""
    from embershard.errors import SnapshotError
    from embershard.store.manifest import open_snapshot, snapshots_in

    listed: list[dict[str, Any]] = []
    for path in snapshots_in(options.list):
        try:
            found = open_snapshot(path)
        except SnapshotError as error:
            listed.append({"version": int(path.name), "path": str(path), "problem": str(error)})
        else:
            sizes = {"bytes": found.bytes, "world_size": found.world_size}
            listed.append({"version": found.version, "path": str(path), **sizes})
    return Answer(document={"snapshots": listed}, lines=show_snapshots.list_lines(listed))


def export(options: Namespace) -> Answer:
    """The vectors of a table's ids, in a file."""
    _prepare("export")
    from embershard.store import offline

    found = offline.find_snapshot(options.snapshot)
    made = offline.export(found, options.table, row_numbers=options.row_numbers)
    formats.write(
        options.file, made.vectors, format=options.format, overwrite=options.overwrite, metadata=options.metadata
    )
    document = {
        "version": found.version,
        "table": options.table,
        "ids": len(made.vectors),
        "dim": made.vectors.dim,
        "unnamed": made.unnamed,
        "integers_as_text": made.integers_as_text,
    }
    lines = [f"version {found.version}", f"ids {len(made.vectors):,}", f"dim {made.vectors.dim:,}"]
    if made.unnamed:
        lines.append(f"left out {made.unnamed:,} rows without a name (--row-numbers writes all rows by number)")
    if made.integers_as_text:
        lines.append(f"as text {made.integers_as_text:,} integer ids, as the others are strings")
    return Answer(document=document, lines=lines)


def diff(options: Namespace) -> Answer:
    """What differs between two snapshots."""
    _prepare("diff")
    from embershard.store.difference import compare
    from embershard.store.offline import find_snapshot

    a, b = find_snapshot(options.a), find_snapshot(options.b)
    document = show_diff.document(a, b, compare(a, b))
    return Answer(document=document, lines=show_diff.lines(document))


def drift(options: Namespace) -> Answer:
    """Which rows moved between two snapshots, and how far."""
    _prepare("drift")
    from embershard.store import drift_report
    from embershard.store.drift import drift
    from embershard.store.offline import find_snapshot

    before, after = find_snapshot(options.before), find_snapshot(options.after)
    document = drift_report.document(drift(before, after, top=options.top))
    return Answer(document=document, lines=drift_report.lines(document), status=1 if document["problems"] else 0)


def remap(options: Namespace) -> Answer:
    """A snapshot with its rows where other lists of names want them."""
    given = dict(options.old_lists)
    if len(given) < len(options.old_lists):
        options.usage_error("--from: give each table one list")
    _prepare("remap")
    from embershard.config import load_config
    from embershard.store import remap as remapping
    from embershard.store.offline import find_snapshot

    config = load_config(options.config)
    made, tables = remapping.remap(find_snapshot(options.snapshot), config, options.output, given)
    counts = {name: asdict(of_table) for name, of_table in tables.items()}
    told = (
        f"table {name}: " + ", ".join(f"{what} {count:,}" for what, count in of_table.items())
        for name, of_table in counts.items()
    )
    return Answer(
        document={"version": made.version, "path": str(made.path), "tables": counts},
        lines=[f"version {made.version}", f"path {made.path}", *told],
    )


def convert(options: Namespace) -> Answer:
    """A snapshot with its rows in fewer bits."""
    _prepare("convert")
    from embershard.config import load_config
    from embershard.store import convert as converting
    from embershard.store.offline import find_snapshot

    old = find_snapshot(options.snapshot)
    made, tables = converting.convert(old, load_config(options.config), options.output)
    told = {"version": made.version, "path": str(made.path), "bytes_before": old.bytes, "bytes": made.bytes}
    return Answer(
        document={**told, "tables": {name: {"before": a, "after": b} for name, (a, b) in tables.items()}},
        lines=[
            f"version {made.version}",
            f"path {made.path}",
            f"bytes {old.bytes:,} before, {made.bytes:,} after",
            *(f"table {name}: {before} before, {after} after" for name, (before, after) in tables.items()),
        ],
    )


def _prepare(command: str) -> None:
    """Before anything that imports torch."""
    need_packages(f"embershard {command}", doctor.SERVER)
    from embershard.quiet import quieten

    quieten()

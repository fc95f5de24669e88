"""Snapshots as lines for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


def checksum_lines(document: Mapping[str, Any]) -> Iterator[str]:
    """What the rows of each tensor add up to, a line a tensor."""
    yield f"version {document['version']}, written by {_ranks(document['world_size'])}"
    yield f"path {document['path']}"
    tensors: Mapping[str, Mapping[str, Any]] = document["tensors"]
    name_width = max(map(len, tensors), default=0)
    rows_width = max((len(f"{told['rows']:,}") for told in tensors.values()), default=0)
    for name, told in tensors.items():
        yield f"  {told['checksum']}  {name:<{name_width}}  {told['rows']:>{rows_width},} rows  {told['dtype']}"


def list_lines(snapshots: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A line a snapshot, oldest first."""
    widths = [max(len(cells[column]) for cells in map(_cells, snapshots)) for column in (0, 1)]
    for told, (version, size) in zip(snapshots, map(_cells, snapshots), strict=True):
        if "problem" in told:
            yield f"version {version:>{widths[0]}}  {told['problem']}"
        else:
            ranks = _ranks(told["world_size"])
            yield f"version {version:>{widths[0]}}  {size:>{widths[1]}} bytes  {ranks}  {told['path']}"


def _cells(told: Mapping[str, Any]) -> tuple[str, str]:
    return str(told["version"]), f"{told.get('bytes', 0):,}"


def _ranks(count: int) -> str:
    return f"{count:,} {'rank' if count == 1 else 'ranks'}"

"""Answers as documents for machines and as lines for people."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from embershard.types import Provenance
from embershard.v1 import embershard_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from embershard.cli.request import Request
    from embershard.doctor import Finding
    from embershard.types import Rows

_WHOLE_DIM, _ENDS = 8, 3
"""Vectors up to this dim are shown whole; of longer ones, this many numbers at either end."""
_WHOLE_BAG = 4
"""Ids of one example that are shown before the rest is counted."""
_NUMBERS = ("rows", "dim", "rate", "parameters", "size")
"""Columns of a description that end where they are compared: on the right."""


def pooling_of_features(description: pb.DescribeResponse) -> dict[str, str]:
    """{feature: none | sum | mean}."""
    return {feature: _pooling(table) for table in description.tables for feature in table.features}


def rows_document(rows: Rows, pooling: Mapping[str, str], dtype: str) -> dict[str, Any]:
    """The vectors of a lookup, and of which dtype they were on the wire; a number that JSON doesn't have (infinite, in
    float16) is null."""
    features = {}
    for feature, vectors_ND in rows.items():
        features[feature] = {
            "dtype": dtype,
            "dim": vectors_ND.shape[1],
            "pooling": pooling[feature],
            "vectors": _json_numbers(vectors_ND),
        }
        if feature in rows.provenance:
            features[feature]["provenance"] = _words(rows.provenance[feature])
        for name, counts in _counts(rows):
            if feature in counts:
                features[feature][name] = counts[feature].tolist()
    return {"version": rows.version, "features": features}


def rows_lines(rows: Rows, pooling: Mapping[str, str], dtype: str, request: Request) -> Iterator[str]:
    """A line per id; per example where its vectors are pooled."""
    yield f"version {rows.version}"
    for feature, vectors_ND in rows.items():
        pooled = pooling[feature] != "none"
        count, dim = vectors_ND.shape
        what = f"{_counted(count, 'example')}, pooled by {pooling[feature]}" if pooled else _counted(count, "id")
        told = _told_of_ids(rows, feature)
        # Numbers alone wouldn't say what they are.
        heads = f" ({', '.join(['id', *told, 'vector'])})" if "updates" in told else ""
        yield f"{feature}: {what}, {dim} × {dtype}{heads}"
        ids = [json.dumps(item, ensure_ascii=False) for item in request[feature]["ids"]]
        lengths = request[feature].get("lengths") if pooled else None
        borders = np.cumsum([0, *([1] * len(ids) if lengths is None else lengths)]).tolist()
        columns = [_bags(column, borders) for column in (ids, *told.values())]
        widths = [max(map(len, column), default=0) for column in columns]
        for *cells, vector_D in zip(*columns, vectors_ND, strict=True):
            yield "  " + "  ".join([*map(str.ljust, cells, widths), _shortened(vector_D)])


def description_document(description: pb.DescribeResponse) -> dict[str, Any]:
    """What Describe tells."""
    return {
        "name": description.name,
        "fingerprint": description.fingerprint,
        "version": description.version,
        "engine": description.engine,
        "world_size": description.world_size,
        "rank": description.rank,
        "server_version": description.server_version,
        "tables": [
            {
                "name": table.name,
                "rows": table.rows,
                "dim": table.dim,
                "dtype": table.dtype,
                "id_kind": table.id_kind,
                "pooling": _pooling(table),
                "optimizer": table.optimizer,
                "learning_rate": table.learning_rate,
                "bytes": table.bytes,
                "features": list(table.features),
                "factor": table.factor or "none",
                "scale": table.scale or "none",
                "normalise": table.normalise or "none",
                "frozen": table.frozen,
                "counts": table.counts,
                "parameters": table.parameters,
                "vocabulary": _vocabulary(table),
            }
            for table in description.tables
        ],
        "published": {"publisher": description.published.publisher, "number": description.published.number}
        if description.HasField("published")
        else None,
        "limits": {
            "message_bytes": description.limits.message_bytes,
            "ids_per_request": description.limits.ids_per_request,
        },
    }


def description_lines(description: pb.DescribeResponse) -> Iterator[str]:
    """What Describe tells, as a small table."""
    yield f"collection {description.name!r}, fingerprint {description.fingerprint}, version {description.version}"
    ranks = f"{_counted(description.world_size, 'rank')}, of which rank {description.rank} answers"
    yield f"{description.engine} engine on {ranks}; server {description.server_version}"
    if description.HasField("published"):
        yield f"has publication {description.published.number:,} of {description.published.publisher}"
    tables = description_document(description)["tables"]
    heads = (
        "table",
        "rows",
        "dim",
        "dtype",
        "ids",
        "pooling",
        "optimizer",
        "rate",
        "parameters",
        "size",
        "made",
        "features",
    )
    cells = [
        (
            table["name"],
            f"{table['rows']:,}",
            str(table["dim"]),
            table["dtype"],
            table["id_kind"],
            table["pooling"],
            table["optimizer"],
            f"{table['learning_rate']:g}",
            f"{table['parameters']:,}",
            _size(table["bytes"]),
            _made(table),
            ", ".join(table["features"]),
        )
        for table in tables
    ]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    for row in (heads, *cells):
        line = (
            cell.rjust(width) if head in _NUMBERS else cell.ljust(width)
            for head, cell, width in zip(heads, row, widths, strict=True)
        )
        yield "  " + "  ".join(line).rstrip()
    yield f"{_size(sum(table.bytes for table in description.tables))} of rows and optimizer state"
    yield from (_vocabulary_line(table) for table in tables if table["vocabulary"])
    limits = description.limits
    yield f"limits: {_size(limits.message_bytes)} a message, {limits.ids_per_request:,} ids a request"


def _vocabulary_line(table: Mapping[str, Any]) -> str:
    of = table["vocabulary"]
    told = ", ".join(f"{name} {of[name]:,}" for name in ("admitted", "evicted", "expired", "rejected"))
    return (
        f"vocabulary of {table['name']}: {of['ids']:,} of {of['capacity']:,} rows are owned; {told}; "
        f"looked up here: own {of['own']:,}, fallback {of['fallback']:,}; {_size(of['bytes'])} on each rank"
    )


def finding_lines(findings: Sequence[Finding]) -> Iterator[str]:
    """A line per finding, and under it what to paste."""
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        yield f"{finding.status:<7}  {finding.name:<{width}}  {finding.found}"
        yield from (f"{'':9}  {command}" for command in finding.remedy.splitlines())
    counts = {status: sum(finding.status == status for finding in findings) for status in ("problem", "warning")}
    yield ", ".join(_counted(count, status) for status, count in counts.items())


def _json_numbers(vectors_ND: NDArray[np.floating[Any]]) -> Any:
    finite_ND = np.isfinite(vectors_ND)
    if finite_ND.all():
        return vectors_ND.tolist()
    numbers_ND = vectors_ND.astype(object)
    numbers_ND[~finite_ND] = None
    return numbers_ND.tolist()


def _pooling(table: pb.Table) -> str:
    return pb.Pooling.Name(table.pooling).removeprefix("POOLING_").lower()


def _vocabulary(table: pb.Table) -> dict[str, int] | None:
    if not table.HasField("vocabulary"):
        return None
    return {field.name: getattr(table.vocabulary, field.name) for field in pb.Vocabulary.DESCRIPTOR.fields}


def _made(table: Mapping[str, Any]) -> str:
    """What stands between a row as it is stored and its vector."""
    made = [table[name] for name in ("factor", "scale", "normalise") if table[name] != "none"]
    return ", ".join(made + ["frozen"] * table["frozen"]) or "-"


def _told_of_ids(rows: Rows, feature: str) -> dict[str, list[str]]:
    """What is told of every id beside its vector, by the name of it."""
    told = {}
    if feature in rows.provenance:
        told["provenance"] = _words(rows.provenance[feature])
    for name, counts in _counts(rows):
        if feature in counts:
            told[name] = [str(count) for count in counts[feature].tolist()]
    return told


def _counts(rows: Rows) -> Iterator[tuple[str, Mapping[str, NDArray[np.int32]]]]:
    yield "updates", rows.updates
    yield "sightings", rows.sightings


def _words(provenance_N: NDArray[np.uint8]) -> list[str]:
    return [Provenance(code).name.lower() for code in provenance_N.tolist()]


def _bags(items: list[str], borders: list[int]) -> list[str]:
    """The items between each two borders, joined; the rest of a long bag is only counted."""
    bags = [items[start:stop] for start, stop in pairwise(borders)]
    return [
        ", ".join(bag[:_WHOLE_BAG]) + (f", … {len(bag) - _WHOLE_BAG} more" if len(bag) > _WHOLE_BAG else "") or "(none)"
        for bag in bags
    ]


def _shortened(vector_D: NDArray[np.floating[Any]]) -> str:
    numbers = [f"{number:10.4g}" for number in vector_D[: _WHOLE_DIM if len(vector_D) <= _WHOLE_DIM else _ENDS]]
    if len(vector_D) > _WHOLE_DIM:
        numbers += ["…", *(f"{number:10.4g}" for number in vector_D[-_ENDS:])]
    return " ".join(numbers)


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _size(count: int) -> str:
    """1,536 → 1.5 KiB."""
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{count} B" if unit == "B" else f"{size:,.1f} {unit}"

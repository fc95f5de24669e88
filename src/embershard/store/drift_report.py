"""A drift report as a document for machines and as lines for people, for the command line and for training jobs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from embershard.store.head import FAR_COSINE, FAR_MOVE

if TYPE_CHECKING:
    from embershard.store.drift import Drift, MatrixDrift, RowDrift, TableDrift
    from embershard.store.head import HeadDrift

_NAMED = 3
"""Frozen rows that a problem names; the document has more."""


def document(drift: Drift) -> dict[str, Any]:
    """All of it, and what is to be said of it: `problems`, which must never be, and `warnings`.

    A number that isn't defined or known, or that JSON doesn't have, is null.
    """
    matrices = [
        (f"table {name!r}" + f" ({matrix})" * (matrix != name), told)
        for name, table in drift.tables.items()
        for matrix, told in table.matrices.items()
    ]
    return {
        "before": drift.before.identity,
        "after": drift.after.identity,
        "tables": {name: _table(table) for name, table in drift.tables.items()},
        "problems": [_problem(where, told) for where, told in matrices if told.frozen_moved],
        "warnings": [_warning(where, told.head) for where, told in matrices if told.head and told.head.overwritten],
    }


def lines(told: Mapping[str, Any]) -> Iterator[str]:
    """A line per finding of a document, the gravest last, where they are seen."""
    for when in ("before", "after"):
        of = told[when]
        yield f"{when}: {of['path']}"
        yield f"   collection {of['collection']!r}, version {of['version']}, fingerprint {of['fingerprint']}"
    for name, table in told["tables"].items():
        yield f"table {name}:{_changed(table)}"
        for matrix, rows in table["matrices"].items():
            yield from (f"  {line}" for line in _matrix_lines(matrix, rows))
    for kind in ("warning", "problem"):
        yield from (f"{kind}: {text}" for text in told[f"{kind}s"])


def _table(table: TableDrift) -> dict[str, Any]:
    ids = table.ids
    return {
        "rows": dict(zip(("before", "after"), table.rows, strict=True)),
        "ids": None if ids is None else {"added": len(ids.added), "gone": len(ids.gone)},
        "matrices": {name: _matrix(matrix) for name, matrix in table.matrices.items()},
    }


def _matrix(matrix: MatrixDrift) -> dict[str, Any]:
    return {
        **asdict(matrix),
        "most_moved": _rows(matrix.most_moved),
        "frozen_most_moved": _rows(matrix.frozen_most_moved),
        "head": None if matrix.head is None else _head(matrix.head),
    }


def _head(head: HeadDrift) -> dict[str, Any]:
    return {
        "rows": head.rows,
        "moved": head.moved,
        "far": head.far,
        "effective_rows": dict(zip(("before", "since"), head.effective_rows, strict=True)),
        "narrow": head.narrow,
    }


def _rows(rows: Sequence[RowDrift]) -> list[dict[str, Any]]:
    return [{name: _json_number(value) for name, value in asdict(row).items()} for row in rows]


def _json_number(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _problem(where: str, matrix: MatrixDrift) -> str:
    farthest = ", ".join(_name(asdict(row)) for row in matrix.frozen_most_moved[:_NAMED])
    return (
        f"{where}: {matrix.frozen_moved:,} of {matrix.frozen:,} frozen rows moved (farthest: {farthest}); frozen rows "
        "stay bit for bit: if nobody thawed them in between, don't serve what came after, and please report a defect "
        "of embershard"
    )


def _warning(where: str, head: HeadDrift) -> str:
    before, since = head.effective_rows
    return (
        f"{where}: {head.far:,} of {head.rows:,} head rows, which had half of all sightings, moved far (cosine under "
        f"{FAR_COSINE:g}, or by over {FAR_MOVE:g} of their length) on narrow data: it is spread as over {since:,.1f} "
        f"rows, and what came before as over {before:,.1f}; freeze ids or tables, lower the learning rate, or mix in "
        "older data"
    )


def _changed(table: Mapping[str, Any]) -> str:
    """What else became of it than that rows moved."""
    before, after = table["rows"]["before"], table["rows"]["after"]
    told = [f"{before:,} rows, then {after:,}"] * (before != after)
    told += [f"ids {what}: {count:,}" for what, count in (table["ids"] or {}).items() if count]
    return f" {', '.join(told)}" if told else ""


def _matrix_lines(name: str, of: Mapping[str, Any]) -> Iterator[str]:
    share = of["moved"] / max(1, of["compared"])
    frozen = f", {of['frozen']:,} are frozen" * (of["frozen"] > 0)
    moved = f"{of['moved']:,} of {of['compared']:,} rows moved ({share:.1%})"
    trained = "" if of["trained"] is None else f", {of['trained']:,} trained"
    yield f"{name}: {moved}{trained}{frozen}"
    for what, told in (("relative move", of["relative"]), ("cosine", of["cosine"])):
        if told is not None:
            yield f"  {what}: " + ", ".join(f"{quantile} {value:.4g}" for quantile, value in told.items())
    head = of["head"]
    if of["moved"] and head is None:
        yield "  head: not known, nor what was trained, as rows aren't counted in both (`counts = true` of the table)"
    elif of["moved"]:
        yield (
            f"  head: {head['moved']:,} of {head['rows']:,} rows moved, {head['far']:,} far; sightings spread as over "
            f"{head['effective_rows']['before']:,.1f} rows before, {head['effective_rows']['since']:,.1f} since"
        )
    for row in of["most_moved"]:
        numbers = ", ".join(f"{what} {_shown(row[what])}" for what in ("move", "relative", "cosine"))
        updates = "" if row["updates"] is None else f", updates {row['updates']:,} + {row['updates_since']:,}"
        yield f"  {_name(row)}: {numbers}{updates}"


def _name(row: Mapping[str, Any]) -> str:
    """By its id, or by its number if it has none."""
    return f"row {row['row']}" if row["id"] is None else f"id {json.dumps(row['id'], ensure_ascii=False)}"


def _shown(number: float | None) -> str:
    return "undefined" if number is None else f"{number:.4g}"

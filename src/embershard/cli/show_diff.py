"""What differs between two snapshots, as a document for machines and as lines for people."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from embershard.store.difference import Difference, TableDifference
    from embershard.store.manifest import Snapshot

_EXAMPLES = 10
"""Ids that are named before the rest is only counted."""


def document(a: Snapshot, b: Snapshot, difference: Difference) -> dict[str, Any]:
    """All of it, of many ids a few examples."""
    return {
        "a": a.identity,
        "b": b.identity,
        "layout": list(difference.layout),
        "only_in_a": list(difference.only[0]),
        "only_in_b": list(difference.only[1]),
        "tables": {name: _table(table) for name, table in difference.tables.items()},
    }


def lines(told: Mapping[str, Any]) -> Iterator[str]:
    """A line per finding; what is the same is hardly mentioned."""
    for name in ("a", "b"):
        of = told[name]
        yield f"{name.upper()}: {of['path']}"
        yield f"   collection {of['collection']!r}, version {of['version']}, fingerprint {of['fingerprint']}"
    yield "layout: " + ("differs (here: A, there: B)" if told["layout"] else "the same")
    yield from (f"  {line}" for line in told["layout"])
    for name in ("a", "b"):
        yield from (f"table {table}: only in {name.upper()}" for table in told[f"only_in_{name}"])
    for name, table in told["tables"].items():
        found = list(_table_lines(table))
        yield f"table {name}:" + ("" if found else " the same")
        yield from (f"  {line}" for line in found)


def _table(table: TableDifference) -> dict[str, Any]:
    ids = None
    if table.ids is not None:
        moved = [{"id": key, "a": row_a, "b": row_b} for key, row_a, row_b in table.ids.moved[:_EXAMPLES]]
        ids = {
            "added": _counted(table.ids.added, table.ids.added[:_EXAMPLES]),
            "gone": _counted(table.ids.gone, table.ids.gone[:_EXAMPLES]),
            "moved": _counted(table.ids.moved, moved),
        }
    return {
        "rows": dict(zip("ab", table.rows, strict=True)),
        "optimizers": dict(zip("ab", table.optimizers, strict=True)),
        "ids": ids,
        "weights": {
            name: {"compared": rows.compared, "differing": rows.differing, "largest": rows.largest}
            for name, rows in table.weights.items()
        },
    }


def _counted(items: Sequence[Any], examples: Sequence[Any]) -> dict[str, Any]:
    return {"count": len(items), "examples": list(examples)}


def _table_lines(table: Mapping[str, Any]) -> Iterator[str]:
    for what, shown in (("rows", "{:,}"), ("optimizers", "{}")):
        a, b = table[what]["a"], table[what]["b"]
        if a != b:
            yield f"{what}: {shown.format(a)} in A, {shown.format(b)} in B"
    for what, found in (table["ids"] or {}).items():
        if found["count"]:
            examples = ", ".join(_example(example) for example in found["examples"])
            more = found["count"] - len(found["examples"])
            yield f"ids {what}: {found['count']:,} ({examples}{f', … {more:,} more' if more else ''})"
    for matrix, rows in table["weights"].items():
        if rows["differing"]:
            yield (
                f"weights of {matrix}: {rows['differing']:,} of {rows['compared']:,} rows differ, "
                f"by {rows['largest']:.3g} at most"
            )


def _example(example: Any) -> str:
    if isinstance(example, dict):
        return f"{json.dumps(example['id'], ensure_ascii=False)}: row {example['a']:,} → {example['b']:,}"
    return json.dumps(example, ensure_ascii=False)

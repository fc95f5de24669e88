"""What decides which vector an id gets, how it is named, and where two of them differ."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

_ABSENT = object()
GROWING = ("direct", "vocabulary")
"""Kinds of ids whose tables may grow: more rows change no vector that was there before, so that their number isn't part
of the fingerprint."""
_BITS = {"float32": 32, "float16": 16, "int8": 8}
_DIFFERENCES = 6
"""Those of a layout that are spelled out; more would bury the message."""


def fingerprint_of(layout: dict[str, Any]) -> str:
    """Names a layout: 16 hexadecimal digits of a SHA-256."""
    canonical = json.dumps(_identity(layout), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def layout_difference(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """Spells out where two layouts answer differently, one line a place: `tables.user.dim: 5 here, 6 there`."""
    return difference(_identity(ours), _identity(theirs))


def narrowed(layout: dict[str, Any], dtypes: Mapping[str, str]) -> dict[str, Any]:
    """A layout of rows as it is once they are stored in these dtypes, {table: dtype}, where those take fewer bits."""

    def narrower(name: str, dtype: str) -> str:
        other = dtypes.get(name, dtype)
        return other if 0 < _BITS.get(other, 0) < _BITS.get(dtype, 0) else dtype

    tables = {name: {**table, "dtype": narrower(name, table["dtype"])} for name, table in layout["tables"].items()}
    return {**layout, "tables": tables}


def spelled_out(lines: list[str]) -> str:
    """The first of these differences, and how many there are besides."""
    more = len(lines) - _DIFFERENCES
    return "; ".join(lines[:_DIFFERENCES]) + (f"; and {more} more" * (more > 0))


def _identity(layout: dict[str, Any]) -> dict[str, Any]:
    """A layout without the rows of tables that may grow."""
    tables = {
        name: {key: value for key, value in table.items() if key != "rows" or table["ids"]["kind"] not in GROWING}
        for name, table in layout["tables"].items()
    }
    return {**layout, "tables": tables}


def difference(ours: dict[str, Any], theirs: dict[str, Any], path: str = "") -> list[str]:
    """Spells out where two descriptions differ, one line a place."""
    lines = []
    for key in sorted(ours.keys() | theirs.keys()):
        where = f"{path}.{key}".lstrip(".")
        mine, other = (side.get(key, _ABSENT) for side in (ours, theirs))
        if isinstance(mine, dict) and isinstance(other, dict):
            lines += difference(mine, other, where)
        elif mine != other:
            short = (
                "present" if isinstance(side, dict) else "absent" if side is _ABSENT else repr(side)
                for side in (mine, other)
            )
            lines.append(f"{where}: {next(short)} here, {next(short)} there")
    return lines

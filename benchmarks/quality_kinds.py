"""Kinds of tables, and the largest of each kind that fits into a share of a full table's bytes.

What is counted is what grows with a table: stored numbers, padded as the engine pads them, and the optimizer's state.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

DIM: Final = 32
"""Numbers in a vector of a full table."""
_PADDED_TO: Final = 4
"""Rows are stored in multiples of so many numbers, which FBGEMM's kernels want."""
_STATE_BYTES: Final = 4
"""Of row-wise Adagrad, a row."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FullTable:
    """A table as it would be if memory were no matter: a row of DIM float32 numbers for every id."""

    name: str
    """The table's name."""
    rows: int
    """Ids, which are 0 ≤ id < rows."""
    features: tuple[str, ...]
    """Features that read it."""
    pooling: Literal["none", "mean"] = "none"
    """Whether an example has one id of a feature, or any number."""

    @property
    def bytes(self) -> int:
        """Of rows and optimizer state."""
        return self.rows * _row_bytes(DIM, 4)


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """One way to make a table smaller."""

    label: str
    """What a reader of the results sees."""
    ids: Literal["direct", "modulo", "k_hash", "vocabulary"] = "direct"
    """Whose rows ids have, once there are fewer rows than ids. Where direct ids have no room, it is modulo."""
    shape: Literal["dense", "narrow", "low_rank", "quotient_remainder"] = "dense"
    """What a row is made of. narrow: fewer numbers, and so narrower vectors."""
    combine: Literal["product", "sum", "concat"] = "product"
    """Of quotient and remainder."""
    half: bool = False
    """Whether numbers are float16."""

    @property
    def item_bytes(self) -> int:
        """Of a stored number."""
        return 2 if self.half else 4


_H: Final = {"half": True}
KINDS: Final[dict[str, Kind]] = {
    "full": Kind(label="full table"),
    "modulo": Kind(label="modulo hashing", ids="modulo"),
    "k_hash": Kind(label="signed 2-hash", ids="k_hash"),
    "vocabulary": Kind(label="vocabulary + fallback", ids="vocabulary"),
    "low_rank": Kind(label="low rank", shape="low_rank"),
    "qr": Kind(label="quotient-remainder", shape="quotient_remainder"),
    "k_hash_fp16": Kind(label="signed 2-hash, fp16", ids="k_hash", half=True),
    "vocabulary_fp16": Kind(label="vocabulary + fallback, fp16", ids="vocabulary", half=True),
    "vocabulary_low_rank": Kind(label="vocabulary + low rank", ids="vocabulary", shape="low_rank"),
    "vocabulary_low_rank_fp16": Kind(
        label="vocabulary + low rank, fp16", ids="vocabulary", shape="low_rank", half=True
    ),
    "low_rank_fp16": Kind(label="low rank, fp16", shape="low_rank", half=True),
    "qr_fp16": Kind(label="quotient-remainder, fp16", shape="quotient_remainder", half=True),
    "qr_sum_fp16": Kind(label="quotient + remainder, fp16", shape="quotient_remainder", combine="sum", half=True),
    "narrow_fp16": Kind(label="fewer dims, fp16", shape="narrow", half=True),
}
"""Every kind that is compared, by its name in the results."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """A table of some kind that fits."""

    table: dict[str, Any]
    """The table in a configuration, its start and optimizer left out."""
    bytes: int
    """Of rows and optimizer state, by arithmetic."""


def plan(kind: Kind, full: FullTable, fraction: float) -> Plan:
    """The largest table of this kind in a share of the full table's bytes."""
    budget = int(full.bytes * fraction)
    fitting = [shape for shape in _shapes(kind, full, budget) if shape.bytes <= budget]
    # Wide rows first, as long as half of the ids could have one; where none could, as many rows as there is room for.
    roomy = [shape for shape in fitting if 2 * shape.rows >= full.rows]
    best = max(roomy, key=lambda shape: (shape.width, shape.rows)) if roomy else max(fitting, key=lambda s: s.rows)
    table = {
        "name": full.name,
        "rows": best.rows,
        "dim": best.dim,
        "features": list(full.features),
        "pooling": full.pooling,
        "dtype": "float16" if kind.half else "float32",
        "ids": _ids(kind, best.rows, full.rows),
    }
    return Plan(table=table | ({"factor": best.factor} if best.factor else {}), bytes=best.bytes)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Shape:
    """Rows of some make; `width` says which is better."""

    rows: int
    dim: int
    width: int
    bytes: int
    factor: dict[str, Any] | None = None


def _shapes(kind: Kind, full: FullTable, budget: int) -> Iterator[_Shape]:
    """Shapes of which the best that fits is taken: for every width as many rows as fit."""
    direct = kind.ids == "direct"
    match kind.shape:
        case "dense":
            row_bytes = _row_bytes(DIM, kind.item_bytes)
            rows = min(full.rows, budget // row_bytes)
            yield _Shape(rows=rows, dim=DIM, width=DIM, bytes=rows * row_bytes)
        case "narrow" | "low_rank":
            for width in range(_PADDED_TO, DIM, _PADDED_TO):
                shared = width * _row_bytes(DIM, 4) if kind.shape == "low_rank" else 0
                row_bytes = _row_bytes(width, kind.item_bytes)
                rows = min(full.rows, (budget - shared) // row_bytes)
                # With ids of their own, narrower rows for all beat wider ones for some; the narrowest may be shared.
                if rows >= 2 and (rows == full.rows or not direct or width == _PADDED_TO):
                    factor = {"kind": "low_rank", "rank": width} if shared else None
                    dim = DIM if shared else width
                    yield _Shape(rows=rows, dim=dim, width=width, bytes=shared + rows * row_bytes, factor=factor)
        case "quotient_remainder":
            yield _quotient_remainder(kind, full.rows, budget // _row_bytes(DIM, kind.item_bytes))


def _quotient_remainder(kind: Kind, ids: int, most: int) -> _Shape:
    """The fewest remainders, so the most quotients, that fit; where no pair of matrices does, fewer pairs than ids."""
    pairs = min(ids, most * most // 4)
    remainders = next((r for r in range(1, pairs + 1) if -(-pairs // r) + r <= most), math.isqrt(pairs))
    factor = {"kind": "quotient_remainder", "combine": kind.combine, "remainders": remainders}
    stored = -(-pairs // remainders) + remainders
    return _Shape(rows=pairs, dim=DIM, width=DIM, bytes=stored * _row_bytes(DIM, kind.item_bytes), factor=factor)


def _ids(kind: Kind, rows: int, ids: int) -> dict[str, Any]:
    if rows >= ids:
        return {"kind": "direct"}
    match kind.ids:
        case "direct" | "modulo":
            return {"kind": "hashed", "hashes": 1, "signed": False}
        case "k_hash":
            return {"kind": "hashed", "hashes": min(2, rows), "signed": True}
        case "vocabulary":
            # Half of the rows are for ids without one of their own, or fewer, if those are no more than four a row.
            fallback = max(1, min(rows // 2, (ids - rows) // 3))
            hashing = {"fallback_rows": fallback, "hashes": min(2, fallback), "signed": True}
            return {"kind": "vocabulary", "admit_after": 1, "evict": "lfu", **hashing}


def _row_bytes(dim: int, item_bytes: int) -> int:
    return -(-dim // _PADDED_TO) * _PADDED_TO * item_bytes + _STATE_BYTES

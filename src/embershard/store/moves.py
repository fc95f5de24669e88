"""How far the rows of a matrix moved between two snapshots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from embershard.store.pairing import blocks

if TYPE_CHECKING:
    from embershard.store.manifest import Snapshot

RELATIVE_QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "largest": 1.0}
"""Of relative moves, towards the far end."""
COSINE_QUANTILES = {"p50": 0.5, "p10": 0.1, "p1": 0.01, "smallest": 0.0}
"""Of cosines, likewise."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Moves:
    """V of some pairs of rows, before and after: those with a number that differs; not that they are both NaN."""

    pairs_V: Tensor
    """int64: which of the pairs."""
    move_V: Tensor
    """float64: |after − before|; not finite if a number isn't."""
    relative_V: Tensor
    """float64: the same by |before|; NaN if that is 0 or not finite, or the move isn't."""
    cosine_V: Tensor
    """float64: of before and after; NaN if either is 0 or not finite."""

    @classmethod
    def of(cls, before: Snapshot, after: Snapshot, matrix: str, which: tuple[Tensor, Tensor]) -> Moves:
        """Of these rows of a matrix, int64 [M] before and after.

        Raises:
            SnapshotError: one can't be read.
        """
        columns = [(torch.empty(0, dtype=torch.int64), *(torch.empty(0, dtype=torch.float64) for _ in range(3)))]
        for start, before_ND, after_ND in blocks(before, after, matrix, which):
            differ_ND = (before_ND != after_ND) & ~(before_ND.isnan() & after_ND.isnan())
            at_V = differ_ND.any(dim=1).nonzero()[:, 0]
            # In double precision, where no square of theirs is too large or too small.
            columns.append((at_V + start, *_measured(before_ND[at_V].double(), after_ND[at_V].double())))
        pairs_V, move_V, relative_V, cosine_V = (torch.cat(column) for column in zip(*columns, strict=True))
        return cls(pairs_V=pairs_V, move_V=move_V, relative_V=relative_V, cosine_V=cosine_V)


def quantiles(values_V: Tensor, wanted: Mapping[str, float]) -> dict[str, float] | None:
    """{name: value} of those that are defined, between two of them in proportion; None if none is."""
    defined_V = values_V[~values_V.isnan()].numpy()
    if not len(defined_V):
        return None
    return dict(zip(wanted, np.quantile(defined_V, list(wanted.values())).tolist(), strict=True))


def _measured(before_VD: Tensor, after_VD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    move_V, length_V, length_after_V = (rows_VD.norm(dim=1) for rows_VD in (after_VD - before_VD, before_VD, after_VD))
    relative_V = move_V / length_V
    cosine_V = (before_VD * after_VD).sum(dim=1) / (length_V * length_after_V)
    defined_V = move_V.isfinite() & (length_V > 0)
    undefined = torch.tensor(torch.nan, dtype=torch.float64)
    return move_V, torch.where(defined_V, relative_V, undefined), cosine_V.clamp(-1, 1)

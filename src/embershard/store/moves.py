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
        pairs = len(which[0])
        # Made once: of small tensors that stay between blocks that go, holes would remain in memory.
        differ_M, measured_3M = torch.zeros(pairs, dtype=torch.bool), torch.empty(3, pairs, dtype=torch.float64)
        for start, before_ND, after_ND in blocks(before, after, matrix, which):
            differ_ND = (before_ND != after_ND) & ~(before_ND.isnan() & after_ND.isnan())
            differ_N = differ_M[start : start + len(differ_ND)].copy_(differ_ND.any(dim=1))
            # In double precision, where no square of theirs is too large or too small.
            measured_3V = _measured(before_ND[differ_N].double(), after_ND[differ_N].double())
            measured_3M[:, start : start + len(differ_ND)][:, differ_N] = measured_3V
        move_V, relative_V, cosine_V = measured_3M[:, differ_M]
        return cls(pairs_V=differ_M.nonzero()[:, 0], move_V=move_V, relative_V=relative_V, cosine_V=cosine_V)


def quantiles(values_V: Tensor, wanted: Mapping[str, float]) -> dict[str, float] | None:
    """{name: value} of those that are defined, between two of them in proportion; None if none is."""
    defined_V = values_V[~values_V.isnan()].numpy()
    if not len(defined_V):
        return None
    return dict(zip(wanted, np.quantile(defined_V, list(wanted.values())).tolist(), strict=True))


def _measured(before_VD: Tensor, after_VD: Tensor) -> Tensor:
    """[3, V]: move, relative move and cosine."""
    move_V, length_V, length_after_V = (rows_VD.norm(dim=1) for rows_VD in (after_VD - before_VD, before_VD, after_VD))
    relative_V = torch.where(move_V.isfinite() & (length_V > 0), move_V / length_V, torch.nan)
    cosine_V = (before_VD * after_VD).sum(dim=1) / (length_V * length_after_V)
    return torch.stack([move_V, relative_V, cosine_V.clamp(-1, 1)])

"""What became of the head: the rows that training had named most, and whether narrow data has overwritten them.

Between embeddings of two times, the cosine tells how much a meaning has changed, and what is frequent changes least
(Hamilton, Leskovec and Jurafsky 2016). Training on narrow data can break that: what many examples taught, a few
overwrite (catastrophic forgetting, McCloskey and Cohen 1989). So there is a warning where all of this is true:

- head: a row is one of the fewest that together have half of all sightings before;
- far: its cosine is under 0.9 or its relative move over 0.5;
- narrow: the sightings since are spread over under half as many *effective rows* as those before. These are exp(H) with
  H the entropy of the rows' shares, which is n for n rows that are sighted alike (Hill's number of order 1, Jost 2006).

One row is enough, as narrow data reaches few. The bounds are no more than a choice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from embershard.store.moves import Moves

HEAD_SHARE = 0.5
"""Of the sightings before, that the head has."""
FAR_COSINE = 0.9
"""A row with a smaller one moved far."""
FAR_MOVE = 0.5
"""A row with a larger relative move did, too."""
NARROW_SHARE = 0.5
"""Of the effective rows before; data that reaches fewer is narrow."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadDrift:
    """The head of one matrix."""

    rows: int
    """How many it has."""
    moved: int
    """Of those, how many moved."""
    far: int
    """Of those, how many moved far."""
    effective_rows: tuple[float, float]
    """Over which the sightings of all rows are spread, before and since; 0 where there are none."""

    @property
    def narrow(self) -> bool:
        """Whether the sightings since reach few rows."""
        before, since = self.effective_rows
        return since < NARROW_SHARE * before

    @property
    def overwritten(self) -> bool:
        """Whether any row of it moved far on narrow data."""
        return self.narrow and self.far > 0


def head_drift(sightings_R: Tensor, since_S: Tensor, moved_V: Tensor, moves: Moves) -> HeadDrift:
    """What became of the head.

    int32 [R], sightings of each row before; int32 [S], those since of each row after; int64 [V], the rows before that
    moved; and how far they did.
    """
    head_R = head_of(sightings_R)
    of_head_V = head_R[moved_V]
    # Of what isn't defined, it isn't known that it is near.
    near_V = (moves.cosine_V >= FAR_COSINE) & (moves.relative_V <= FAR_MOVE)
    return HeadDrift(
        rows=int(head_R.sum()),
        moved=int(of_head_V.sum()),
        far=int((of_head_V & ~near_V).sum()),
        effective_rows=(effective_rows(sightings_R), effective_rows(since_S)),
    )


def head_of(sightings_R: Tensor) -> Tensor:
    """bool [R]: the fewest rows that together have half of all sightings; of rows that have as many, the first."""
    sorted_R, order_R = sightings_R.sort(descending=True, stable=True)
    sums_R = sorted_R.cumsum(dim=0)
    head_R = torch.zeros(len(sightings_R), dtype=torch.bool)
    # A row is of the head if those that have more don't have half yet.
    head_R[order_R] = (sorted_R > 0) & (sums_R - sorted_R < HEAD_SHARE * sums_R[-1].double())
    return head_R


def effective_rows(sightings_R: Tensor) -> float:
    """exp of the entropy of the rows' shares of sightings; 0 without any."""
    if not sightings_R.any():
        return 0.0
    shares_R = sightings_R.double() / sightings_R.sum()
    return float(torch.special.entr(shares_R).sum().exp())

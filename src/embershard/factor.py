"""Stored rows → rows of a table → vectors, and gradients the same road back; see `config.tables` for what is stored.

Low rank: r numbers of a row travel, and every rank keeps a copy of the projection. Quotient and remainder: Shi et al.
2020, "Compositional embeddings using complementary partitions".
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from embershard.config import QuotientRemainder, TableSpec

_SMALLEST = 1e-12
"""Added under the root of a squared length, so that a row of zeros has a direction: none."""
_LAYER_EPS = 1e-5
"""Added to the variance, as torch.nn.LayerNorm does."""


def stored_rows(table: TableSpec, rows_M: Tensor) -> list[Tensor]:
    """Row numbers of a table → row numbers of its matrices, without the shared one."""
    if isinstance(table.factor, QuotientRemainder):
        quotient_M = rows_M // table.remainders
        return [quotient_M, rows_M - quotient_M * table.remainders]
    return [rows_M]


def combine(table: TableSpec, stored: Sequence[Tensor]) -> Tensor:
    """Rows of the matrices [M, …] → rows of the table [M, D], or [M, r] where a projection is still to come."""
    if not isinstance(table.factor, QuotientRemainder):
        return stored[0]
    first_MD, second_MD = stored
    match table.factor.combine:
        case "product":
            return first_MD * second_MD
        case "sum":
            return first_MD + second_MD
        case "concat":
            return torch.cat([first_MD, second_MD], dim=1)


def spread(table: TableSpec, gradients_MD: Tensor) -> list[Tensor]:
    """Gradients of rows of the table → of rows of its matrices, where `combine` is linear."""
    if not isinstance(table.factor, QuotientRemainder):
        return [gradients_MD]
    if table.factor.combine == "concat":
        return list(gradients_MD.chunk(2, dim=1))
    return [gradients_MD, gradients_MD]


def finish(table: TableSpec, rows_ND: Tensor, projection_RD: Tensor | None) -> Tensor:
    """Sums of rows → vectors: projected, scaled, normalised."""
    if projection_RD is not None:
        rows_ND = rows_ND @ projection_RD
    if table.scale == "sqrt_dim":
        rows_ND = rows_ND * table.dim**0.5
    match table.normalise:
        case "l2":
            return rows_ND * (rows_ND.square().sum(dim=1, keepdim=True) + _SMALLEST).rsqrt()
        case "layer":
            return torch.nn.functional.layer_norm(rows_ND, [table.dim], eps=_LAYER_EPS)
        case _:
            return rows_ND

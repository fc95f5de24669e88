"""Gathered rows → what was asked for: sign, weight, pool; and gradients the same road back.

All of it is one sparse linear map: output b is the sum over its rows m of `coefficient[m] * row[m]`. Signs, k hashes,
weights, means, padding ids and empty bags only decide the coefficients and which rows belong to b.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from embershard.errors import InvalidInput
from embershard.ids import IdRows, rows_of
from embershard.types import FeatureBatch, Provenance

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embershard.config import TableSpec


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RowBatch:
    """The linear map of one feature's batch."""

    batch: FeatureBatch
    """What was asked for."""
    table: TableSpec
    """Where its rows are."""
    ids: IdRows
    """The rows of its ids."""
    offsets: NDArray[np.int64] | None
    """int64 [B + 1]: the rows of output b are offsets[b] to offsets[b + 1]; None: one row an output."""
    coefficients_M: NDArray[np.float32] | None
    """None: all 1."""

    @classmethod
    def of(cls, table: TableSpec, seed: int, batch: FeatureBatch) -> RowBatch:
        """Maps a batch of one of the table's features; `seed` is the collection's.

        Raises:
            InvalidInput: an id out of range or of the wrong kind, or weights where nothing is pooled.
        """
        if batch.weights is not None and table.pooling == "none":
            raise InvalidInput(f"feature {batch.feature!r}: weights need pooling, and table {table.name!r} has none")
        ids = rows_of(table, seed, batch)
        counts_B = _ids_per_output(table, batch, ids.kept_N)
        coefficients_M = _coefficients(table, batch, ids, counts_B)
        hashes = ids.rows_nK.shape[1]
        one_each = hashes == 1 and bool((counts_B == 1).all())
        offsets = None if one_each else np.concatenate([[0], np.cumsum(counts_B) * hashes])
        return cls(batch=batch, table=table, ids=ids, offsets=offsets, coefficients_M=coefficients_M)

    @property
    def rows_M(self) -> Tensor:
        """int64: the rows to gather, ids in order, the k rows of one id together."""
        return tensor_of(self.ids.rows_nK.reshape(-1))

    @property
    def outputs(self) -> int:
        """Vectors that are answered: examples if pooled, else ids."""
        return len(self.batch.ids) if self.table.pooling == "none" else self.batch.examples

    def compose(self, rows_MD: Tensor) -> Tensor:
        """Gathered rows → answers [outputs, D]."""
        weights_M = self._weights(rows_MD.device)
        if self.offsets is None:
            return rows_MD if weights_M is None else rows_MD * weights_M[:, None]
        return embedding_bag(
            torch.arange(len(rows_MD), device=rows_MD.device),
            rows_MD,
            tensor_of(self.offsets).to(rows_MD.device),
            mode="sum",
            per_sample_weights=weights_M,
            include_last_offset=True,
        )

    def pull(self, gradients_BD: Tensor) -> Tensor:
        """Gradients of the answers → gradients of the gathered rows [M, D]: the adjoint of `compose`.

        It is what autograd gives (a test compares them), without the rows, which a linear map's gradient doesn't need.
        """
        weights_M = self._weights(gradients_BD.device)
        if self.offsets is not None:
            counts = tensor_of(self.offsets).to(gradients_BD.device).diff()
            gradients_BD = gradients_BD.repeat_interleave(counts, dim=0)
        return gradients_BD if weights_M is None else gradients_BD * weights_M[:, None]

    def _weights(self, device: torch.device) -> Tensor | None:
        return None if self.coefficients_M is None else tensor_of(self.coefficients_M).to(device)

    def provenance_N(self, trained_M: NDArray[np.bool_]) -> NDArray[np.uint8]:
        """Where each id's vector comes from, given which of the gathered rows an update has reached."""
        trained_n = trained_M.reshape(self.ids.rows_nK.shape).any(axis=1)
        known = Provenance.OWN_ROW if self.ids.own else Provenance.FALLBACK
        kinds_n = np.where(trained_n, known, Provenance.UNTRAINED).astype(np.uint8)
        if self.ids.kept_N is None:
            return kinds_n
        kinds_N = np.full(len(self.batch.ids), Provenance.PADDING, np.uint8)
        kinds_N[self.ids.kept_N] = kinds_n
        return kinds_N


def tensor_of(array: NDArray[Any]) -> Tensor:
    """The same numbers as a tensor; without a copy, unless the array is a view of bytes that can't be written."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _ids_per_output(table: TableSpec, batch: FeatureBatch, kept_N: NDArray[np.bool_] | None) -> NDArray[np.int64]:
    """int64 [outputs]: ids that each output sums, padding left out."""
    if table.pooling == "none" or batch.lengths is None:
        return np.ones(len(batch.ids), np.int64) if kept_N is None else kept_N.astype(np.int64)
    if kept_N is None:
        return batch.lengths.astype(np.int64)
    example_N = np.repeat(np.arange(batch.examples), batch.lengths)
    return np.bincount(example_N[kept_N], minlength=batch.examples)


def _coefficients(
    table: TableSpec, batch: FeatureBatch, ids: IdRows, counts_B: NDArray[np.int64]
) -> NDArray[np.float32] | None:
    """float32 [M]: sign × weight ÷ what a mean divides by; None: all 1."""
    weights_n = batch.weights if batch.weights is None or ids.kept_N is None else batch.weights[ids.kept_N]
    if table.pooling == "mean" and (weights_n is not None or bool((counts_B > 1).any())):
        weights_n = _shares(batch.feature, weights_n, counts_B)
    if weights_n is None:
        return None if ids.signs_nK is None else ids.signs_nK.reshape(-1)
    signs_nK = np.float32(1) if ids.signs_nK is None else ids.signs_nK
    return np.ascontiguousarray(np.broadcast_to(weights_n[:, None] * signs_nK, ids.rows_nK.shape)).reshape(-1)


def _shares(feature: str, weights_n: NDArray[np.float32] | None, counts_B: NDArray[np.int64]) -> NDArray[np.float32]:
    """Each id's share of its example's mean: its weight by their sum. Weights that sum to zero answer zeros."""
    if weights_n is None:
        return np.repeat((1 / np.maximum(counts_B, 1)).astype(np.float32), counts_B)
    example_n = np.repeat(np.arange(len(counts_B)), counts_B)
    totals_n = np.bincount(example_n, weights_n, minlength=len(counts_B))[example_n]
    shares_n = np.divide(weights_n, totals_n, out=np.zeros(len(weights_n)), where=totals_n != 0)
    if (np.abs(shares_n) > 1e6).any():
        at = int(np.argmax(np.abs(shares_n)))
        raise InvalidInput(
            f"feature {feature!r}: the weights of example {example_n[at]} cancel almost to zero ({totals_n[at]:g}), "
            "so that their mean has no meaning; give weights of one sign, or pool by sum"
        )
    return shares_n.astype(np.float32)

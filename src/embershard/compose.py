"""Gathered rows → what was asked for: sign, factor, scale, normalise, weight, pool; and gradients the same road back.

It is two sparse linear maps with a function of each vector between them:

    rows ── inner: signs, k hashes ──> ids ── project, scale, normalise ──> vectors ── outer: weights, pool ──> answers

Where nothing is normalised, what is between the maps is linear, too, so that both become one: then the answers of whole
bags are projected, and not every id's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from embershard.arrays import tensor_of
from embershard.config import QuotientRemainder
from embershard.errors import InvalidInput
from embershard.factor import combine, finish, spread, stored_rows
from embershard.ids import IdRows, rows_of
from embershard.sums import ONE_EACH, Sums
from embershard.types import FeatureBatch, Provenance

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from embershard.config import TableSpec


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RowBatch:
    """How the answers for one feature's batch are made of rows."""

    batch: FeatureBatch
    """What was asked for."""
    table: TableSpec
    """Where its rows are."""
    ids: IdRows
    """The rows of its ids."""
    counts_B: NDArray[np.int64] | None
    """int64 [outputs]: ids of each answer, padding left out; None: one each."""
    weights_n: NDArray[np.float32] | None
    """float32 [n]: what an id's vector counts in its answer; None: all 1."""
    inner: Sums
    """Rows → ids, or straight to answers where nothing is normalised."""
    outer: Sums | None
    """Vectors of ids → answers, where vectors are normalised."""

    @classmethod
    def of(cls, table: TableSpec, seed: int, batch: FeatureBatch) -> RowBatch:
        """Maps a batch of one of the table's features; `seed` is the collection's.

        Raises:
            InvalidInput: an id out of range or of the wrong kind, or weights where nothing is pooled.
        """
        if batch.weights is not None and table.pooling == "none":
            raise InvalidInput(f"feature {batch.feature!r}: weights need pooling, and table {table.name!r} has none")
        ids = rows_of(table, seed, batch)
        counts_B = _ids_per_output(table.pooling != "none", batch, ids.kept_N)
        weights_n = _weights(table.pooling == "mean", batch, ids.kept_N, counts_B)
        return cls._with(table, batch, ids, counts_B, weights_n, normalised=table.normalise != "none")

    @classmethod
    def mean_of_rows(cls, table: TableSpec, seed: int, batch: FeatureBatch) -> RowBatch:
        """The means of the rows of a batch's ids, as they are stored: what `inner` makes of them.

        Raises:
            InvalidInput: an id out of range or of the wrong kind.
        """
        ids = rows_of(table, seed, batch)
        counts_B = _ids_per_output(True, batch, ids.kept_N)
        return cls._with(table, batch, ids, counts_B, _weights(True, batch, ids.kept_N, counts_B), normalised=False)

    @classmethod
    def _with(
        cls,
        table: TableSpec,
        batch: FeatureBatch,
        ids: IdRows,
        counts_B: NDArray[np.int64] | None,
        weights_n: NDArray[np.float32] | None,
        *,
        normalised: bool,
    ) -> RowBatch:
        outer: Sums | None = None
        if counts_B is None and weights_n is None and ids.signs_M is None and ids.one_row_each:
            inner, outer = ONE_EACH, ONE_EACH if normalised else None
        elif not normalised:
            inner = Sums.of(_rows_per_output(counts_B, ids), _coefficients(weights_n, ids))
        else:
            inner = Sums.of(_rows_per_output(None, ids), ids.signs_M)
            outer = Sums.of(counts_B, weights_n)
        return cls(batch=batch, table=table, ids=ids, counts_B=counts_B, weights_n=weights_n, inner=inner, outer=outer)

    def settled(self, slots_n: NDArray[np.int64], first_row: int) -> RowBatch:
        """The same with the rows that a vocabulary has given to ids; see `IdRows.settled`."""
        ids = self.ids.settled(slots_n, first_row)
        normalised = self.outer is not None
        return self._with(self.table, self.batch, ids, self.counts_B, self.weights_n, normalised=normalised)

    @property
    def summable(self) -> bool:
        """Whether answers are made of sums of rows of one matrix, which whoever holds the rows can make."""
        return self.outer is None and not isinstance(self.table.factor, QuotientRemainder)

    @property
    def weighted(self) -> bool:
        """Whether rows may be multiplied before they are summed: by the table and the kind of request, and not by what
        its ids are."""
        return self.table.pooling == "mean" or self.table.signed or self.batch.weights is not None

    @property
    def plain(self) -> bool:
        """Whether each answer is one stored row as it is, or zeros for padding."""
        return self.ids.one_row_each and self.ids.signs_M is None and self.table.plain

    @property
    def as_is(self) -> bool:
        """Whether each answer is one stored row as it is, and it is known which."""
        return self.ids.keys is None and self.ids.kept_N is None and self.plain

    @property
    def summed(self) -> RowBatch:
        """The same where rows are stored as the sums that `inner` makes of them."""
        return replace(self, inner=ONE_EACH)

    @property
    def kept(self) -> int:
        """Ids that aren't padding."""
        return len(self.batch.ids) if self.ids.kept_N is None else int(np.count_nonzero(self.ids.kept_N))

    @property
    def rows(self) -> list[Tensor]:
        """int64 [M] for each matrix of the table that ids ask rows of."""
        return stored_rows(self.table, tensor_of(self.ids.rows_M))

    @property
    def outputs(self) -> int:
        """Vectors that are answered: examples if pooled, else ids."""
        return len(self.batch.ids) if self.table.pooling == "none" else self.batch.examples

    def placed(self, rows_MT: Tensor) -> Tensor:
        """Stored rows → answers [outputs, …], where they are `plain`."""
        if self.ids.kept_N is None:
            return rows_MT
        placed_NT = rows_MT.new_zeros(len(self.batch.ids), rows_MT.shape[1])
        placed_NT[tensor_of(self.ids.kept_N).to(rows_MT.device)] = rows_MT
        return placed_NT

    def compose(self, stored: Sequence[Tensor], projection_RD: Tensor | None) -> Tensor:
        """Gathered rows of each matrix → answers [outputs, D]."""
        vectors = finish(self.table, self.inner(combine(self.table, stored)), projection_RD)
        return vectors if self.outer is None else self.outer(vectors)

    def pull(
        self, gradients_BD: Tensor, stored: Sequence[Tensor], projection_RD: Tensor | None
    ) -> tuple[list[Tensor], Tensor | None]:
        """Gradients of the answers → of the rows of each matrix, and of the projection if there is one.

        `stored` are those rows as they are; none are needed where the table's `needs_rows` says so.
        """
        gradients = gradients_BD if self.outer is None else self.outer.pull(gradients_BD)
        if not self.table.needs_rows:
            # Of a linear table, finishing is scaling, which is its own adjoint.
            return spread(self.table, self.inner.pull(finish(self.table, gradients, None))), None
        sums = self.inner(combine(self.table, stored))
        if projection_RD is None:
            (of_sums,) = _through(lambda rows: finish(self.table, rows, None), [sums], gradients)
            of_projection = None
        else:
            of_sums, of_projection = _through(
                lambda rows, shared: finish(self.table, rows, shared), [sums, projection_RD], gradients
            )
        return _through(lambda *rows: combine(self.table, rows), stored, self.inner.pull(of_sums)), of_projection

    def provenance_N(self, trained_M: NDArray[np.bool_]) -> NDArray[np.uint8]:
        """Where each id's vector comes from, given which of its rows an update has reached."""
        known = np.where(self.ids.own, Provenance.OWN_ROW, Provenance.FALLBACK)
        trained_n = self._of_each_id(np.maximum, trained_M.astype(np.uint8))
        kinds_n = np.where(trained_n > 0, known, Provenance.UNTRAINED).astype(np.uint8)
        return self._with_padding(kinds_n, Provenance.PADDING)

    def least_N(self, counts_M: NDArray[np.int32]) -> NDArray[np.int32]:
        """Of each id, the least of its rows' counts; 0 for padding."""
        return self._with_padding(self._of_each_id(np.minimum, counts_M), 0)

    def _of_each_id(self, reduce: np.ufunc, of_rows_M: NDArray[Any]) -> NDArray[Any]:
        count = self.ids.rows_per_id
        if isinstance(count, int):
            return np.asarray(reduce.reduce(of_rows_M.reshape(-1, count), axis=1))
        starts_n = np.concatenate([[0], np.cumsum(count)[:-1]])
        return np.asarray(reduce.reduceat(of_rows_M, starts_n)) if len(count) else of_rows_M

    def _with_padding(self, items_n: NDArray[Any], padding: int) -> NDArray[Any]:
        if self.ids.kept_N is None:
            return items_n
        items_N = np.full(len(self.batch.ids), padding, items_n.dtype)
        items_N[self.ids.kept_N] = items_n
        return items_N


def _through(function: Callable[..., Tensor], inputs: Sequence[Tensor], gradients: Tensor) -> list[Tensor]:
    """Gradients of a function's inputs, by autograd."""
    leaves = [tensor.detach().requires_grad_() for tensor in inputs]
    with torch.enable_grad():
        outputs = function(*leaves)
    return list(torch.autograd.grad(outputs, leaves, gradients))


def _ids_per_output(pooled: bool, batch: FeatureBatch, kept_N: NDArray[np.bool_] | None) -> NDArray[np.int64] | None:
    """int64 [outputs]: ids that each output sums, padding left out; None: one each."""
    if not pooled or batch.lengths is None:
        return None if kept_N is None else kept_N.astype(np.int64)
    if kept_N is None:
        return batch.lengths.astype(np.int64)
    example_N = np.repeat(np.arange(batch.examples), batch.lengths)
    return np.bincount(example_N[kept_N], minlength=batch.examples)


def _rows_per_output(counts_B: NDArray[np.int64] | None, ids: IdRows) -> NDArray[np.int64] | None:
    """int64 [outputs]: rows that each output sums; None: one each."""
    rows_per_id = ids.rows_per_id
    if ids.one_row_each:
        return counts_B
    if isinstance(rows_per_id, int):
        return np.full(len(ids.rows_M) // rows_per_id, rows_per_id) if counts_B is None else counts_B * rows_per_id
    if counts_B is None:
        return rows_per_id
    ends_n = np.concatenate([[0], np.cumsum(rows_per_id)])
    rows_B: NDArray[np.int64] = np.diff(ends_n[np.concatenate([[0], np.cumsum(counts_B)])])
    return rows_B


def _weights(
    mean: bool, batch: FeatureBatch, kept_N: NDArray[np.bool_] | None, counts_B: NDArray[np.int64] | None
) -> NDArray[np.float32] | None:
    """float32 [n]: weight of each id ÷ what a mean divides by; None: all 1."""
    weights_n = batch.weights if batch.weights is None or kept_N is None else batch.weights[kept_N]
    if mean and (weights_n is not None or (counts_B is not None and bool((counts_B > 1).any()))):
        return _shares(batch.feature, weights_n, np.ones(batch.examples, np.int64) if counts_B is None else counts_B)
    return weights_n


def _coefficients(weights_n: NDArray[np.float32] | None, ids: IdRows) -> NDArray[np.float32] | None:
    """float32 [M]: sign × weight; None: all 1."""
    if weights_n is None:
        return ids.signs_M
    weights_M = weights_n if ids.one_row_each else np.repeat(weights_n, ids.rows_per_id)
    return weights_M if ids.signs_M is None else weights_M * ids.signs_M


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

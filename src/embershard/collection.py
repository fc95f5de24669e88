"""A collection's requests as row work: what to gather and how to answer, what to apply and what to overwrite.

Everything that can be wrong with a request is found here, before an engine sees it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from embershard.compose import RowBatch, tensor_of
from embershard.config import HashedIds
from embershard.errors import InvalidInput
from embershard.types import FeatureBatch, FeatureUpdate

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embershard.config import Config, TableSpec

MAX_GRADIENT = 1e9
"""Largest size of one number of a gradient: the sum over a million ids of one row, squared and summed over any dim, is
still far from the largest float32."""

ByTable = dict[str, Tensor]
"""{table: int64 [M] row numbers, or [M, D] vectors}."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Read:
    """A lookup, ready for an engine."""

    parts: Sequence[RowBatch]
    """One a feature, in the order of the request."""
    rows: ByTable
    """What to gather: the rows of each table's features one after the other."""
    numbers: int
    """What it costs: numbers of all rows that are touched, ids × hashes × dim."""

    def answer(self, gathered: Mapping[str, Tensor]) -> list[Tensor]:
        """The vectors [outputs, D] of each part, from the gathered rows of each table."""
        return [part.compose(rows_MD) for part, rows_MD in zip(self.parts, self._split(gathered), strict=True)]

    def provenance(self, trained: Mapping[str, Tensor]) -> list[NDArray[np.uint8]]:
        """The provenance [N] of each part, from whether an update has reached each row."""
        flags = self._split(trained)
        return [part.provenance_N(of_part.cpu().numpy()) for part, of_part in zip(self.parts, flags, strict=True)]

    def _split(self, gathered: Mapping[str, Tensor]) -> list[Tensor]:
        taken = dict.fromkeys(gathered, 0)
        pieces = []
        for part in self.parts:
            table, start = part.table.name, taken[part.table.name]
            taken[table] = start + part.ids.rows_nK.size
            pieces.append(gathered[table][start : taken[table]])
        return pieces


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Change:
    """An update, ready for an engine: gradients first, then values."""

    rows: ByTable
    """Rows that gradients move."""
    gradients: ByTable
    """float32 [M, D] for them; those of one row are summed before the optimizer's one step."""
    written: ByTable
    """Rows that are overwritten, each once."""
    values: ByTable
    """float32 [M, D] for them."""
    numbers: int
    """What it costs: numbers of all rows that are touched, ids × hashes × dim."""

    @classmethod
    def nothing(cls) -> Change:
        """What a rank without an update brings."""
        return cls(rows={}, gradients={}, written={}, values={}, numbers=0)


class Collection:
    """Turns checked batches into row work, for the tables of one configuration."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.table_of: dict[str, TableSpec] = {feature: table for table in config.tables for feature in table.features}

    def read(self, batches: Sequence[FeatureBatch]) -> Read:
        """A lookup of these batches.

        Raises:
            InvalidInput: an unknown or repeated feature, a bad id, too many ids.
        """
        numbers = self.count(batches)
        parts = [self._row_batch(batch) for batch in batches]
        rows = _concatenate((part.table.name, part.rows_M) for part in parts)
        return Read(parts=parts, rows=rows, numbers=numbers)

    def change(self, updates: Sequence[FeatureUpdate]) -> Change:
        """An update with these gradients and values; all of it is checked before any of it is applied.

        Raises:
            InvalidInput: as for `read`, and shapes that don't fit, or numbers that a row can't hold.
        """
        numbers = self.count([update.batch for update in updates])
        moved = [
            (self._row_batch(update.batch), update.gradients) for update in updates if update.gradients is not None
        ]
        overwritten = [self._overwrite(update.batch, update.values) for update in updates if update.values is not None]
        written, values = {}, {}
        for table in {table for table, _, _ in overwritten}:
            pieces = [(rows, new) for name, rows, new in overwritten if name == table]
            written[table], values[table] = last_of_each(
                torch.cat([rows for rows, _ in pieces]), torch.cat([new for _, new in pieces])
            )
        return Change(
            rows=_concatenate((part.table.name, part.rows_M) for part, _ in moved),
            gradients=_concatenate((part.table.name, _pulled(part, gradients)) for part, gradients in moved),
            written=written,
            values=values,
            numbers=numbers,
        )

    def count(self, batches: Sequence[FeatureBatch]) -> int:
        """Numbers that these batches touch.

        Raises:
            InvalidInput: an unknown or repeated feature, or more than the configuration allows of one request.
        """
        ids = numbers = 0
        seen = set()
        for batch in batches:
            if batch.feature in seen:
                raise InvalidInput(f"feature {batch.feature!r} is named twice; give all its ids in one batch")
            seen.add(batch.feature)
            table = self._table(batch.feature)
            ids += len(batch.ids)
            numbers += len(batch.ids) * table.dim * (table.ids.hashes if isinstance(table.ids, HashedIds) else 1)
        self.check_ids(ids)
        most = self.config.limits.numbers_per_request
        if numbers > most:
            raise InvalidInput(
                f"the ids of one request would touch {numbers:,} numbers (ids × hashes × dim), more than "
                f"limits.numbers_per_request = {most:,}; split it"
            )
        return numbers

    def check_ids(self, ids: int) -> None:
        """Raises InvalidInput if these are too many ids for one request."""
        most = self.config.limits.ids_per_request
        if ids > most:
            raise InvalidInput(f"{ids:,} ids in one request are more than limits.ids_per_request = {most:,}; split it")

    def _row_batch(self, batch: FeatureBatch) -> RowBatch:
        return RowBatch.of(self._table(batch.feature), self.config.collection.seed, batch)

    def _table(self, feature: str) -> TableSpec:
        if feature not in self.table_of:
            raise InvalidInput(f"unknown feature {feature!r}; the collection has {', '.join(self.table_of)}")
        return self.table_of[feature]

    def _overwrite(self, batch: FeatureBatch, values_ND: NDArray[np.float32]) -> tuple[str, Tensor, Tensor]:
        """The table, rows and new values of one feature."""
        table = self._table(batch.feature)
        where = f"feature {batch.feature!r}"
        if table.ids.kind != "direct":
            raise InvalidInput(
                f"{where}: values overwrite rows that one id owns, but table {table.name!r} has {table.ids.kind} ids, "
                "which share rows; send gradients"
            )
        if batch.weights is not None:
            raise InvalidInput(
                f"{where}: values overwrite rows as they are, so weights have no meaning; leave them out"
            )
        part = self._row_batch(batch)
        if part.ids.kept_N is not None:
            at = int(np.argmin(part.ids.kept_N))
            raise InvalidInput(f"{where}: ids[{at}] is the padding id, whose row can't be overwritten")
        _check_shape(where, "values", values_ND, (len(batch.ids), table.dim))
        largest = float(np.finfo(table.dtype).max)
        _check_size(where, "values", values_ND, largest, f"table {table.name!r} stores {table.dtype}")
        return table.name, part.rows_M, tensor_of(values_ND)


def last_of_each(rows_M: Tensor, values_MD: Tensor) -> tuple[Tensor, Tensor]:
    """Leaves one value a row, the last: writes become independent of the order in which they are done."""
    unique, position = np.unique(rows_M.cpu().numpy()[::-1], return_index=True)
    last = torch.from_numpy(len(rows_M) - 1 - position).to(values_MD.device)
    return torch.from_numpy(unique).to(rows_M.device), values_MD[last]


def _pulled(part: RowBatch, gradients_BD: NDArray[np.float32]) -> Tensor:
    where = f"feature {part.batch.feature!r}"
    _check_shape(where, "gradients", gradients_BD, (part.outputs, part.table.dim))
    _check_size(where, "gradients", gradients_BD, MAX_GRADIENT, "clip them")
    pulled_MD = part.pull(tensor_of(gradients_BD))
    _check_size(where, "gradients times weights", pulled_MD.numpy(), MAX_GRADIENT, "clip them")
    return pulled_MD


def _check_shape(where: str, what: str, array: NDArray[Any], expected: tuple[int, int]) -> None:
    if array.shape != expected:
        raise InvalidInput(f"{where}: {what} have the shape {list(array.shape)}, but this batch needs {list(expected)}")


def _check_size(where: str, what: str, array: NDArray[Any], largest: float, hint: str) -> None:
    if array.size and max(array.max(), -array.min()) > largest:
        at = tuple(int(i) for i in np.unravel_index(np.argmax(np.abs(array)), array.shape))
        raise InvalidInput(f"{where}: {what}{list(at)} = {array[at]:g} is larger than {largest:g}; {hint}")


def _concatenate(pieces: Any) -> ByTable:
    by_table: dict[str, list[Tensor]] = {}
    for table, piece in pieces:
        by_table.setdefault(table, []).append(piece)
    return {table: same[0] if len(same) == 1 else torch.cat(same) for table, same in by_table.items()}

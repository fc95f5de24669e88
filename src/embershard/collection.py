"""A collection's requests as row work: what to gather and how to answer, what to apply and what to overwrite.

Everything that can be wrong with a request is found here, before an engine sees it; only what depends on the tick's own
state (whether a vocabulary has room) is found there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from embershard.arrays import tensor_of
from embershard.change import MAX_GRADIENT, ByMatrix, ByPart, Change, Move, Write, check_size, rows_of_parts
from embershard.compose import RowBatch
from embershard.config import SERVES_ONLY
from embershard.errors import InvalidInput
from embershard.rowwise import floats
from embershard.types import FeatureBatch, FeatureUpdate

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embershard.config import Config, TableSpec


@dataclass(frozen=True, kw_only=True, eq=False)
class Read:
    """A lookup, ready for an engine."""

    parts: Sequence[RowBatch]
    """One a feature, in the order of the request."""
    numbers: int
    """What it costs: numbers of all rows that are touched."""
    generation: int = 0
    """Of the tables that it fits."""
    as_stored: bool = False
    """Whether int8 rows with which nothing is to be done are answered as they are stored, uint8 [outputs, D + 8]."""

    @cached_property
    def rows(self) -> ByMatrix:
        """What to gather: the rows of each matrix, the parts' one after the other."""
        return rows_of_parts(self.parts)

    def settled(self, settle: Callable[[RowBatch], RowBatch]) -> Read:
        """The same with the rows that ids have in this tick."""
        if all(part.ids.keys is None for part in self.parts):
            return self
        return replace(self, parts=[settle(part) for part in self.parts])

    def answer(self, stored: ByPart, projections: Mapping[str, Tensor]) -> list[Tensor]:
        """The vectors [outputs, D] of each part, from its stored rows."""
        return [
            part.placed(stored[part][0])
            if self.as_stored and part.table.serves_only and part.plain
            else part.compose([floats(rows) for rows in stored[part]], projections.get(part.table.name))
            for part in self.parts
        ]

    def counts(self, books: ByPart) -> list[IdCounts]:
        """What is known of the ids [N] of each part, from the books [M, 3] of its rows."""
        return [IdCounts.of(part, [of_it.cpu().numpy() for of_it in books[part]]) for part in self.parts]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class IdCounts:
    """What is known of the ids of one feature's batch."""

    provenance_N: NDArray[np.uint8]
    """Where each vector comes from: `Provenance`."""
    updates_N: NDArray[np.int32]
    """How many updates have moved its rows: the one that was moved least; of tables without counts 1 if any has."""
    sightings_N: NDArray[np.int32]
    """How often updates have named ids that have these rows, likewise; of tables without counts 0."""

    @classmethod
    def of(cls, part: RowBatch, books: Sequence[NDArray[np.int32]]) -> IdCounts:
        """From the books [M, 3] of the rows of each matrix."""
        least, most = (books[0], books[0]) if len(books) == 1 else (np.minimum.reduce(books), np.maximum.reduce(books))
        updates_M, sightings_M, _ = least.T
        return cls(
            provenance_N=part.provenance_N(most[:, 0] > 0),
            updates_N=part.least_N(updates_M),
            sightings_N=part.least_N(sightings_M),
        )


class Collection:
    """Turns checked batches into row work, for the tables of one configuration.

    `generation` tells the tables of one moment of a server from those of another; unless `bounded`, no request is too
    large.
    """

    def __init__(self, config: Config, generation: int = 0, *, bounded: bool = True) -> None:
        self.config, self.generation, self.bounded = config, generation, bounded
        self.table_of: dict[str, TableSpec] = {feature: table for table in config.tables for feature in table.features}

    def read(self, batches: Sequence[FeatureBatch], *, as_stored: bool = False, with_counts: bool = False) -> Read:
        """A lookup of these batches; `as_stored` is as `Read` has it, and `with_counts` tells whether it wants them.

        Raises:
            InvalidInput: an unknown or repeated feature, a bad id, too many ids, counts that aren't kept.
        """
        numbers = self.count(batches)
        if with_counts:
            self._check_counts(batches)
        parts = [self._row_batch(batch) for batch in batches]
        return Read(parts=parts, numbers=numbers, generation=self.generation, as_stored=as_stored)

    def again(self, read: Read) -> Read:
        """A lookup that was made for these tables as they were at another time.

        Raises:
            InvalidInput: an id that they don't have.
        """
        return self.read([part.batch for part in read.parts], as_stored=read.as_stored)

    def change(self, updates: Sequence[FeatureUpdate]) -> Change:
        """An update with these gradients and values; all of it is checked before any of it is applied.

        Raises:
            InvalidInput: as for `read`, and shapes that don't fit, or numbers that a row can't hold.
        """
        numbers = self.count(
            [update.batch for update in updates], [update.parents for update in updates if update.parents is not None]
        )
        moves = [
            _move(self._row_batch(update.batch), update.gradients) for update in updates if update.gradients is not None
        ]
        return Change(
            moves=[move for move in moves if not move.part.table.frozen],
            writes=[self._write(update) for update in updates if update.gradients is None],
            numbers=numbers,
        )

    def count(self, batches: Sequence[FeatureBatch], parents: Sequence[FeatureBatch] = ()) -> int:
        """Numbers that these batches touch, and the parents of their ids.

        Raises:
            InvalidInput: an unknown or repeated feature, or more than the configuration allows of one request.
        """
        seen = set()
        for batch in batches:
            if batch.feature in seen:
                raise InvalidInput(f"feature {batch.feature!r} is named twice; give all its ids in one batch")
            seen.add(batch.feature)
        ids = numbers = 0
        for batch in (*batches, *parents):
            ids += len(batch.ids)
            numbers += self.numbers(batch)
        self.check_ids(ids)
        self._check_numbers(numbers)
        return numbers

    def numbers(self, batch: FeatureBatch) -> int:
        """Numbers of the stored rows, or of the vectors if those are larger, of all ids of a batch."""
        return len(batch.ids) * self._table(batch.feature).numbers_per_id

    def _check_counts(self, batches: Sequence[FeatureBatch]) -> None:
        for batch in batches:
            if not (table := self._table(batch.feature)).counts:
                raise InvalidInput(
                    f"feature {batch.feature!r}: table {table.name!r} doesn't keep how often its rows were updated and "
                    "sighted: leave with_counts out, or write `counts = true` in the configuration of the table, "
                    "which takes 8 bytes a row"
                )

    def _check_numbers(self, numbers: int) -> None:
        most = self.config.limits.numbers_per_request
        if self.bounded and numbers > most:
            raise InvalidInput(
                f"the ids of one request would touch {numbers:,} numbers (ids × hashes × dim), more than "
                f"limits.numbers_per_request = {most:,}; split it"
            )

    def check_ids(self, ids: int) -> None:
        """Raises InvalidInput if these are too many ids for one request."""
        most = self.config.limits.ids_per_request
        if self.bounded and ids > most:
            raise InvalidInput(f"{ids:,} ids in one request are more than limits.ids_per_request = {most:,}; split it")

    def _row_batch(self, batch: FeatureBatch) -> RowBatch:
        return RowBatch.of(self._table(batch.feature), self.config.collection.seed, batch)

    def _table(self, feature: str) -> TableSpec:
        if feature not in self.table_of:
            raise InvalidInput(f"unknown feature {feature!r}; the collection has {', '.join(self.table_of)}")
        return self.table_of[feature]

    def _write(self, update: FeatureUpdate) -> Write:
        """The rows and new values of one feature, or how they are made of parents."""
        batch, table = update.batch, self._table(update.batch.feature)
        where, what = f"feature {batch.feature!r}", "values" if update.parents is None else "parents"
        _check_writable(where, what, table)
        if batch.weights is not None:
            raise InvalidInput(f"{where}: {what} replace rows as they are, so weights have no meaning; leave them out")
        part = self._row_batch(batch)
        if part.ids.kept_N is not None:
            at = int(np.argmin(part.ids.kept_N))
            raise InvalidInput(f"{where}: ids[{at}] is the padding id, whose row can't be overwritten")
        if update.parents is not None:
            return Write(part=part, values_ND=None, parents=self._parents(where, table, update.parents))
        assert update.values is not None
        _check_shape(where, "values", update.values, (len(batch.ids), table.dim))
        largest = float(np.finfo(table.dtype).max)
        if table.normalise == "none":
            hint = f"table {table.name!r} stores {table.dtype}"
        else:  # the square of its length must be a number, too
            largest, hint = min(largest, MAX_GRADIENT), f"table {table.name!r} normalises its rows"
        values_ND = tensor_of(update.values)
        check_size(where, "values", values_ND, largest, hint)
        return Write(part=part, values_ND=values_ND)

    def _parents(self, where: str, table: TableSpec, parents: FeatureBatch) -> RowBatch:
        """The mean of the parents' rows as they are stored."""
        part = RowBatch.mean_of_rows(table, self.config.collection.seed, parents)
        if part.ids.kept_N is not None:
            at = int(np.argmin(part.ids.kept_N))
            raise InvalidInput(f"{where}: parents[{at}] is the padding id, which has no row")
        return part


def _move(part: RowBatch, gradients_BD: NDArray[np.float32]) -> Move:
    where = f"feature {part.batch.feature!r}"
    if part.table.serves_only:
        raise InvalidInput(f"{where}: table {part.table.name!r} {SERVES_ONLY}: gradients can't move them")
    _check_shape(where, "gradients", gradients_BD, (part.outputs, part.table.dim))
    gradients = tensor_of(gradients_BD)
    check_size(where, "gradients", gradients, MAX_GRADIENT, "clip them")
    return Move.of(part, gradients)


def _check_writable(where: str, what: str, table: TableSpec) -> None:
    """Raises InvalidInput unless ids of the table own rows that may be replaced."""
    if table.serves_only:
        raise InvalidInput(f"{where}: table {table.name!r} {SERVES_ONLY}: they can't be replaced one by one")
    if table.frozen:
        raise InvalidInput(f"{where}: table {table.name!r} is frozen; its rows can't be replaced")
    if not table.capacity:
        raise InvalidInput(
            f"{where}: {what} replace rows that one id owns, but table {table.name!r} has {table.ids.kind} ids, which "
            "share rows; send gradients"
        )
    if not table.owns_rows or (table.factor is not None and what == "values"):
        assert table.factor is not None
        raise InvalidInput(
            f"{where}: {what} replace rows that one id owns, but the rows of table {table.name!r} are made of factors "
            f"({table.factor.kind}); send gradients"
        )


def _check_shape(where: str, what: str, array: NDArray[Any], expected: tuple[int, int]) -> None:
    if array.shape != expected:
        raise InvalidInput(f"{where}: {what} have the shape {list(array.shape)}, but this batch needs {list(expected)}")

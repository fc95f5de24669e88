"""The order in which a job sees examples, and what each rank sees of them.

Shapes: B examples of a rank, N ids of one feature, F dense numbers, W examples of a window.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from pyarrow import types

from embershard.errors import InvalidInput
from embershard.train.ahead import ahead
from embershard.train.sequences import cut
from embershard.train.source import DENSE, FEATURES, LABEL, Piece, Source
from embershard.types import FeatureBatch

if TYPE_CHECKING:
    from numpy.typing import NDArray

PREFETCHED: Final = 2
"""Batches that are made before they are asked for."""

_CHUNKS, _WINDOW = 0, 1
"""What a generator of random numbers is for."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Batch:
    """One rank's part of a global batch; it may be empty."""

    features: dict[str, FeatureBatch]
    """By name; bags have lengths."""
    labels_B: NDArray[np.float32] | None
    """float32 [B], finite; None: examples have none."""
    dense_BF: NDArray[np.float32] | None
    """float32 [B, F], finite; None: examples have none."""
    examples: int
    """B: how many this rank has."""
    global_examples: int
    """How many all ranks have together."""
    position: int
    """Global batches of the epoch up to and including this one: where to begin to go on after it."""


class Stream:
    """The examples of a source in global batches, of which each rank has its part.

    An epoch's order depends on seed and epoch alone. Chunks come in a random order; as many that follow each other as
    have `shuffle_rows` examples make a window, and the examples of a window come in a random order, too. With
    `shuffle_rows` 0 everything comes in the order of the source. Global batches are cut from that; the last may be
    smaller. Of each, rank r has the r-th of `world_size` nearly equal runs.

    So every rank decodes everything and keeps its own rows. That is what makes a job see the same batches at any world
    size, whatever the sizes of files, so that its curve is the same, and it can go on at another one; and decoding is
    cheap beside training. Memory holds a window (twice while it is put together), some chunks and batches.
    """

    def __init__(
        self, source: Source, *, batch: int, seed: int = 0, shuffle_rows: int = 0, rank: int = 0, world_size: int = 1
    ) -> None:
        assert batch >= 1, "a batch has an example at least"
        assert 0 <= rank < world_size, "ranks are counted from 0"
        self.source = source
        self.cut: dict[str, int] = dict.fromkeys(source.max_lengths, 0)
        """{feature: bags that were longer than max_length, and so were cut}, of what the latest epoch has read, of all
        ranks; reading is some batches ahead."""
        self._batch, self._seed, self._shuffle_rows = batch, seed, shuffle_rows
        self._rank, self._world_size = rank, world_size

    @property
    def batches(self) -> int | None:
        """Global batches of an epoch; None: only reading tells."""
        examples = self.source.examples
        return None if examples is None else -(-examples // self._batch)

    def epoch(self, number: int, begin: int = 0) -> Generator[Batch]:
        """The batches of an epoch from global batch `begin` on, made ahead on a thread, which `close` ends.

        What comes before isn't decoded where numbers of examples are known, but for the window in which it begins.

        Raises:
            InvalidInput: while iterating: data is wrong, or gone; there is none; or less than `begin` batches.
        """
        assert begin >= 0, "batches are counted from 0"
        return ahead(self._batches(number, begin), PREFETCHED)

    def _batches(self, number: int, begin: int) -> Generator[Batch]:
        self.cut = dict.fromkeys(self.source.max_lengths, 0)
        parts: list[tuple[pa.Table, NDArray[np.int64]]] = []
        position, have = begin, 0
        for window, order_W in self._windows(number, begin * self._batch):
            for rows in np.split(order_W, np.arange(self._batch - have, len(order_W), self._batch)):
                parts.append((window, rows))
                have += len(rows)
                if have == self._batch:
                    position += 1
                    yield self._own(parts, have, position)
                    parts, have = [], 0
            # What is left over is taken out, so that the window needn't be kept while the next one is read.
            parts = [(table.take(pa.array(rows)), np.arange(len(rows))) for table, rows in parts]
            del window
        if parts:
            yield self._own(parts, have, position + 1)

    def _windows(self, epoch: int, skip: int) -> Iterator[tuple[pa.Table, NDArray[np.int64]]]:
        """Windows, each with the order of its examples, without the first `skip` examples of all."""
        seen = 0
        for number, pieces in enumerate(self._grouped(epoch)):
            examples = sum(piece.rows for piece in pieces)
            if (first := max(0, skip - seen)) < examples:
                order_W = np.arange(examples)
                if self._shuffle_rows:
                    order_W = self._random(_WINDOW, epoch, number).permutation(order_W)
                yield self._table(pieces), order_W[first:]
            seen += examples
        if not seen:
            raise InvalidInput(f"{self.source.title}: there is no row")
        if skip >= seen + self._batch:
            raise InvalidInput(
                f"{self.source.title}: there are {seen:,} examples, and {skip:,} of them are to be skipped: the data "
                "isn't what it was"
            )

    def _grouped(self, epoch: int) -> Iterator[list[Piece]]:
        """The pieces of each window."""
        held: list[Piece] = []
        rows = 0
        for piece in self._pieces(epoch):
            held.append(piece)
            rows += piece.rows
            if rows >= self._shuffle_rows:
                yield held
                held, rows = [], 0
        if held:
            yield held

    def _pieces(self, epoch: int) -> Iterator[Piece]:
        chunks = np.arange(self.source.chunks)
        if self._shuffle_rows:
            chunks = self._random(_CHUNKS, epoch, 0).permutation(chunks)
        for chunk in chunks:
            yield from (piece for piece in self.source.pieces(int(chunk)) if piece.rows)

    def _random(self, purpose: int, epoch: int, number: int) -> np.random.Generator:
        return np.random.default_rng([self._seed, purpose, epoch, number])

    def _table(self, pieces: list[Piece]) -> pa.Table:
        """One table of all; the list is emptied, as pieces that are decoded already needn't be kept beside it."""
        table = pa.concat_tables([self._read(piece) for piece in pieces])
        pieces.clear()
        return table.combine_chunks()

    def _read(self, piece: Piece) -> pa.Table:
        table, counts = cut(piece.read(), self.source.max_lengths)
        self.cut = {feature: self.cut[feature] + count for feature, count in counts.items()}
        return table

    def _own(self, parts: list[tuple[pa.Table, NDArray[np.int64]]], examples: int, position: int) -> Batch:
        """This rank's run of a global batch, which is made of rows of windows."""
        each, more = divmod(examples, self._world_size)
        begin = self._rank * each + min(self._rank, more)
        end = begin + each + (self._rank < more)
        tables, before = [], 0
        for window, rows in parts:
            tables.append(window.take(pa.array(rows[max(0, begin - before) : max(0, end - before)])))
            before += len(rows)
        return _batch(pa.concat_tables(tables), examples, position)


def _batch(table: pa.Table, global_examples: int, position: int) -> Batch:
    named = {name: table[name].combine_chunks() for name in table.schema.names}
    labels, dense = named.get(LABEL), named.get(DENSE)
    return Batch(
        features={
            name.removeprefix(FEATURES): _feature(name.removeprefix(FEATURES), ids)
            for name, ids in named.items()
            if name.startswith(FEATURES)
        },
        labels_B=None if labels is None else _array(labels),
        dense_BF=None if dense is None else _array(dense.flatten()).reshape(len(dense), dense.type.list_size),
        examples=table.num_rows,
        global_examples=global_examples,
        position=position,
    )


def _feature(name: str, column: Any) -> FeatureBatch:
    bags = types.is_large_list(column.type)
    ids_N = column.flatten() if bags else column
    return FeatureBatch(
        feature=name,
        ids=_array(ids_N) if types.is_int64(ids_N.type) else tuple(ids_N.to_pylist()),
        lengths=_array(column.value_lengths()).astype(np.int32) if bags else None,
    )


def _array(column: Any) -> NDArray[Any]:
    """A copy: Arrow's own memory may not be written to, which PyTorch warns of."""
    array: NDArray[Any] = column.to_numpy(zero_copy_only=False, writable=True)
    return array

"""Numbered training examples, from memory or in files, and what streams of them yield."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq

from embershard.train.batches import Batch, Stream
from embershard.train.source import DENSE, FEATURES, LABEL, Piece


class Numbered:
    """A source in memory: example i has the id i, i % 3 ids in its bag, the label i and the dense numbers i and -i."""

    title = "numbered examples"

    def __init__(
        self, chunk_rows: Sequence[int], *, known: bool = True, max_lengths: Mapping[str, int] | None = None
    ) -> None:
        self.chunks = len(chunk_rows)
        self.examples = sum(chunk_rows) if known else None
        self.max_lengths = max_lengths or {}
        self.decoded: list[int] = []
        """The chunks that were decoded, in order."""
        self._known = known
        self._bounds = np.concatenate(([0], np.cumsum(chunk_rows, dtype=int)))

    def pieces(self, chunk: int) -> Iterator[Piece]:
        first, end = map(int, self._bounds[chunk : chunk + 2])
        if self._known:
            yield Piece(rows=end - first, read=partial(self._table, chunk, first, end))
        else:
            for low in range(first, end, 2):  # as blocks of text come
                yield Piece.of(self._table(chunk, low, min(low + 2, end)))

    def _table(self, chunk: int, first: int, end: int) -> pa.Table:
        self.decoded.append(chunk)
        ids = np.arange(first, end)
        return pa.table(
            {
                f"{FEATURES}id": pa.array(ids),
                f"{FEATURES}bag": pa.array(
                    [[f"{i}.{n}" for n in range(i % 3)] for i in ids.tolist()], pa.large_list(pa.large_string())
                ),
                LABEL: pa.array(ids, pa.float32()),
                DENSE: pa.FixedSizeListArray.from_arrays(pa.array(np.stack([ids, -ids], 1).ravel(), pa.float32()), 2),
            }
        )


class Failing(Numbered):
    """One whose later chunks can't be decoded."""

    def _table(self, chunk: int, first: int, end: int) -> pa.Table:
        if chunk >= 3:
            raise OSError("the disk is gone")
        return super()._table(chunk, first, end)


def ids(batch: Batch) -> list[int]:
    """The numbers of a batch's examples; all of them must be whole."""
    found: list[int] = batch.features["id"].ids.tolist()  # type: ignore[union-attr]  # they are integers
    bag = batch.features["bag"]
    assert bag.lengths is not None
    assert bag.lengths.tolist() == [i % 3 for i in found]
    assert list(bag.ids) == [f"{i}.{n}" for i in found for n in range(i % 3)]
    assert batch.labels_B is not None
    assert batch.labels_B.tolist() == found
    assert batch.dense_BF is not None
    assert batch.dense_BF.tolist() == [[i, -i] for i in found]
    assert batch.examples == len(found)
    return found


def orders(source: Numbered, *, number: int = 0, begin: int = 0, worlds: int = 1, **options: Any) -> list[list[int]]:
    """The ids of each global batch, put together from all ranks' parts, which must be nearly equal."""
    ranks = [
        list(Stream(source, rank=rank, world_size=worlds, **options).epoch(number, begin)) for rank in range(worlds)
    ]
    whole = []
    for step, parts in enumerate(zip(*ranks, strict=True)):
        examples = sum(part.examples for part in parts)
        assert {(part.position, part.global_examples) for part in parts} == {(begin + step + 1, examples)}
        sizes = [part.examples for part in parts]
        assert sizes == [len(part) for part in np.array_split(np.arange(examples), worlds)]
        whole.append([number for part in parts for number in ids(part)])
    return whole


def write(path: Path, table: pa.Table, *, group: int = 1000) -> Path:
    """A file of the format that its suffix tells."""
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=group)
    else:
        options = csv.WriteOptions(delimiter="\t" if ".tsv" in path.name else ",")
        with pa.output_stream(path, compression="gzip" if path.suffix == ".gz" else None) as file:
            csv.write_csv(table, file, options)
    return path

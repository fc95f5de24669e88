"""What the service takes at once: whether batches fit into one request, and how those that don't are cut."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from embershard.torch.batches import Batches
from embershard.types import FeatureBatch
from embershard.v1 import embershard_pb2 as pb

_AROUND_BYTES: Final = 2**9
"""What a message has around the numbers of a feature."""
_AROUND_STRING_BYTES: Final = 2**4
"""And around a string."""


class Limits:
    """The limits of a service, which its description tells."""

    def __init__(self, description: pb.DescribeResponse) -> None:
        self._limits = description.limits
        self._table_of = {feature: table for table in description.tables for feature in table.features}

    def passed(self, batches: Batches, *, with_gradients: bool = False) -> str | None:
        """The limit that a lookup of these batches passes, or an update, by its name; None: it fits."""
        tables = [(batch, self._table_of[batch.feature]) for batch in batches.values()]
        sent = sum(_bytes(batch) for batch in batches.values())
        vectors = 4 * sum(batch.examples * table.dim for batch, table in tables)
        sizes = {
            "ids_per_request": sum(len(batch.ids) for batch in batches.values()),
            "numbers_per_request": sum(len(batch.ids) * table.numbers_per_id for batch, table in tables),
            "message_bytes": sent + vectors if with_gradients else max(sent, vectors),
        }
        over = (f"{name} = {most:,}" for name, size in sizes.items() if size > (most := getattr(self._limits, name)))
        return next(over, None)

    def pieces(self, batches: Batches) -> Iterator[Batches]:
        """Batches that fit into a lookup each, and are these one after the other; an example is never cut."""
        most = max((batch.examples for batch in batches.values()), default=0)
        if most <= 1 or self.passed(batches) is None:
            yield batches
            return
        middles = {feature: (batch.examples + 1) // 2 for feature, batch in batches.items()}
        yield from self.pieces({feature: _cut(batch, 0, middles[feature]) for feature, batch in batches.items()})
        rest = {feature: _cut(batch, middles[feature], batch.examples) for feature, batch in batches.items()}
        yield from self.pieces({feature: batch for feature, batch in rest.items() if batch.examples})


def _bytes(batch: FeatureBatch) -> int:
    """Most that it takes in a request."""
    if isinstance(batch.ids, np.ndarray):
        ids = 8 * len(batch.ids)
    else:
        ids = sum(len(key.encode(errors="replace")) + _AROUND_STRING_BYTES for key in batch.ids)
    return _AROUND_BYTES + ids + sum(4 * len(part) for part in (batch.lengths, batch.weights) if part is not None)


def _cut(batch: FeatureBatch, start: int, stop: int) -> FeatureBatch:
    """Its examples from one to another."""
    if batch.lengths is None:
        return replace(batch, ids=batch.ids[start:stop])
    bounds = np.concatenate([[0], np.cumsum(batch.lengths, dtype=np.int64)])
    ids = slice(bounds[start], bounds[stop])
    return replace(
        batch,
        ids=batch.ids[ids],
        lengths=batch.lengths[start:stop],
        weights=None if batch.weights is None else batch.weights[ids],
    )

"""One rank's rows as they are at one moment, copied in slices while they go on changing.

Whoever changes rows tells first which; those that are touched for the first time since the capture began are copied
aside, whole. A slice is then what is in place, and what was put aside where there is such. So updates wait for no more
than one slice, and memory holds what was touched, four bytes a row to find it again, and the slices on their way.

All of it is for the engine's own thread.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from embershard.engine.shard import Shard

SLICE_BYTES = 4 * 2**20
"""A slice: some milliseconds' work, and few enough calls for a large table."""
_FINDING_BYTES = 8
"""Of a row, to find it among those that were put aside."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Part:
    """This rank's share of one tensor."""

    name: str
    """As in `Engine.tensors`: user.weight."""
    dtype: torch.dtype
    """Of its numbers."""
    first: int
    """The matrix's row with which it begins."""
    rows: int
    """Rows; none on a rank that the matrix has no rows for."""
    shape: tuple[int, ...]
    """Of one row: () or (D,)."""

    @property
    def row_bytes(self) -> int:
        """Of one row."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Slice:
    """Consecutive rows of one tensor."""

    name: str
    """The tensor."""
    first: int
    """The matrix's row with which it begins."""
    rows: Tensor
    """[n] or [n, D], contiguous, on the CPU, and nobody else's."""


class Capture:
    """What it has begun with stays whole, even if an engine has other shards by then."""

    def __init__(self, shards: Iterable[Shard], *, slice_bytes: int = SLICE_BYTES) -> None:
        self._slice_bytes = slice_bytes
        self._watched = [_Watched(shard) for shard in shards]
        # Numbers of many bytes come first: so each has a place in the file that is a multiple of its size.
        self._strips = sorted(
            ((watched, kind) for watched in self._watched for kind in watched.shard.kinds),
            key=lambda strip: -strip[0].shard.kinds[strip[1]].itemsize,
        )
        self._slices = self._cut()

    @property
    def parts(self) -> list[Part]:
        """What it copies, in this order."""
        return [part for watched, kind in self._strips for part, _ in watched.parts(kind)]

    def take(self) -> Slice | None:
        """Copies the next slice; None once all are copied."""
        return next(self._slices, None)

    def close(self) -> None:
        """Stops watching, even if slices are left."""
        for watched, kind in self._strips:
            watched.drop(kind)
        self._slices = iter(())

    def _cut(self) -> Iterator[Slice]:
        for watched, kind in self._strips:
            for part, offset in watched.parts(kind):
                step = max(1, self._slice_bytes // max(part.row_bytes, _FINDING_BYTES))
                for start in range(0, part.rows, step):
                    stop = min(start + step, part.rows)
                    rows = watched.rows(kind, slice(offset + start, offset + stop))
                    yield Slice(name=part.name, first=part.first + start, rows=rows)
            watched.drop(kind)


class _Watched:
    """One shard, and what its rows were where they have changed."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self._count = 0
        """Rows that have changed."""
        self._place_R = torch.full((shard.group.block_rows,), -1, dtype=torch.int32, device=shard.weight.device)
        """Where a row that has changed is among those put aside."""
        self._aside = {
            kind: tensor.new_empty(0, *tensor.shape[1:], device="cpu") for kind, tensor in self._kinds.items()
        }
        """{kind: rows as they were}, of the kinds that are still to be copied; with room for more."""
        shard.watchers.append(self._keep)

    @property
    def _kinds(self) -> dict[str, Tensor]:
        return self.shard.kinds

    def parts(self, kind: str) -> list[tuple[Part, int]]:
        """The matrices' shares of one kind of tensor, each with the row of the shard at which it begins."""
        tensor, rank, dim = self._kinds[kind], self.shard.rank, self.shard.group.dim
        found = []
        for name, slot in self.shard.group.slots.items():
            first, stop = slot.held(rank)
            part = Part(
                name=f"{name}.{kind}",
                dtype=tensor.dtype,
                first=first,
                rows=stop - first,
                shape=(dim,) * (tensor.ndim - 1),
            )
            found.append((part, slot.local(rank).start))
        return found

    def rows(self, kind: str, local: slice) -> Tensor:
        """Rows of the shard as they were when the capture began."""
        tensor, dim = self._kinds[kind], self.shard.group.dim
        there = tensor[local] if tensor.ndim == 1 else tensor[local, :dim]
        copied = there.to("cpu", copy=True, memory_format=torch.contiguous_format)
        place_m = self._place_R[local].to("cpu", torch.int64)
        changed = (place_m >= 0).nonzero()[:, 0]
        before = self._aside[kind][place_m[changed]]
        copied[changed] = before if tensor.ndim == 1 else before[:, :dim]
        return copied

    def drop(self, kind: str) -> None:
        """Follows the copying of a kind; after the last, rows may change without telling."""
        if self._aside.pop(kind, None) is not None and not self._aside:
            self.shard.watchers.remove(self._keep)

    def _keep(self, local_M: Tensor) -> None:
        fresh = local_M[self._place_R[local_M] < 0].unique()
        start, self._count = self._count, self._count + len(fresh)
        if start == self._count:
            return
        self._place_R[fresh] = torch.arange(start, self._count, dtype=torch.int32, device=fresh.device)
        for kind, aside in self._aside.items():
            if self._count > len(aside):
                self._aside[kind] = aside.new_empty(2 * self._count, *aside.shape[1:])
                self._aside[kind][:start] = aside[:start]
            self._aside[kind][start : self._count] = self._kinds[kind][fresh].cpu()

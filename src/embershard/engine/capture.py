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

from embershard.engine.beside import SLICE_BYTES, let_go
from embershard.engine.shard import Shard

_FINDING_BYTES = 64
"""A row costs as much time as a copy of so many bytes does, however small it is: to see whether it was put aside."""
_LEAST_ROOM = 1024
"""Rows of the first room."""


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
            ((watched, kind) for watched in self._watched for kind in watched.kinds),
            key=lambda strip: -strip[0].kinds[strip[1]].itemsize,
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
    """One shard, and what its rows were where they have changed.

    Those rows are put aside in rooms, each as large as all before it together, so that none ever moves.
    """

    def __init__(self, shard: Shard) -> None:
        self.shard, self.kinds = shard, shard.kinds
        """The shard, and what there was of its rows: where none was frozen, some may be by now."""
        self._place_R = torch.full((shard.group.block_rows,), -1, dtype=torch.int32, device=shard.weight.device)
        """Where a row that has changed is among those put aside."""
        self._starts: list[int] = []
        """The place with which each room begins."""
        self._rooms: dict[str, list[Tensor]] = {kind: [] for kind in self.kinds}
        """{kind: rows as they were}, of the kinds that are still to be copied."""
        self._used, self._room = 0, 0
        """Places that are taken, and that there are."""
        self._failure: Exception | None = None
        shard.watchers.append(self._keep)

    def parts(self, kind: str) -> list[tuple[Part, int]]:
        """The matrices' shares of one kind of tensor, each with the row of the shard at which it begins."""
        tensor, rank, dim = self.kinds[kind], self.shard.rank, self.shard.group.stored_dim
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
        if self._failure:
            raise self._failure
        copied = self._narrow(self.kinds[kind][local]).to("cpu", copy=True, memory_format=torch.contiguous_format)
        place_n = self._place_R[local].cpu()
        changed_m = (place_n >= 0).nonzero()[:, 0]
        place_m = place_n[changed_m]
        for start, room in zip(self._starts, self._rooms[kind], strict=True):
            here_m = (place_m >= start) & (place_m < start + len(room))
            before = self._narrow(room.index_select(0, place_m[here_m] - start))
            copied.index_copy_(0, changed_m[here_m], before)
        return copied

    def drop(self, kind: str) -> None:
        """Follows the copying of a kind; after the last, rows may change without telling."""
        if rooms := self._rooms.pop(kind, None):
            let_go(rooms)
        if not self._rooms and self._keep in self.shard.watchers:
            self.shard.watchers.remove(self._keep)

    def _narrow(self, rows: Tensor) -> Tensor:
        """Without the columns that only kernels want."""
        return rows if rows.ndim == 1 else rows[:, : self.shard.group.stored_dim]

    def _keep(self, local_M: Tensor) -> None:
        try:
            self._put_aside(local_M[self._place_R[local_M] < 0].unique())
        except (RuntimeError, MemoryError) as error:  # no memory: that ends the capture, and not the update
            self._failure = error
            self.shard.watchers.remove(self._keep)

    def _put_aside(self, fresh_m: Tensor) -> None:
        if not len(fresh_m):
            return
        if self._used + len(fresh_m) > self._room:
            self._starts.append(self._room)
            for kind, rooms in self._rooms.items():
                size = max(len(fresh_m), self._room, _LEAST_ROOM)
                rooms.append(torch.empty(size, *self.kinds[kind].shape[1:], dtype=self.kinds[kind].dtype))
            self._used, self._room = self._room, self._room + size
        start, self._used = self._used, self._used + len(fresh_m)
        for kind, rooms in self._rooms.items():
            before = self.kinds[kind].index_select(0, fresh_m)  # several times as fast as indexing
            rooms[-1][start - self._starts[-1] :][: len(fresh_m)].copy_(before)
        self._place_R[fresh_m] = torch.arange(start, self._used, dtype=torch.int32, device=fresh_m.device)

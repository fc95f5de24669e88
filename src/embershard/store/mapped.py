"""Rows of a snapshot's tensors by their numbers, read where they lie: no tensor is ever whole in memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from embershard.store.agreement import alone, everywhere
from embershard.store.loading import pieces_by_file

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embershard.store.manifest import Snapshot


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MappedTensor:
    """One tensor of a snapshot, its files mapped."""

    dtype: torch.dtype
    """Of its numbers."""
    shape: Sequence[int]
    """Rows, and then the shape of one."""
    pieces: Sequence[tuple[int, NDArray[Any]]]
    """(number of the first, rows): together, every row once."""

    @property
    def row_numbers(self) -> int:
        """Numbers in a row."""
        return math.prod(self.shape[1:])

    def take(self, rows_N: Tensor) -> Tensor:
        """[N, …]: a copy of these rows; int64 [N], none outside the tensor."""
        taken = torch.empty([len(rows_N), *self.shape[1:]], dtype=self.dtype)
        for first, rows in self.pieces:
            here_N = (rows_N >= first) & (rows_N < first + len(rows))
            taken[here_N] = torch.from_numpy(np.asarray(rows[(rows_N[here_N] - first).numpy()]))
        return taken


def mapped(snapshot: Snapshot, name: str) -> MappedTensor:
    """A tensor, whatever ranks wrote it; the caller verifies the snapshot.

    Raises:
        SnapshotError: it can't be read.
    """
    with everywhere(alone, "a snapshot can't be read"):
        told = snapshot.tensors[name]
        pieces = [
            (piece.first, np.memmap(path, piece.dtype, "r", piece.place, (piece.rows, *piece.shape)))
            for path, of_file in pieces_by_file(snapshot).items()
            for piece in of_file
            if piece.name == name and piece.rows
        ]
    return MappedTensor(dtype=getattr(torch, told["dtype"]), shape=told["shape"], pieces=pieces)

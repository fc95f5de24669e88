"""What is known of each row of a shard beside what it has learned: one byte of it, or eight where counts are kept.

A ninth, or a second, is there once a row was frozen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MOST = torch.iinfo(torch.int32).max
"""Where counts stop."""


class Books:
    """Live tensors, of all rows of a shard."""

    def __init__(self, rows: int, device: torch.device, *, counts: bool) -> None:
        self.updates = torch.zeros(rows, dtype=torch.int32 if counts else torch.uint8, device=device)
        """[rows]: updates that have changed the row, which stay at the largest; without counts 1 if any has."""
        self.sightings = torch.zeros(rows, dtype=torch.int32, device=device) if counts else None
        """[rows]: how often updates have named an id that has the row; likewise. None without counts."""
        self.frozen: Tensor | None = None
        """uint8 [rows]: 1 if the row stays as it is; None until one does, on every rank alike."""
        self._kept: tuple[Tensor | None, ...] = (None, None, None)
        """Those of which `_arrays` are views."""
        self._arrays: list[NDArray[Any] | None] = []

    @property
    def kinds(self) -> dict[str, Tensor]:
        """Those that are kept."""
        all_kinds = {"updates": self.updates, "sightings": self.sightings, "frozen": self.frozen}
        return {kind: tensor for kind, tensor in all_kinds.items() if tensor is not None}

    def count(self, local_M: Tensor) -> None:
        """One update a row, however often it was named; every naming is a sighting."""
        if self.sightings is None:
            self.updates.index_fill_(0, local_M, 1)
            return
        updates_M = self.updates.index_select(0, local_M)
        self.updates.index_copy_(0, local_M, updates_M + (updates_M < _MOST))
        self.sightings.scatter_add_(0, local_M, torch.ones_like(local_M, dtype=torch.int32))
        over_M = self.sightings.index_select(0, local_M) < 0
        if over_M.any():
            self.sightings.index_fill_(0, local_M[over_M], _MOST)

    def forget(self, local_M: Tensor) -> None:
        """As if no update had ever reached or named these rows."""
        for tensor in self.kinds.values():
            tensor.index_fill_(0, local_M, 0)

    def freeze(self, local_M: Tensor, *, frozen: bool) -> None:
        """Joint: which of the rows of all ranks stay as they are, or no longer."""
        if frozen:
            self.expect_frozen()
        if self.frozen is not None:
            self.frozen.index_fill_(0, local_M, int(frozen))

    def expect_frozen(self) -> None:
        """Joint: has room to tell which rows are frozen."""
        if self.frozen is None:
            self.frozen = torch.zeros(len(self.updates), dtype=torch.uint8, device=self.updates.device)

    @property
    def any_frozen(self) -> bool:
        """Whether any row of this rank stays as it is."""
        return self.frozen is not None and bool(self.frozen.any())

    def are_frozen(self, local_M: Tensor) -> Tensor | None:
        """bool [M]: which of these rows stay as they are; None if none does."""
        if self.frozen is None:
            return None
        frozen_M = self.frozen.index_select(0, local_M)
        return frozen_M != 0 if frozen_M.any() else None

    def read(self, local_M: Tensor) -> Tensor:
        """int32 [M, 3]: updates, sightings, and whether the row is frozen; what isn't kept is 0."""
        read_M3 = torch.zeros(len(local_M), 3, dtype=torch.int32, device=local_M.device)
        for column, tensor in enumerate((self.updates, self.sightings, self.frozen)):
            if tensor is not None:
                read_M3[:, column] = tensor.index_select(0, local_M)
        return read_M3

    def at_hand(self, local_M: NDArray[np.int64]) -> NDArray[np.int32]:
        """The same of rows on the CPU, without torch, whose calls are dear where they are rare."""
        read_M3 = np.zeros((len(local_M), 3), np.int32)
        kept = self.updates, self.sightings, self.frozen
        if any(tensor is not known for tensor, known in zip(kept, self._kept, strict=True)):
            self._kept, self._arrays = kept, [None if tensor is None else tensor.numpy() for tensor in kept]
        for column, array in enumerate(self._arrays):
            if array is not None:
                read_M3[:, column] = array.take(local_M)
        return read_M3


def updates_as(dtype: torch.dtype, updates_N: Tensor) -> Tensor:
    """Updates of rows as books of this dtype have them: without counts, whether there were any; where only that is
    known, one."""
    return updates_N if updates_N.dtype == dtype else updates_N.clamp(0, 1).to(dtype)

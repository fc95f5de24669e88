"""One rank's share of one group: rows, optimizer state, and which rows an update has reached."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from embershard.engine.initial import fill_initial

if TYPE_CHECKING:
    from embershard.engine.placement import Group


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Shard:
    """Live tensors; kernels change them in place."""

    group: Group
    """What is stacked here."""
    rank: int
    """Whose share it is."""
    weight: Tensor
    """[block_rows, kernel_dim] of the group's dtype; columns past the group's dim are zeros and stay so."""
    state: Tensor | None
    """float32 sums of squares, [block_rows] or [block_rows, kernel_dim]; None for sgd."""
    trained: Tensor
    """uint8 [block_rows]: 1 once an update has reached the row."""

    def initialise(self, seed: int, progress: Callable[[int], object]) -> None:
        """Every row as it is before any update; `seed` is the collection's; tells `progress` of rows done."""
        self.weight.zero_()
        self.trained.zero_()
        if self.state is not None:
            self.state.zero_()
        for slot in self.group.slots.values():
            start, _ = slot.held(self.rank)
            view = self.weight[slot.local(self.rank), : self.group.dim]
            fill_initial(view, slot.table, seed, start, progress)

    def write(self, local_M: Tensor, values_MD: Tensor) -> None:
        """Overwrites rows of this shard with [M, kernel_dim], each at most once; optimizer state stays."""
        self.weight.index_copy_(0, local_M, values_MD.to(self.weight))
        self.trained.index_fill_(0, local_M, 1)

    def moved(self, local_M: Tensor) -> None:
        """Follows every step of the optimizer: these rows have been reached, and stay finite."""
        self.trained.index_fill_(0, local_M, 1)
        if self.weight.dtype == torch.float16:
            # A step beyond what half precision holds ends at its largest number, not at infinity and then at NaN.
            largest = torch.finfo(torch.float16).max
            self.weight.index_copy_(0, local_M, self.weight[local_M].clamp_(-largest, largest))

    def tensors(self, table: str) -> dict[str, Tensor]:
        """Views of one table's rows on this rank: `weight` [n, D], `sum` [n] or [n, D] if any, `trained` [n]."""
        local = self.group.slots[table].local(self.rank)
        views = {"weight": self.weight[local, : self.group.dim], "trained": self.trained[local]}
        if self.state is not None:
            views["sum"] = self.state[local] if self.state.ndim == 1 else self.state[local, : self.group.dim]
        return views

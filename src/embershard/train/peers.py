"""The ranks of a job, as models and evaluation see them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embershard.engine.world import World


class Peers:
    """What ranks bring together; every method is joint."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.rank, self.size, self.device = world.rank, world.size, world.device

    def gather(self, item: Any) -> list[Any]:
        """Every rank's item."""
        return self._world.gather(item)

    def everyones(self, rows_ND: Tensor) -> Tensor:
        """Rows of all ranks, one rank's after the other; gradients find the way back to whoever brought a row."""
        if self.size == 1:
            return rows_ND
        counts: list[int] = self._world.gather(len(rows_ND))
        gathered: Tensor = _Everyones.apply(rows_ND, counts, self.rank)  # type: ignore[no-untyped-call]
        return gathered

    def everyones_array(self, items_N: NDArray[Any]) -> NDArray[Any]:
        """The same of numbers that no gradient belongs to."""
        return items_N if self.size == 1 else np.concatenate(self._world.gather(items_N))

    def before(self, count: int) -> int:
        """How many all lower ranks bring together, if this one brings `count`."""
        return 0 if self.size == 1 else sum(self._world.gather(count)[: self.rank])


class _Everyones(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows_ND: Tensor, counts: list[int], rank: int) -> Tensor:
        ctx.counts, ctx.rank = counts, rank
        padded = rows_ND.new_zeros(max(counts), *rows_ND.shape[1:])
        padded[: len(rows_ND)] = rows_ND
        arrived = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(arrived, padded)
        return torch.cat([of_rank[:count] for of_rank, count in zip(arrived, counts, strict=True)])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradients: Tensor) -> tuple[Tensor, None, None]:
        summed = gradients.contiguous().clone()
        dist.all_reduce(summed)
        return summed.split(ctx.counts)[ctx.rank], None, None

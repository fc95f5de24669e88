"""The default engine: one process, FBGEMM's table-batched embeddings, no process group."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from fbgemm_gpu.split_embedding_configs import SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)
from torch import Tensor

from embershard.engine.base import Apply, Engine
from embershard.engine.kernels import optimizer_arguments, pooled, step_by, taken
from embershard.engine.placement import Group
from embershard.engine.shard import Shard
from embershard.sums import Sums

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from embershard.compose import RowBatch


class LocalEngine(Engine):
    """Every row in this process."""

    name, made_beside = "local", True
    _placed: list[Group] | None = None
    """The groups of which `_places` tells {matrix: name of its group, where it begins there}."""
    _places: Mapping[str, tuple[str, int]]

    def _make_shard(self, group: Group) -> Shard:
        """As `Engine._make_shard`."""
        on_cpu = self.world.device.type == "cpu"
        placed = (
            (EmbeddingLocation.HOST, ComputeDevice.CPU) if on_cpu else (EmbeddingLocation.DEVICE, ComputeDevice.CUDA)
        )
        # Pooled, with one id a bag: the update is fifteen times cheaper than that of the kernel without pooling.
        kernel = SplitTableBatchedEmbeddingBagsCodegen(
            [(group.block_rows, group.kernel_dim, *placed)],
            weights_precision=SparseType.from_dtype(group.dtype),
            output_dtype=SparseType.FP32,
            pooling_mode=PoolingMode.SUM,
            device=self.world.device,
            **optimizer_arguments(group),
        )
        states = kernel.split_optimizer_states() if group.state_shape is not None else [[None]]
        return Shard.of(group, kernel, self.world.rank, kernel.split_embedding_weights()[0].detach(), states[0][0])

    def _gather(self, group: Group, physical_M: Tensor) -> Tensor:
        return taken(self.shards[group.name].weight, physical_M)

    def placed(self, part: RowBatch) -> tuple[Shard, NDArray[np.int64]]:
        """As `Engine.placed`."""
        if self._placed is not self.groups:
            self._placed = self.groups
            self._places = {
                name: (group.name, slot.offset) for group in self.groups for name, slot in group.slots.items()
            }
        group_name, offset = self._places[part.table.name]
        rows_N = part.ids.rows_M
        return self.shards[group_name], rows_N + offset if offset else rows_N

    def _hold(self, group: Group, physical_M: Tensor) -> tuple[Tensor, Apply]:
        """As `Engine._hold`."""
        shard = self.shards[group.name]

        def apply(gradients_MD: Tensor) -> None:
            shard.move(physical_M, lambda: step_by(shard.kernel, group.optimizer.kind, physical_M, gradients_MD))

        return self._gather(group, physical_M).float(), apply

    def _hold_sums(self, group: Group, physical_M: Tensor, sums: Sums) -> tuple[Tensor, Apply]:
        """As `Engine._hold_sums`."""
        shard = self.shards[group.name]
        with torch.enable_grad():
            vectors = pooled(shard.kernel, physical_M, sums)

        def apply(gradients_MD: Tensor) -> None:
            shard.move(physical_M, lambda: vectors.backward(gradients_MD))

        return vectors.detach(), apply

    def _kernel(self, group: Group) -> Any:
        return self.shards[group.name].kernel

    def to_owners(self, group: Group, physical_M: Tensor, items: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """As `Engine.to_owners`."""
        return physical_M, items

    def _from_owners(self, group: Group, physical_M: Tensor, read: Callable[[Tensor], Tensor]) -> Tensor:
        return read(physical_M)

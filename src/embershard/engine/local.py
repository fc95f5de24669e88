"""The default engine: one process, FBGEMM's table-batched embeddings, no process group."""

from __future__ import annotations

import torch
from fbgemm_gpu.split_embedding_configs import SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)
from torch import Tensor

from embershard.config import Config
from embershard.engine.base import Engine
from embershard.engine.kernels import optimizer_arguments
from embershard.engine.placement import Group
from embershard.engine.shard import Shard
from embershard.engine.world import World


class LocalEngine(Engine):
    """Every row in this process."""

    name = "local"

    def __init__(self, config: Config, world: World) -> None:
        self._kernels: dict[str, SplitTableBatchedEmbeddingBagsCodegen] = {}
        super().__init__(config, world)

    def _make_shard(self, group: Group) -> Shard:
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
        self._kernels[group.name] = kernel
        states = kernel.split_optimizer_states() if group.state_shape is not None else [[None]]
        return Shard(
            group=group,
            rank=self.world.rank,
            weight=kernel.split_embedding_weights()[0].detach(),
            state=states[0][0],
            trained=torch.zeros(group.block_rows, dtype=torch.uint8, device=self.world.device),
        )

    def _gather(self, group: Group, physical_M: Tensor) -> Tensor:
        return self.shards[group.name].weight.index_select(0, physical_M).float()

    def _apply(self, group: Group, physical_M: Tensor, gradients_MD: Tensor) -> None:
        offsets = torch.arange(len(physical_M) + 1, device=self.world.device)
        self._kernels[group.name](physical_M, offsets).backward(gradients_MD)
        self.shards[group.name].moved(physical_M)

    def _write(self, group: Group, physical_M: Tensor, values_MD: Tensor) -> None:
        self.shards[group.name].write(physical_M, values_MD)

    def _trained(self, group: Group, physical_M: Tensor) -> Tensor:
        return self.shards[group.name].trained[physical_M].bool()

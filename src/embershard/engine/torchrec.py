"""The sharded engine: TorchRec's EmbeddingCollection, row-wise over the ranks, with all-to-all gathers.

A group is one TorchRec table with one feature. Rows that will be moved are one jagged sequence of it, so that ranks may
bring any number of rows, also none: TorchRec routes them to their owners, and the way back of autograd brings the
gradients there, to the fused optimizer. Rows that are only read, or for which gradients are already there, take two
exchanges of ours, which cost a part of that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from fbgemm_gpu.split_table_batched_embeddings_ops_common import PoolingMode
from torch import Tensor
from torch.nn.functional import pad
from torchrec import EmbeddingCollection, EmbeddingConfig, KeyedJaggedTensor
from torchrec.distributed.batched_embedding_kernel import BatchedFusedEmbedding
from torchrec.distributed.comm_ops import set_gradient_division
from torchrec.distributed.embedding import EmbeddingCollectionSharder, ShardedEmbeddingCollection
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise
from torchrec.distributed.types import ShardingEnv
from torchrec.modules.embedding_configs import DataType

from embershard.arrays import tensor_of
from embershard.config import Config
from embershard.engine.base import Apply, Engine
from embershard.engine.kernels import optimizer_arguments, pooled, taken
from embershard.engine.placement import Group
from embershard.engine.shard import Shard
from embershard.engine.world import World
from embershard.sums import ONE_EACH, Sums

_FEATURE = "rows"
_DTYPES = {torch.float32: DataType.FP32, torch.float16: DataType.FP16}


class TorchRecEngine(Engine):
    """Every row on the rank that owns it; at any world size."""

    name, made_beside = "torchrec", False

    def __init__(self, config: Config, world: World, *, seeded: bool = True) -> None:
        # The gradients of all ranks are summed, as they are in one process, and not averaged.
        set_gradient_division(False)
        super().__init__(config, world, seeded=seeded)

    def _make_shard(self, group: Group) -> Shard:
        """As `Engine._make_shard`."""
        module = _sharded(group, self.world)
        key = f"embeddings.{group.name}.weight"
        weight = module.state_dict()[key].local_shards()[0].tensor.detach()
        states = module.fused_optimizer.state_dict()["state"][key]
        momentum = states.get(f"{group.name}.momentum1") if group.state_shape is not None else None
        return Shard.of(
            group, module, self.world.rank, weight, None if momentum is None else momentum.local_shards()[0].tensor
        )

    def _gather(self, group: Group, physical_M: Tensor) -> Tensor:
        """As `Engine._gather`: a row travels once, however often it is asked for."""
        weight = self.shards[group.name].weight
        if self.world.size == 1:
            return taken(weight, physical_M)
        rows_u, at_M = torch.unique(physical_M, return_inverse=True)  # in order, and so by owner
        stored_u = _answers(group, rows_u, _counts(group, rows_u), lambda local_M: taken(weight, local_M))
        return taken(stored_u, at_M)

    def _hold(self, group: Group, physical_M: Tensor) -> tuple[Tensor, Apply]:
        """As `Engine._hold`."""
        shard = self.shards[group.name]
        with torch.enable_grad():
            vectors, local_M = self._forward(group, physical_M)

        def apply(gradients_MD: Tensor) -> None:
            shard.move(local_M, lambda: vectors.backward(gradients_MD))

        return vectors.detach(), apply

    def _forward(self, group: Group, physical_M: Tensor) -> tuple[Tensor, Tensor]:
        """The rows this rank asked for [M, kernel_dim], and the rows of its shard that any rank asked for."""
        module: ShardedEmbeddingCollection = self.shards[group.name].kernel
        lengths = torch.tensor([len(physical_M)], dtype=torch.int32, device=physical_M.device)
        asked = KeyedJaggedTensor(keys=[_FEATURE], values=physical_M, lengths=lengths)
        context = module.create_context()
        arrived = module.input_dist(context, asked).wait().wait()
        answered = module.compute_and_output_dist(context, arrived).wait()
        return answered[_FEATURE].values(), torch.cat([features.values() for features in arrived])

    def _hold_sums(self, group: Group, physical_M: Tensor, sums: Sums) -> tuple[Tensor, Apply]:
        """As `Engine._hold_sums`: every rank sums what it holds of each bag, and who has asked adds those up.

        So a bag costs as many vectors on the way as there are ranks, however many rows it has.
        """
        shard, size = self.shards[group.name], self.world.size
        module: ShardedEmbeddingCollection = shard.kernel
        arrived = module.input_dist(module.create_context(), _bags(physical_M, sums)).wait().wait()
        (features,) = arrived
        mine = 1 + (len(physical_M) if sums.offsets is None else len(sums.offsets) - 1)
        of_ranks = [mine] if size == 1 else _exchange_counts([mine] * size)
        kernel, rows_M = _kernel(module), features.values().long()
        with torch.enable_grad():
            partial: Tensor = kernel(rows_M, features.offsets().long(), features.weights_or_none())
        vectors = partial.detach()
        if size > 1:
            vectors = _exchange(vectors, of_ranks, [mine] * size).view(size, mine, group.kernel_dim).sum(dim=0)

        def apply(gradients_BD: Tensor) -> None:
            gradients_BD = pad(gradients_BD, (0, 0, 0, 1))
            if size > 1:
                gradients_BD = _exchange(gradients_BD.repeat(size, 1), [mine] * size, of_ranks)
            shard.move(rows_M, lambda: partial.backward(gradients_BD))

        return vectors[:-1], apply

    def _kernel(self, group: Group) -> Any:
        return _kernel(self.shards[group.name].kernel)

    def to_owners(self, group: Group, physical_M: Tensor, items: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """As `Engine.to_owners`."""
        if self.world.size == 1:
            return physical_M, items
        order, sent = _by_owner(group, physical_M)
        local_M, received = _ids_to_owners(group, physical_M[order], sent)
        return local_M, None if items is None else _exchange(items[order], sent, received)

    def _from_owners(self, group: Group, physical_M: Tensor, read: Callable[[Tensor], Tensor]) -> Tensor:
        order, sent = _by_owner(group, physical_M)
        answers = _answers(group, physical_M[order], sent, read)
        answers_M = torch.empty_like(answers)
        answers_M[order] = answers
        return answers_M


def _sharded(group: Group, world: World) -> ShardedEmbeddingCollection:
    """One TorchRec table, cut row-wise; made on the meta device, so that no rank ever holds the whole of it."""
    whole = EmbeddingCollection(
        tables=[
            EmbeddingConfig(
                name=group.name,
                num_embeddings=group.rows,
                embedding_dim=group.kernel_dim,
                feature_names=[_FEATURE],
                data_type=_DTYPES[group.dtype],
            )
        ],
        device=torch.device("meta"),
    )
    sharder = EmbeddingCollectionSharder(fused_params=optimizer_arguments(group))
    plan = construct_module_sharding_plan(
        whole,
        {group.name: row_wise(compute_kernel="fused")},
        sharder=sharder,
        local_size=world.local_size,
        world_size=world.size,
        device_type=world.device.type,
    )
    environment = ShardingEnv.from_process_group(dist.group.WORLD)
    sharded = sharder.shard(whole, plan, environment, world.device)
    _pool(sharded)
    return sharded


def _bags(physical_M: Tensor, sums: Sums) -> KeyedJaggedTensor:
    """The rows of each bag, and one bag more, without any: a rank without bags would have TorchRec fail."""
    device = physical_M.device
    counts_B = np.ones(len(physical_M), np.int64) if sums.offsets is None else np.diff(sums.offsets)
    weights_M = None if sums.coefficients_M is None else tensor_of(sums.coefficients_M).to(device)
    lengths_B = tensor_of(np.append(counts_B, 0).astype(np.int32)).to(device)
    return KeyedJaggedTensor(keys=[_FEATURE], values=physical_M, lengths=lengths_B, weights=weights_M)


def _lookup(module: ShardedEmbeddingCollection) -> BatchedFusedEmbedding:
    """What looks up the rows of this rank: there is one, as there is one table."""
    (found,) = (
        part for lookup in module._lookups for part in lookup.modules() if isinstance(part, BatchedFusedEmbedding)
    )
    return found


def _kernel(module: ShardedEmbeddingCollection) -> Any:
    return _lookup(module).emb_module


def _pool(module: ShardedEmbeddingCollection) -> None:
    """Has TorchRec's lookup of rows go through FBGEMM's kernel with pooling, one row a bag: on CPUs the way back of the
    one without costs six to ten times as much."""
    kernel = _kernel(module)
    kernel.pooling_mode = PoolingMode.SUM
    _lookup(module).forward = lambda features: pooled(kernel, features.values().long(), ONE_EACH)


def _by_owner(group: Group, physical_M: Tensor) -> tuple[Tensor, list[int]]:
    """An order of the rows by owning rank, and how many go to each."""
    return torch.argsort(group.owner(physical_M), stable=True), _counts(group, physical_M)


def _counts(group: Group, physical_M: Tensor) -> list[int]:
    counts: list[int] = torch.bincount(group.owner(physical_M), minlength=group.world_size).tolist()
    return counts


def _ids_to_owners(group: Group, physical_M: Tensor, sent: list[int]) -> tuple[Tensor, list[int]]:
    """Sends rows, which are in the order of their owners: rows of the shard, and how many each rank has sent."""
    received = _exchange_counts(sent)
    return group.on_rank(_exchange(physical_M, sent, received)), received


def _answers(group: Group, physical_M: Tensor, sent: list[int], read: Callable[[Tensor], Tensor]) -> Tensor:
    """What the owners of rows, which are in their order, read of them."""
    local_M, received = _ids_to_owners(group, physical_M, sent)
    return _exchange(read(local_M), received, sent)


def _exchange_counts(sent: list[int]) -> list[int]:
    counts = torch.tensor(sent)
    received = torch.empty_like(counts)
    dist.all_to_all_single(received, counts)
    return received.tolist()


def _exchange(items: Tensor, sent: list[int], received: list[int]) -> Tensor:
    """Sends `sent[r]` consecutive items to rank r; returns what came, in the order of the ranks."""
    arrived: Tensor = items.new_empty(sum(received), *items.shape[1:])
    dist.all_to_all_single(arrived, items.contiguous(), received, sent)
    return arrived

"""`nn.Embedding` and `nn.EmbeddingBag`, whose rows the service keeps."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from embershard.errors import InvalidInput
from embershard.torch.batches import Ids, bags, one_each
from embershard.torch.passes import looked_up
from embershard.torch.remote import Remote
from embershard.types import FeatureBatch
from embershard.v1 import embershard_pb2 as pb


class _RemoteModule(nn.Module):
    """The rows of one feature's table. It has no parameters: the service's optimizer moves rows.

    Gradients are sent as backward gives them: not scaled back, not clipped, and those of several backward passes not
    summed. They are sent in training mode, with gradients enabled, and unless the table is frozen.
    """

    def __init__(self, remote: Remote, feature: str) -> None:
        super().__init__()
        self.remote, self.feature, self._table = remote, feature, remote.table(feature)

    @property
    def embedding_dim(self) -> int:
        """D."""
        return self._table.dim

    @property
    def num_embeddings(self) -> int:
        """Rows of the table when the trainer connected. Hashed and vocabulary ids may be any."""
        return self._table.rows

    def extra_repr(self) -> str:
        """What `print` tells of it."""
        table = self._table
        return (
            f"{self.feature!r}, {table.rows}, {table.dim}, ids={table.id_kind}, optimizer={table.optimizer}, "
            f"learning_rate={table.learning_rate:g}"
        )

    def _vectors(self, batch: FeatureBatch, device: torch.device) -> Tensor:
        """float32 [N or B, D]."""

        def look_up() -> Tensor:
            vectors = self.remote.look_up(batch)
            return vectors.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else vectors.to(device)

        moves = self.training and torch.is_grad_enabled() and not self._table.frozen
        return looked_up(look_up, batch, self.remote.passes) if moves else look_up()


class RemoteEmbedding(_RemoteModule):
    """As `nn.Embedding`, for a feature whose table doesn't pool.

    Raises:
        InvalidInput: an unknown feature, or one whose table pools.
    """

    def __init__(self, remote: Remote, feature: str) -> None:
        super().__init__(remote, feature)
        if self._table.pooling != pb.POOLING_NONE:
            raise InvalidInput(
                f"feature {feature!r}: table {self._table.name!r} pools by {_mode(self._table)}; use RemoteEmbeddingBag"
            )

    def forward(self, ids: Ids) -> Tensor:
        """Ids of any shape → their vectors, float32 [*shape, D], where the ids are; or N strings → [N, D] on the CPU.

        Raises:
            InvalidInput: no integers, or what the service refuses: an id out of range of a table with direct ids, say.
            EmbershardError: the lookup has failed, or an earlier update has.
        """
        rows = self._vectors(one_each(self.feature, ids), _device(ids))
        return rows.reshape(*ids.shape, self.embedding_dim) if isinstance(ids, Tensor) else rows


class RemoteEmbeddingBag(_RemoteModule):
    """As `nn.EmbeddingBag`, for a feature whose table pools, by sum or mean: `mode` may say which.

    Raises:
        InvalidInput: an unknown feature, one whose table doesn't pool, or not by this mode.
    """

    def __init__(
        self, remote: Remote, feature: str, *, mode: str | None = None, include_last_offset: bool = False
    ) -> None:
        super().__init__(remote, feature)
        if self._table.pooling == pb.POOLING_NONE:
            raise InvalidInput(f"feature {feature!r}: table {self._table.name!r} doesn't pool; use RemoteEmbedding")
        self.mode, self.include_last_offset = _mode(self._table), include_last_offset
        if mode not in (None, self.mode):
            raise InvalidInput(f"feature {feature!r}: table {self._table.name!r} pools by {self.mode}, not by {mode}")

    def extra_repr(self) -> str:
        """What `print` tells of it."""
        return f"{super().extra_repr()}, mode={self.mode}"

    def forward(self, ids: Ids, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        """Bags of ids → their vectors, float32 [B, D], zeros of an empty bag; where the ids are.

        Ids are [B, L], or [N], or N strings, with offsets [B] where each bag begins (`include_last_offset`: [B + 1],
        with N at the end). `per_sample_weights` are a number an id; a mean is divided by their sum.

        Raises:
            InvalidInput: as for `RemoteEmbedding`, and offsets that aren't of these ids, or weights that require a
                gradient, which the service doesn't give.
            EmbershardError: the lookup has failed, or an earlier update has.
        """
        last = self.include_last_offset
        batch = bags(self.feature, ids, offsets, per_sample_weights, include_last_offset=last)
        return self._vectors(batch, _device(ids))


def _mode(table: pb.Table) -> str:
    return pb.Pooling.Name(table.pooling).removeprefix("POOLING_").lower()


def _device(ids: Ids) -> torch.device:
    return ids.device if isinstance(ids, Tensor) else torch.device("cpu")

"""Two towers: a vector of the user and one of the item, whose product says how well they go together.

The loss of an example is that of telling its item from all other items of the global batch. Popular items are in more
batches, and so are wrong answers too often; their logits are corrected by the log of how often they come (Yi et al.
2019, "Sampling-bias-corrected neural modeling for large corpus item recommendations").

    B  examples of this rank    G  examples of all ranks    E  width of both towers
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from embershard.arrays import tensor_of
from embershard.ids import uint64_of
from embershard.train.models.layers import perceptron

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embershard.train.batches import Batch
    from embershard.train.model import About, Inputs
    from embershard.train.peers import Peers
    from embershard.types import FeatureBatch


class TwoTower(nn.Module):
    """`user` and `item` are the features of each tower, the first of `item` is the one that tells items apart.

    `widths` are those of the layers of both towers; none: vectors are summed, as in factorised matrices. Vectors have
    length 1 if `cosine`; products are divided by `temperature`. How often items come is counted in `buckets`, by hash.
    """

    def __init__(
        self,
        about: About,
        *,
        user: Sequence[str],
        item: Sequence[str],
        widths: Sequence[int] = (),
        cosine: bool = False,
        temperature: float = 1.0,
        log_q: bool = True,
        buckets: int = 2**20,
    ) -> None:
        super().__init__()
        self.query_features, self.item_features = tuple(user), tuple(item)
        self.user, self.item = (_Tower([about.given(name).dim for name in side], widths) for side in (user, item))
        self._table, self._seed = about.tables[self.item_features[0]], about.seed
        self._cosine, self._temperature, self._log_q = cosine, temperature, log_q
        self.sighted: Tensor
        self.register_buffer("sighted", torch.zeros(buckets, dtype=torch.int64))

    def wanted(self, batch: Batch, step: int, peers: Peers) -> Mapping[str, FeatureBatch]:  # noqa: ARG002  # as of others
        """Those of both towers."""
        names = (*self.query_features, *self.item_features)
        return {name: batch.features[name] for name in names if name in batch.features}

    def queries(self, inputs: Inputs) -> Tensor:
        """[B, E]."""
        return self._finished(self.user([inputs.one_each(name) for name in self.query_features]))

    def candidates(self, inputs: Inputs) -> Tensor:
        """[B, E]."""
        return self._finished(self.item([inputs.one_each(name) for name in self.item_features]))

    def forward(self, inputs: Inputs) -> Tensor:
        """The losses [B] of telling each example's item from those of all ranks' examples."""
        keys_B = uint64_of(self._table, self._seed, inputs.batch.features[self.item_features[0]].ids)
        keys_G = inputs.peers.everyones_array(keys_B)
        items_GE = inputs.peers.everyones(self.candidates(inputs))
        logits_BG = self.queries(inputs) @ items_GE.T / self._temperature
        if self._log_q:
            logits_BG = logits_BG - self._log_shares(keys_G).to(inputs.device)
        own_B = torch.arange(len(keys_B)) + inputs.peers.before(len(keys_B))
        # The same item in another example is no wrong answer.
        same_BG = tensor_of(keys_B[:, None] == keys_G)
        same_BG[torch.arange(len(keys_B)), own_B] = False
        logits_BG = logits_BG.masked_fill(same_BG.to(inputs.device), -torch.inf)
        return cross_entropy(logits_BG, own_B.to(inputs.device), reduction="none")

    def _log_shares(self, keys_G: NDArray[np.uint64]) -> Tensor:
        """How often each item has come until now, in training this batch included, as the log of its share."""
        buckets = np.uint64(len(self.sighted))
        buckets_G = tensor_of(np.mod(keys_G, buckets).astype(np.int64)).to(self.sighted.device)
        if self.training:
            self.sighted.index_add_(0, buckets_G, torch.ones_like(buckets_G))
        # One that has never come is as rare as one that has come once.
        return (self.sighted[buckets_G].clamp(min=1) / self.sighted.sum().clamp(min=1)).log()

    def _finished(self, vectors_BE: Tensor) -> Tensor:
        return normalize(vectors_BE, dim=1) if self._cosine else vectors_BE


class _Tower(nn.Module):
    def __init__(self, dims: Sequence[int], widths: Sequence[int]) -> None:
        super().__init__()
        self.layers = perceptron(sum(dims), widths) if widths else None

    def forward(self, vectors: Sequence[Tensor]) -> Tensor:
        """[B, E]."""
        if self.layers is None:
            return torch.stack(list(vectors)).sum(dim=0)
        made: Tensor = self.layers(torch.cat(list(vectors), dim=1))
        return made

"""DLRM: the logit of a click, of the products of each two vectors.

Naumov et al. 2019, "Deep learning recommendation model for personalization and recommendation systems".

    B  examples    F  columns of numbers    K  vectors an example    D  dim of all vectors
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from embershard.errors import ConfigError
from embershard.train.models.layers import perceptron

if TYPE_CHECKING:
    from embershard.train.model import About, Inputs


class DLRM(nn.Module):
    """`bottom` and `top` are the widths of hidden layers: of the columns of numbers, and of all together.

    The paper's top sees the columns of numbers and the products; `vectors`: it also sees the vectors themselves.
    """

    def __init__(
        self, about: About, *, bottom: Sequence[int] = (64,), top: Sequence[int] = (64, 32), vectors: bool = False
    ) -> None:
        super().__init__()
        self.features = list(about.features)
        dims = {about.given(feature).dim for feature in self.features}
        if len(dims) != 1:
            raise ConfigError(f"DLRM multiplies vectors, so all features need one dim; there are {sorted(dims)}")
        (dim,) = dims
        self.bottom = perceptron(about.dense, [*bottom, dim], last=True) if about.dense else None
        count, self._vectors = len(self.features) + bool(about.dense), vectors
        self.pairs: Tensor
        row, column = torch.triu_indices(count, count, offset=1)
        self.register_buffer("pairs", row * count + column, persistent=False)
        shown = count if vectors else int(bool(about.dense))
        self.top = perceptron(len(self.pairs) + shown * dim, [*top, 1])

    def scores(self, inputs: Inputs) -> Tensor:
        """Logits [B]."""
        vectors = [inputs.one_each(feature) for feature in self.features]
        if self.bottom is not None:
            vectors.append(self.bottom(inputs.dense_BF))
        vectors_BKD = torch.stack(vectors, dim=1)
        products_BKK = vectors_BKD @ vectors_BKD.transpose(1, 2)
        shown = vectors if self._vectors else vectors[len(self.features) :]
        pairs_BP = products_BKK.flatten(1).index_select(1, self.pairs)
        logits_B1: Tensor = self.top(torch.cat([*shown, pairs_BP], dim=1))
        return logits_B1[:, 0]

    def forward(self, inputs: Inputs) -> Tensor:
        """Log losses [B]."""
        return binary_cross_entropy_with_logits(self.scores(inputs), inputs.labels_B, reduction="none")

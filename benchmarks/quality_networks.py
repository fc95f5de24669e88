"""The networks on top of the tables: a few thousand numbers, the same for every kind of table.

Shapes: B examples, D numbers in a vector, F fields (vectors of an example), W numbers in a hidden layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Final

import torch
from torch import Tensor, nn

HIDDEN: Final = 64
"""W."""


class Factorisation(nn.Module):
    """mean + a·u + b·i + u·M·i of the vectors u and i of a person and an item."""

    def __init__(self, dim: int, mean: float) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.tensor(mean))
        self.user_effect, self.item_effect = nn.Linear(dim, 1, bias=False), nn.Linear(dim, 1, bias=False)
        self.between = nn.Linear(dim, dim, bias=False)
        nn.init.eye_(self.between.weight)

    def forward(self, users_BD: Tensor, items_BD: Tensor) -> Tensor:
        """[B]."""
        effects_B1 = self.user_effect(users_BD) + self.item_effect(items_BD)
        products_B: Tensor = (self.between(users_BD) * items_BD).sum(dim=1)
        stars_B: Tensor = self.mean + effects_B1.squeeze(1) + products_B
        return stars_B


class Clicks(nn.Module):
    """The logit of a click, from the vectors of all fields, the products of each two, and the sums of those."""

    def __init__(self, dim: int, fields: int) -> None:
        super().__init__()
        pairs = fields * (fields - 1) // 2
        self.layers = nn.Sequential(
            nn.Linear(dim * (fields + pairs) + pairs, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, HIDDEN // 2),
            nn.ReLU(),
            nn.Linear(HIDDEN // 2, 1),
        )

    def forward(self, fields_FBD: Sequence[Tensor]) -> Tensor:
        """[B]."""
        products = [one_BD * other_BD for one_BD, other_BD in combinations(fields_FBD, 2)]
        sums = [product_BD.sum(dim=1, keepdim=True) for product_BD in products]
        logits_B: Tensor = self.layers(torch.cat([*fields_FBD, *products, *sums], dim=1)).squeeze(1)
        return logits_B


class NextItem(nn.Module):
    """How well an item goes with a query: a product of vectors, and how popular the item is by its own vector."""

    def __init__(self, dim: int, fields: int) -> None:
        super().__init__()
        self.direct = nn.Linear(dim * fields, dim)
        self.query = nn.Sequential(nn.Linear(dim * fields, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, dim))
        self.popularity = nn.Linear(dim, 1)

    def queries(self, fields_FBD: Sequence[Tensor]) -> Tensor:
        """[B, D]."""
        fields_BX = torch.cat(list(fields_FBD), dim=1)
        queries_BD: Tensor = self.direct(fields_BX) + self.query(fields_BX)
        return queries_BD

    def forward(self, queries_BD: Tensor, items_ID: Tensor) -> Tensor:
        """[B, I] for queries [B, D] and items [I, D]; or [G, B, I] for G groups of both."""
        logits: Tensor = queries_BD @ items_ID.transpose(-1, -2) + self.popularity(items_ID).transpose(-1, -2)
        return logits

"""The models of `embershard.train` once more, as plain PyTorch on nn.Embedding, written for clearness: with loops."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from embershard.train.batches import Batch


def tables(rows: dict[str, Tensor]) -> nn.ModuleDict:
    """An nn.Embedding a table, with these rows."""
    made = {
        name: nn.Embedding.from_pretrained(start.clone(), freeze=False, sparse=True) for name, start in rows.items()
    }
    return nn.ModuleDict(made)


class PlainDLRM(nn.Module):
    def __init__(self, rows: dict[str, Tensor], layers: nn.Module) -> None:
        super().__init__()
        self.tables, self.bottom, self.top = tables(rows), layers.bottom, layers.top

    def forward(self, batch: Batch, **_: Any) -> Tensor:
        dim = self.tables["user"].embedding_dim
        logits = []
        tags, lengths = batch.features["tags"].ids, batch.features["tags"].lengths
        ends = lengths.cumsum()
        for at in range(batch.examples):
            bag = torch.tensor(tags[ends[at] - lengths[at] : ends[at]])
            vectors = [
                self.tables["user"](torch.tensor(batch.features["user_id"].ids[at])),
                self.tables["item"](torch.tensor(batch.features["item_id"].ids[at])) * dim**0.5,
                self.tables["tag"](bag).mean(0) if len(bag) else torch.zeros(dim),
                self.bottom(torch.from_numpy(batch.dense_BF[at])),
            ]
            products = [vectors[i] @ vectors[j] for i in range(4) for j in range(i + 1, 4)]
            logits.append(self.top(torch.cat([vectors[3], torch.stack(products)])))
        labels = torch.from_numpy(batch.labels_B)
        return binary_cross_entropy_with_logits(torch.cat(logits), labels)


class PlainTwoTower(nn.Module):
    def __init__(self, rows: dict[str, Tensor], layers: nn.Module) -> None:
        super().__init__()
        self.tables, self.user, self.item = tables(rows), layers.user.layers, layers.item.layers
        self.seen: Counter[int] = Counter()

    def forward(self, batch: Batch, **_: Any) -> Tensor:
        dim = self.tables["user"].embedding_dim
        users, items = batch.features["user_id"].ids.tolist(), batch.features["item_id"].ids.tolist()
        tags, lengths = batch.features["tags"].ids, batch.features["tags"].lengths
        ends = lengths.cumsum()
        self.seen.update(items)
        total = sum(self.seen.values())
        vectors = [self.item(self.tables["item"](torch.tensor(item)) * dim**0.5) for item in items]
        losses = []
        for at, user in enumerate(users):
            bag = torch.tensor(tags[ends[at] - lengths[at] : ends[at]])
            mean = self.tables["tag"](bag).mean(0) if len(bag) else torch.zeros(dim)
            query = self.user(torch.cat([self.tables["user"](torch.tensor(user)), mean]))
            others = [place for place, item in enumerate(items) if place == at or item != items[at]]
            logits = torch.stack([query @ vectors[i] - torch.tensor(self.seen[items[i]] / total).log() for i in others])
            losses.append(cross_entropy(logits[None], torch.tensor([others.index(at)])))
        return torch.stack(losses).mean()


class PlainNextItem(nn.Module):
    def __init__(self, rows: dict[str, Tensor], layers: nn.Module) -> None:
        super().__init__()
        self.tables, self.positions, self.blocks, self.norm = tables(rows), layers.positions, layers.blocks, layers.norm

    def forward(self, batch: Batch, **_: Any) -> Tensor:
        item = self.tables["item"]
        ids, lengths = batch.features["history"].ids, batch.features["history"].lengths
        ends = lengths.cumsum()
        losses = []
        for at in range(batch.examples):
            sequence = torch.tensor(ids[ends[at] - lengths[at] : ends[at]])
            for until in range(1, len(sequence)):
                seen = item(sequence[:until]) * item.embedding_dim**0.5 + self.positions.weight[:until]
                mask = nn.Transformer.generate_square_subsequent_mask(until)
                state = self.norm(self.blocks(seen[None], mask=mask))[0, -1]
                choice = item(torch.arange(1, item.num_embeddings))
                losses.append(cross_entropy((choice @ state)[None], sequence[until : until + 1] - 1))
        return torch.stack(losses).mean()


PLAIN = {"dlrm": PlainDLRM, "two_tower": PlainTwoTower, "next_item": PlainNextItem}

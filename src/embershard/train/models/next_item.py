"""The next item of a sequence, by self-attention; items go in and come out by the rows of one table.

Kang and McAuley 2018, "Self-attentive sequential recommendation"; tied input and output as in Press and Wolf 2017, and
√dim as in Vaswani et al. 2017: let the table say `scale = "sqrt_dim"`, so that vectors are scaled on their way in; on
the way out that is undone.

    B  sequences    L  length of the longest    N  items of all sequences    P  positions with an item to foresee
    I  items to choose from    D  dim of the table
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from embershard.arrays import tensor_of
from embershard.errors import ConfigError, InvalidInput
from embershard.ids import rows_of
from embershard.types import FeatureBatch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embershard.train.batches import Batch
    from embershard.train.model import About, Inputs
    from embershard.train.peers import Peers


class NextItem(nn.Module):
    """Foresees items of a feature `sequence` from those before them; `item` is a feature of the same table.

    If the data has `item`, it is what follows each sequence, and is all that is foreseen; else each item of a sequence
    is, but the first: then a sequence is best as long as it can be, and in the data once.

    The items to choose from are all of a direct table, or at each step `negatives` of them, drawn evenly, and all of
    the global batch.
    """

    def __init__(
        self,
        about: About,
        *,
        sequence: str,
        item: str,
        length: int = 50,
        blocks: int = 2,
        heads: int = 1,
        dropout: float = 0.2,
        negatives: int = 0,
    ) -> None:
        super().__init__()
        self.query_features, self.item_features = (sequence,), (item,)
        self._sequence, self._item, self._negatives = sequence, item, negatives
        table, self._seed = about.given(sequence), about.seed
        self._table, dim = table, table.dim
        if about.tables.get(item) is not table:
            raise ConfigError(
                f"model_options: {sequence!r} and {item!r} must be features of one table, whose rows are tied"
            )
        if table.ids.kind != "direct" or table.pooling != "none":
            raise ConfigError(f"next_item needs a table of direct ids without pooling; {table.name!r} is another")
        rows_I = np.arange(table.rows)
        self._items_I = rows_I if table.ids.padding is None else rows_I[rows_I != table.ids.padding]
        self._shrink = table.dim**-0.5 if table.scale == "sqrt_dim" else 1.0
        self.positions = nn.Embedding(length, dim)
        nn.init.normal_(self.positions.weight, std=0.02)
        block = nn.TransformerEncoderLayer(
            dim, heads, dim_feedforward=dim, dropout=dropout, batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, blocks, enable_nested_tensor=False)
        self.norm, self.dropout = nn.LayerNorm(dim), nn.Dropout(dropout)

    def wanted(self, batch: Batch, step: int, peers: Peers) -> Mapping[str, FeatureBatch]:
        """The sequences, and this rank's share of the items to choose from."""
        longest, most = int(_lengths(batch.features[self._sequence]).max(initial=0)), self.positions.num_embeddings
        if longest > most:
            raise ConfigError(
                f"a sequence has {longest} items, and model_options.length is {most}: give data.features."
                f"{self._sequence} a max_length"
            )
        chosen = FeatureBatch(feature=self._item, ids=self._share(batch, step, peers))
        return {self._sequence: batch.features[self._sequence], self._item: chosen}

    def queries(self, inputs: Inputs) -> Tensor:
        """[B, D]: what is to follow each sequence."""
        sequences = inputs.batch.features[self._sequence]
        states_BLD = self._states(inputs.vectors[self._sequence], sequences)
        last_B = tensor_of(np.maximum(_lengths(sequences) - 1, 0))
        return states_BLD[torch.arange(len(last_B)), last_B]

    def candidates(self, inputs: Inputs) -> Tensor:
        """[I, D]."""
        return inputs.vectors[self._item] * self._shrink

    def forward(self, inputs: Inputs) -> Tensor:
        """The losses [P] of all that is foreseen."""
        states_PD, right_P = self._foreseen(inputs)
        order_I, place_I = np.unique(
            inputs.peers.everyones_array(self._share(inputs.batch, inputs.step, inputs.peers)), return_index=True
        )
        items_ID = inputs.peers.everyones(self.candidates(inputs))[tensor_of(place_I)]
        logits_PI = states_PD @ items_ID.T
        place_P = np.searchsorted(order_I, right_P)
        return cross_entropy(logits_PI, tensor_of(place_P).to(inputs.device), reduction="none")

    def _foreseen(self, inputs: Inputs) -> tuple[Tensor, NDArray[np.int64]]:
        """The states [P, D] from which items are foreseen, and the rows [P] of those items."""
        features = inputs.batch.features
        if self._item in features:
            return self.queries(inputs), self._rows(features[self._item])
        sequences = features[self._sequence]
        row_N, place_N = _places(_lengths(sequences))
        follows_P = np.flatnonzero(place_N > 0)
        states_BLD = self._states(inputs.vectors[self._sequence], sequences)
        # What follows is foreseen from the place before it.
        states_PD = states_BLD[tensor_of(row_N[follows_P]), tensor_of(place_N[follows_P] - 1)]
        return states_PD, self._rows(sequences)[follows_P]

    def _share(self, batch: Batch, step: int, peers: Peers) -> NDArray[np.int64]:
        """This rank's share of the items to choose from; all ranks' together are the same at any world size."""
        if not self._negatives:
            return np.array_split(self._items_I, peers.size)[peers.rank]
        drawn = np.random.default_rng([self._seed, step]).choice(self._items_I, self._negatives)
        mine = np.array_split(drawn, peers.size)[peers.rank]
        given = batch.features.get(self._item, batch.features[self._sequence])
        return np.unique(np.concatenate([mine, self._rows(given)]))

    def _rows(self, sequences: FeatureBatch) -> NDArray[np.int64]:
        """The rows [N] of all items: their ids, or what a list of names says.

        Raises:
            InvalidInput: a padding id, which nothing can be learned of.
        """
        found = rows_of(self._table, self._seed, sequences)
        if found.kept_N is not None:
            at = int(np.argmin(found.kept_N))
            raise InvalidInput(f"feature {sequences.feature!r}: ids[{at}] is the padding id; leave it out of sequences")
        return found.rows_M

    def _states(self, vectors_ND: Tensor, sequences: FeatureBatch) -> Tensor:
        """[B, L, D]: after each item, what has been seen until then."""
        lengths_B = _lengths(sequences)
        longest = max(int(lengths_B.max(initial=0)), 1)
        row_N, place_N = (tensor_of(numbers).to(vectors_ND.device) for numbers in _places(lengths_B))
        padded_BLD = vectors_ND.new_zeros(len(lengths_B), longest, vectors_ND.shape[1])
        padded_BLD = padded_BLD.index_put((row_N, place_N), vectors_ND)
        seen_BLD = self.dropout(padded_BLD + self.positions.weight[:longest])
        # What stands behind a sequence's end is seen by nothing before it, so that only the future is to be hidden.
        mask_LL = nn.Transformer.generate_square_subsequent_mask(longest, device=vectors_ND.device)
        states_BLD: Tensor = self.norm(self.blocks(seen_BLD, mask=mask_LL, is_causal=True))
        return states_BLD


def _lengths(sequences: FeatureBatch) -> NDArray[np.int64]:
    assert sequences.lengths is not None
    return sequences.lengths.astype(np.int64)


def _places(lengths_B: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Of each item, its sequence [N] and its place there [N]."""
    row_N = np.repeat(np.arange(len(lengths_B)), lengths_B)
    return row_N, np.arange(len(row_N)) - np.repeat(np.cumsum(lengths_B) - lengths_B, lengths_B)

"""A training job's files of a ranking as matrices: what was learned of, what is asked, and how good an answer is.

Shapes: U people, I items, P events to learn of, E pairs of an event and the one before it, B queries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from scipy.sparse import csr_matrix

from embershard.engine.world import SoloWorld
from embershard.train.metrics import RankMetrics
from embershard.train.peers import Peers

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa
    from numpy.typing import NDArray

CHUNK: Final = 1_024
"""Queries that are scored at once."""
Scores: TypeAlias = Callable[["NDArray[np.int64]"], "NDArray[np.float32]"]
"""Of the queries with these numbers [b], the scores [b, I] of all items."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Ranking:
    """One split, items numbered as their file lists them."""

    learned_UI: csr_matrix
    """How often somebody had an item in what is learned of."""
    before_E: NDArray[np.int64]
    """Items after which"""
    after_E: NDArray[np.int64]
    """these came; nothing where the data has no order."""
    users_B: NDArray[np.int64]
    """Who asks."""
    counts_BI: csr_matrix
    """How often they had had an item before,"""
    places_BI: csr_matrix
    """and at which place the last time, from 1."""
    last_B: NDArray[np.int64]
    """The last of them, or -1."""
    seen_BI: csr_matrix | None
    """What isn't to be found again."""
    targets_BI: csr_matrix
    """What is to be found."""

    def measured(self, scores: Scores, k: int = 10) -> dict[str, float]:
        """Recall@k and NDCG@k, by the code that evaluates training jobs."""
        metrics = RankMetrics(Peers(SoloWorld()), [k])
        for first in range(0, len(self.users_B), CHUNK):
            asked_b = np.arange(first, min(first + CHUNK, len(self.users_B)))
            scores_bI = torch.from_numpy(scores(asked_b).astype(np.float32))
            if self.seen_BI is not None:
                scores_bI[torch.from_numpy(self.seen_BI[asked_b].toarray() > 0)] = -torch.inf
            targets_bI = torch.from_numpy(self.targets_BI[asked_b].toarray() > 0)
            metrics.update(scores_bI, targets_bI, torch.zeros(len(asked_b), dtype=torch.int64), first)
        return metrics.compute()


def read_ranking(train: Path, evaluate: Path, items_path: Path) -> Ranking:
    """Reads the files of one job.

    What is learned of is a row an event (`item_id`, perhaps with the `history` before it), or a row a sequence
    (`history` alone).
    """
    items = pq.read_table(items_path, columns=["item_id"])["item_id"].combine_chunks()
    learned, asked = pq.read_table(train), pq.read_table(evaluate)
    users_U = np.union1d(learned["user_id"].to_numpy(), asked["user_id"].to_numpy())
    users_P, items_P, before_E, after_E = _events(items, learned)
    had = asked["seen" if "seen" in asked.schema.names else "history"]
    seen = _matrix(items, asked["seen"]) if "seen" in asked.schema.names else None
    shape = len(users_U), len(items)
    return Ranking(
        learned_UI=csr_matrix((np.ones(len(items_P), np.float32), (np.searchsorted(users_U, users_P), items_P)), shape),
        before_E=before_E,
        after_E=after_E,
        users_B=np.searchsorted(users_U, asked["user_id"].to_numpy()),
        counts_BI=_matrix(items, had),
        places_BI=_places(items, had),
        last_B=_lasts(items, had),
        seen_BI=seen,
        targets_BI=_matrix(items, asked["targets"]),
    )


def _events(items: pa.Array, learned: pa.Table) -> tuple[NDArray[Any], ...]:
    """Who [P] had which item [P]; and which items [E] came right before which [E]."""
    users_B = learned["user_id"].to_numpy()
    if "item_id" in learned.schema.names:
        items_B, before_B = _numbers(items, learned["item_id"]), _lasts(items, learned["history"])
        return users_B, items_B, before_B[before_B >= 0], items_B[before_B >= 0]
    sequence_P, items_P = _flat(items, learned["history"])
    follows_E = np.flatnonzero(sequence_P[1:] == sequence_P[:-1]) + 1
    return users_B[sequence_P], items_P, items_P[follows_E - 1], items_P[follows_E]


def _numbers(items: pa.Array, names: pa.Array | pa.ChunkedArray) -> NDArray[np.int64]:
    """The places of names in the list of all items."""
    places = pc.index_in(names, value_set=items.cast(names.type))
    assert not places.null_count, "all items are in the list"
    found: NDArray[np.int64] = places.to_numpy().astype(np.int64)
    return found


def _flat(items: pa.Array, lists: pa.ChunkedArray) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The list that each item is in, and the item."""
    array = lists.combine_chunks()
    lengths_B = array.value_lengths().to_numpy()
    return np.repeat(np.arange(len(lengths_B)), lengths_B), _numbers(items, array.flatten())


def _matrix(items: pa.Array, lists: pa.ChunkedArray) -> csr_matrix:
    list_N, item_N = _flat(items, lists)
    return csr_matrix((np.ones(len(item_N), np.float32), (list_N, item_N)), shape=(len(lists), len(items)))


def _places(items: pa.Array, lists: pa.ChunkedArray) -> csr_matrix:
    """[B, I]: the place of each item in each list, from 1; of those that are there again, the last."""
    list_N, item_N = _flat(items, lists)
    place_N = np.arange(len(list_N)) - np.searchsorted(list_N, list_N) + 1
    _, latest = np.unique((list_N * len(items) + item_N)[::-1], return_index=True)
    kept = len(list_N) - 1 - latest
    values = place_N[kept].astype(np.float32)
    return csr_matrix((values, (list_N[kept], item_N[kept])), (len(lists), len(items)))


def _lasts(items: pa.Array, lists: pa.ChunkedArray) -> NDArray[np.int64]:
    """The last item of each list; of an empty one, -1."""
    list_N, item_N = _flat(items, lists)
    lasts_B = np.full(len(lists), -1)
    lasts_B[list_N] = item_N
    return lasts_B

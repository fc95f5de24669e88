"""Tells how good a model is, by data that it hasn't learned of; what is told depends on what the model can do.

scores                   compared with labels: AUC, log loss, normalised entropy
queries, candidates      all items ranked for each query: Recall@k, NDCG@k
neither                  the mean of its losses
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from embershard.errors import InvalidInput
from embershard.ids import uint64_of
from embershard.store.agreement import everywhere
from embershard.train.metrics import ClickMetrics, RankMetrics
from embershard.train.model import Inputs, ScoresClicks, wanted

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embershard.config import TableSpec
    from embershard.train.batches import Batch, Stream
    from embershard.train.job import EvaluateSpec
    from embershard.train.peers import Peers
    from embershard.train.tables import Tables

Metrics = dict[str, float | None]
"""{name: value}; None where it has no meaning."""


class Evaluation:
    """What a job evaluates on; every method is joint."""

    def __init__(self, spec: EvaluateSpec, *, queries: Stream, items: Stream | None, seed: int, peers: Peers) -> None:
        """`seed` is the collection's."""
        self._spec, self._queries, self._items, self._seed, self._peers = spec, queries, items, seed, peers

    def __call__(self, model: nn.Module, tables: Tables, step: int) -> Metrics:
        """The metrics of a model as it is."""
        with _resting(model, tables), torch.no_grad():
            if isinstance(model, ScoresClicks):
                return self._clicks(model, tables, step)
            if self._items is not None:
                return self._ranks(model, tables, step, self._items)
            return self._losses(model, tables, step)

    def _clicks(self, model: Any, tables: Tables, step: int) -> Metrics:
        metrics = ClickMetrics(self._peers)
        for inputs in self._inputs(self._queries, model, tables, step):
            metrics.update(model.scores(inputs), inputs.labels_B)
        return metrics.compute()

    def _losses(self, model: nn.Module, tables: Tables, step: int) -> Metrics:
        losses = [model(inputs).cpu().numpy() for inputs in self._inputs(self._queries, model, tables, step)]
        return {"evaluation_loss": float(self._peers.everyones_array(np.concatenate(losses)).mean())}

    def _ranks(self, model: Any, tables: Tables, step: int, items: Stream) -> Metrics:
        feature = model.item_features[0]
        table = tables.engine.config.table_of_feature(feature)
        keys, vectors = [], []
        for inputs in self._inputs(items, model, tables, step, model.item_features):
            keys.append(self._peers.everyones_array(uint64_of(table, self._seed, inputs.batch.features[feature].ids)))
            vectors.append(self._peers.everyones(model.candidates(inputs)))
        keys_I, vectors_IE = np.concatenate(keys), torch.cat(vectors)
        metrics, first = RankMetrics(self._peers, self._spec.k), 0
        for inputs in self._inputs(self._queries, model, tables, step, model.query_features):
            scores_BI = model.queries(inputs) @ vectors_IE.T
            if self._spec.seen is not None:
                seen_BI, _ = self._marked(inputs.batch, self._spec.seen, table, keys_I)
                scores_BI = scores_BI.masked_fill(seen_BI.to(scores_BI.device), -torch.inf)
            targets_BI, missing_B = self._marked(inputs.batch, self._spec.targets, table, keys_I)
            mine = inputs.batch.examples
            metrics.update(scores_BI.cpu(), targets_BI, missing_B, first + self._peers.before(mine))
            first += inputs.batch.global_examples
        return {**metrics.compute()}

    def _marked(self, batch: Batch, name: str, table: TableSpec, keys_I: NDArray[np.uint64]) -> tuple[Tensor, Tensor]:
        """Which items [B, I] a column names for each example, and how many [B] it names that aren't among them."""
        bags = batch.features[name]
        keys_N = uint64_of(table, self._seed, bags.ids)
        order_I = np.argsort(keys_I)
        place_N = np.minimum(np.searchsorted(keys_I, keys_N, sorter=order_I), len(keys_I) - 1)
        item_N = order_I[place_N]
        known_N = keys_I[item_N] == keys_N
        lengths_B = np.ones(len(bags.ids), np.int64) if bags.lengths is None else bags.lengths
        example_N = np.repeat(np.arange(batch.examples), lengths_B)
        marked_BI = np.zeros((batch.examples, len(keys_I)), np.bool_)
        marked_BI[example_N[known_N], item_N[known_N]] = True
        return torch.from_numpy(marked_BI), torch.from_numpy(np.bincount(example_N[~known_N], minlength=batch.examples))

    def _inputs(
        self,
        stream: Stream,
        model: nn.Module,
        tables: Tables,
        step: int,
        features: Sequence[str] | None = None,
    ) -> Iterator[Inputs]:
        with tqdm(
            unit=" examples", delay=2, desc="evaluating", leave=False, disable=self._peers.rank > 0 or None
        ) as bar:
            for batch in stream.epoch(0):
                with everywhere(self._peers.gather, "evaluation", InvalidInput):
                    chosen = wanted(model, batch, step, self._peers) if features is None else batch.features
                    read = tables.read([chosen[name] for name in features or chosen])
                vectors: Mapping[str, Tensor] = tables(read)
                yield Inputs(batch=batch, vectors=vectors, peers=self._peers, step=step)
                bar.update(batch.global_examples)


@contextmanager
def _resting(model: nn.Module, tables: Tables) -> Iterator[None]:
    """In evaluation mode, in which nothing moves."""
    model.eval()
    tables.eval()
    try:
        yield
    finally:
        model.train()
        tables.train()

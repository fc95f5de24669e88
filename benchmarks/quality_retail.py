"""Online Retail, split by time: what customers buy in the last month, foreseen from everything before it.

Shapes: N lines of invoices, B lines in a batch, D numbers in a vector, H lines of a history, I items.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np
import online_retail
import torch
from quality_kinds import FullTable
from quality_networks import Clicks, NextItem
from quality_task import Batch, Features, Settings, Task, Vectors, auc, shuffled
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

VALIDATE_FROM, TEST_FROM = np.datetime64("2011-10-15"), np.datetime64("2011-11-10")
HISTORY: Final = 4
"""H: lines before the one in question."""
PAST: Final = ("customer", "last", "history")
"""Features that are known before a line is written."""
TEST_LINES: Final = 10_000
"""Lines to test on, drawn from all after the split."""
TEST_SEED: Final = 2011
"""Draws them: the same for every trial."""


class _Retail(Task):
    """Who buys what next: the customer, the last lines bought, and an item. Both see the same table of items."""

    dataset = "online_retail"
    init_scale = 0.1

    def __init__(self, *, validate: bool = False) -> None:
        self.data, self.histories_NH = _loaded()
        times_N, begun_N = self.data.times, self.histories_NH[:, 0] != online_retail.NOBODY
        train_until, test_until = (VALIDATE_FROM, TEST_FROM) if validate else (TEST_FROM, times_N[-1] + 1)
        self.training = np.flatnonzero(begun_N & (times_N < train_until))
        later = np.flatnonzero(begun_N & (times_N >= train_until) & (times_N < test_until))
        draw = np.random.default_rng(TEST_SEED)
        self.test = draw.permutation(later)[:TEST_LINES]
        self.counts_I = np.bincount(self.data.items[times_N < train_until], minlength=self.data.item_count)
        self.sold = np.flatnonzero(self.counts_I)
        self.test_others = draw.choice(self.sold, len(self.test))

    @property
    def tables(self) -> list[FullTable]:
        """Customers and items."""
        return [
            FullTable(name="customer", rows=self.data.customer_count, features=("customer",)),
            FullTable(name="item", rows=self.data.item_count, features=("item", "last", "history"), pooling="mean"),
        ]

    def _past(self, places_B: NDArray[np.int64]) -> dict[str, object]:
        """What is known before a line is written."""
        histories_BH = self.histories_NH[places_B]
        known_BH = histories_BH != online_retail.NOBODY
        return {
            "customer": self.data.customers[places_B],
            "last": (histories_BH[:, 0], np.ones(len(places_B), np.int32)),
            "history": (histories_BH[known_BH], known_BH.sum(axis=1)),
        }

    def _bought_before(self) -> NDArray[np.bool_]:
        """[B, I]: whether the customer of each test line had bought each item when the training ended."""
        until = self.training[-1] + 1
        bought_CI = np.zeros((self.data.customer_count, self.data.item_count), np.bool_)
        bought_CI[self.data.customers[:until], self.data.items[:until]] = True
        bought_BI: NDArray[np.bool_] = bought_CI[self.data.customers[self.test]]
        return bought_BI


class Purchases(_Retail):
    """Whether an item was bought, or was drawn by chance: a network as for clicks, judged by the AUC."""

    model = "ctr"
    metric = "AUC"
    larger_is_better = True
    epochs = 1
    batch_size = 2048
    network_rate = 0.003
    grid: ClassVar = tuple(
        Settings(rate=rate, decay=decay) for rate, decay in ((0.05, 0.0), (0.1, 0.0), (0.2, 0.0), (0.4, 0.0))
    )

    def network(self, dim: int) -> nn.Module:
        """As `Task.network`."""
        return Clicks(dim, fields=len(PAST) + 1)

    def epoch(self, generator: np.random.Generator) -> Iterator[Batch]:
        """As `Task.epoch`."""
        for places_B in shuffled(generator, self.training, self.batch_size):
            yield self._batch(places_B, generator.choice(self.sold, len(places_B)))

    def _batch(self, places_B: NDArray[np.int64], others_B: NDArray[np.int64]) -> Batch:
        """Every line twice: with the item that was bought, and with another."""
        items = np.concatenate([self.data.items[places_B], others_B])
        labels = np.repeat(np.array([1, 0], np.float32), len(places_B))
        return Batch(features={**self._past(places_B), "item": (items, np.ones(len(items), np.int32))}, labels=labels)

    def _logits(self, network: nn.Module, vectors: Vectors) -> Tensor:
        twice = [vectors[feature].repeat(2, 1) for feature in PAST]
        logits_B: Tensor = network([*twice, vectors["item"]])
        return logits_B

    def losses(self, network: nn.Module, vectors: Vectors, batch: Batch) -> Tensor:
        """As `Task.losses`."""
        logits_B = self._logits(network, vectors)
        return nn.functional.binary_cross_entropy_with_logits(
            logits_B, torch.from_numpy(batch.labels), reduction="none"
        )

    def measure(self, network: nn.Module, look_up: Callable[[Features], Vectors]) -> float:
        """As `Task.measure`."""
        batch = self._batch(self.test, self.test_others)
        return auc(self._logits(network, look_up(batch.features)).numpy(), batch.labels > 0)

    def baselines(self) -> dict[str, float]:
        """As `Task.baselines`."""
        items = (self.data.items[self.test], self.test_others)
        bought_N = np.repeat([True, False], len(self.test))
        popularity_N = self.counts_I[np.concatenate(items)].astype(np.float64)
        before_BI, lines = self._bought_before(), np.arange(len(self.test))
        before_N = np.concatenate([before_BI[lines, items_B] for items_B in items])
        return {
            "popularity": auc(popularity_N, bought_N),
            "bought before, then popularity": auc(before_N * popularity_N.max() + popularity_N, bought_N),
        }


class NextItems(_Retail):
    """Which item is on the next line: a retrieval model, judged by how often the item is among the first 20."""

    model = "next item"
    metric = "recall@20"
    larger_is_better = True
    epochs = 2
    batch_size = 2048
    network_rate = 0.003
    grid: ClassVar = tuple(
        Settings(rate=rate, decay=decay) for rate, decay in ((0.2, 0.0), (0.1, 0.0), (0.4, 0.0), (0.8, 0.0))
    )
    group_size: Final = 256
    """Lines whose items are one another's negatives."""
    first: Final = 20
    """Items that are recommended."""

    def network(self, dim: int) -> nn.Module:
        """As `Task.network`."""
        return NextItem(dim, fields=len(PAST))

    def epoch(self, generator: np.random.Generator) -> Iterator[Batch]:
        """As `Task.epoch`."""
        for places_B in shuffled(generator, self.training, self.batch_size):
            whole = places_B[: len(places_B) // self.group_size * self.group_size]
            yield self._batch(whole, self.data.items[whole])

    def _batch(self, places_B: NDArray[np.int64], items: NDArray[np.int64]) -> Batch:
        features = {**self._past(places_B), "item": (items, np.ones(len(items), np.int32))}
        return Batch(features=features, labels=self.data.items[places_B])

    def losses(self, network: nn.Module, vectors: Vectors, batch: Batch) -> Tensor:
        """As `Task.losses`: a softmax over the items of a group, corrected for how often each is drawn."""
        assert isinstance(network, NextItem)
        items_GB = torch.from_numpy(batch.labels).view(-1, self.group_size)
        frequency_I = torch.from_numpy(self.counts_I / self.counts_I.sum()).float().clamp(min=1e-6)
        queries_GBD, items_GBD = (
            vectors_BD.view(-1, self.group_size, vectors_BD.shape[1])
            for vectors_BD in (network.queries([vectors[feature] for feature in PAST]), vectors["item"])
        )
        logits_GBB = network(queries_GBD, items_GBD) - frequency_I.log()[items_GB][:, None]
        # The same item on another line of the group is no negative.
        same_GBB = items_GB[:, :, None] == items_GB[:, None, :]
        same_GBB.diagonal(dim1=1, dim2=2).zero_()
        logits_GBB = logits_GBB.masked_fill(same_GBB, -torch.inf)
        own = torch.arange(self.group_size).expand(len(items_GB), -1)
        return nn.functional.cross_entropy(logits_GBB.flatten(0, 1), own.flatten(), reduction="none")

    def measure(self, network: nn.Module, look_up: Callable[[Features], Vectors]) -> float:
        """As `Task.measure`."""
        assert isinstance(network, NextItem)
        batch = self._batch(self.test, self.sold)
        vectors = look_up(batch.features)
        scores_BI = network(network.queries([vectors[feature] for feature in PAST]), vectors["item"])
        return self._recall(scores_BI.numpy())

    def baselines(self) -> dict[str, float]:
        """As `Task.baselines`."""
        popularity = np.broadcast_to(self.counts_I[self.sold], (len(self.test), len(self.sold)))
        before = self._bought_before()[:, self.sold]
        return {
            "popularity": self._recall(popularity),
            "bought before, then popularity": self._recall(before * popularity.max() + popularity),
        }

    def _recall(self, scores_BI: NDArray[np.floating] | NDArray[np.integer]) -> float:
        """The share of test lines whose item is among the first; items without any sale in training never are."""
        first = np.argpartition(-scores_BI, self.first, axis=1)[:, : self.first]
        return float((self.sold[first] == self.data.items[self.test][:, None]).any(axis=1).mean())


@cache
def _loaded() -> tuple[online_retail.Retail, NDArray[np.int64]]:
    data = online_retail.load()
    return data, data.histories(HISTORY)

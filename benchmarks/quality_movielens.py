"""MovieLens 100K, split by time: everybody's last ratings are foreseen from everything before them.

The models read ids alone. Age, genres and the like would hardly help the full tables, but tell a network which of the
ids that share a row it has to do with: then the network is measured, not the table.

Shapes: N ratings, B ratings in a batch, D numbers in a vector.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, ClassVar, Final

import movielens
import numpy as np
import torch
from quality_kinds import FullTable
from quality_networks import Clicks, Factorisation
from quality_task import Batch, Features, Settings, Task, Vectors, auc, shuffled
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

LAST: Final = 0.1
"""Share of everybody's ratings that are held out."""
LIKED: Final = 4
"""Stars of a film that was liked, at least."""


class _MovieLens(Task):
    """Who rates what."""

    dataset = "movielens"
    batch_size = 2048
    init_scale = 0.03

    def __init__(self, *, validate: bool = False) -> None:
        self.data, order, from_last_N = _loaded()
        held_out_N = from_last_N < LAST
        if validate:
            kept_N = ~held_out_N
            order, held_out_N = order[kept_N], from_last_N[kept_N] < LAST + LAST * (1 - LAST)
        self.training, self.test = order[~held_out_N], order[held_out_N]

    @property
    def tables(self) -> list[FullTable]:
        """People and films."""
        return [
            FullTable(name="user", rows=movielens.USERS + 1, features=("user",)),
            FullTable(name="item", rows=movielens.ITEMS + 1, features=("item",)),
        ]

    def epoch(self, generator: np.random.Generator) -> Iterator[Batch]:
        """As `Task.epoch`."""
        return (self._batch(places_B) for places_B in shuffled(generator, self.training, self.batch_size))

    def _batch(self, places_B: NDArray[np.int64]) -> Batch:
        features = {"user": self.data.users[places_B], "item": self.data.items[places_B]}
        return Batch(features=features, labels=self._labels(places_B))

    def _labels(self, places_B: NDArray[np.int64]) -> NDArray[np.float32]:
        raise NotImplementedError

    def _effects(self) -> NDArray[np.float64]:
        """For the test examples: the mean label, and how far person and film are from it, each pulled towards it."""
        labels_N, mean = self._labels(self.training), self._labels(self.training).mean()
        people, films = (np.zeros(count + 1) for count in (movielens.USERS, movielens.ITEMS))
        users_N, items_N = self.data.users[self.training], self.data.items[self.training]
        for _ in range(20):
            for own, own_N, other, other_N in ((people, users_N, films, items_N), (films, items_N, people, users_N)):
                sums = np.bincount(own_N, labels_N - mean - other[other_N], len(own))
                own[:] = sums / (np.bincount(own_N, minlength=len(own)) + 3)
        sums_N: NDArray[np.float64] = mean + people[self.data.users[self.test]] + films[self.data.items[self.test]]
        return sums_N


class Ratings(_MovieLens):
    """How many stars: a factorisation, judged by the root of the mean squared error."""

    model = "rating"
    metric = "RMSE"
    larger_is_better = False
    epochs = 10
    network_rate = 0.01
    grid: ClassVar = tuple(
        Settings(rate=rate, decay=decay)
        for rate, decay in ((0.03, 0.1), (0.06, 0.2), (0.06, 0.05), (0.06, 0.02), (0.12, 0.05), (0.12, 0.02))
    )

    def network(self, dim: int) -> nn.Module:
        """As `Task.network`."""
        return Factorisation(dim, float(self.data.stars[self.training].mean()))

    def losses(self, network: nn.Module, vectors: Vectors, batch: Batch) -> Tensor:
        """As `Task.losses`."""
        losses_B: Tensor = (network(vectors["user"], vectors["item"]) - torch.from_numpy(batch.labels)).square() / 2
        return losses_B

    def measure(self, network: nn.Module, look_up: Callable[[Features], Vectors]) -> float:
        """As `Task.measure`."""
        batch = self._batch(self.test)
        vectors = look_up(batch.features)
        return _rmse(network(vectors["user"], vectors["item"]).numpy(), self._labels(self.test))

    def baselines(self) -> dict[str, float]:
        """As `Task.baselines`."""
        stars_N = self._labels(self.test)
        mean_N = np.full(len(stars_N), self.data.stars[self.training].mean())
        return {"mean": _rmse(mean_N, stars_N), "mean + person + film": _rmse(self._effects(), stars_N)}

    def _labels(self, places_B: NDArray[np.int64]) -> NDArray[np.float32]:
        return self.data.stars[places_B]


class Likes(_MovieLens):
    """Whether a film is liked: a network as for clicks, judged by the area under the ROC curve."""

    model = "ctr"
    metric = "AUC"
    larger_is_better = True
    epochs = 5
    network_rate = 0.003
    grid: ClassVar = tuple(
        Settings(rate=rate, decay=decay)
        for rate, decay in ((0.03, 0.02), (0.06, 0.02), (0.12, 0.02), (0.06, 0.1), (0.12, 0.1))
    )

    def network(self, dim: int) -> nn.Module:
        """As `Task.network`."""
        return Clicks(dim, fields=2)

    def losses(self, network: nn.Module, vectors: Vectors, batch: Batch) -> Tensor:
        """As `Task.losses`."""
        logits_B = network([vectors["user"], vectors["item"]])
        return nn.functional.binary_cross_entropy_with_logits(
            logits_B, torch.from_numpy(batch.labels), reduction="none"
        )

    def measure(self, network: nn.Module, look_up: Callable[[Features], Vectors]) -> float:
        """As `Task.measure`."""
        batch = self._batch(self.test)
        vectors = look_up(batch.features)
        return auc(network([vectors["user"], vectors["item"]]).numpy(), batch.labels > 0)

    def baselines(self) -> dict[str, float]:
        """As `Task.baselines`."""
        items_N = self.data.items[self.training]
        counts = np.bincount(items_N, minlength=movielens.ITEMS + 1)
        means = np.bincount(items_N, self._labels(self.training), len(counts)) / np.maximum(counts, 1)
        liked_N = self._labels(self.test) > 0
        return {
            "share of those who liked the film": auc(means[self.data.items[self.test]], liked_N),
            "mean + person + film": auc(self._effects(), liked_N),
        }

    def _labels(self, places_B: NDArray[np.int64]) -> NDArray[np.float32]:
        return (self.data.stars[places_B] >= LIKED).astype(np.float32)


@cache
def _loaded() -> tuple[movielens.MovieLens, NDArray[np.int64], NDArray[np.float64]]:
    """The data; its places, by person and time; how far each is from the person's last, 0 to 1."""
    data = movielens.load()
    order = np.lexsort((np.arange(len(data.times)), data.times, data.users))
    counts = np.bincount(data.users)
    ends = np.cumsum(counts)[data.users[order]]
    return data, order, (ends - 1 - np.arange(len(order))) / counts[data.users[order]]


def _rmse(foreseen_N: NDArray[np.floating], stars_N: NDArray[np.floating]) -> float:
    return math.sqrt(float(((np.clip(foreseen_N, 1, 5) - stars_N) ** 2).mean()))

"""What a model is trained and measured on, whatever its tables are made of; the loop that does it.

Shapes: B examples in a batch, D numbers in a vector.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from quality_kinds import DIM, KINDS, FullTable, plan
from quality_tables import Features, Tables
from torch import Tensor, nn

from embershard.config import Config, parse_config

if TYPE_CHECKING:
    from numpy.typing import NDArray

Vectors = Mapping[str, Tensor]
"""{feature: [B, D]}."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Batch:
    """Examples, or what is to be scored."""

    features: Features
    """What to look up."""
    labels: NDArray[np.float32] | NDArray[np.int64]
    """[B]: what is true of each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What is chosen for each kind of table on its own."""

    rate: float
    """Learning rate of the tables."""
    decay: float
    """Weight decay of the vectors that an example reads."""


class Task(ABC):
    """A data set, split by time, and a model of it: tables of ids and a small network on their vectors.

    With `validate`, the end of the training examples stands in for the test examples, which then aren't touched.
    """

    dataset: ClassVar[str]
    """Which data."""
    model: ClassVar[str]
    """Which model."""
    metric: ClassVar[str]
    """By what the model is judged."""
    larger_is_better: ClassVar[bool]
    """Whether a larger value is a better one."""
    epochs: ClassVar[int]
    """Passes over the training examples."""
    batch_size: ClassVar[int]
    """B."""
    network_rate: ClassVar[float]
    """Learning rate of the network, whose optimizer is Adam."""
    init_scale: ClassVar[float]
    """Standard deviation of vectors before training."""
    grid: ClassVar[tuple[Settings, ...]]
    """Settings to choose from, the default first."""

    @abstractmethod
    def __init__(self, *, validate: bool = False) -> None: ...

    @property
    @abstractmethod
    def tables(self) -> list[FullTable]:
        """All tables of the model, as large as they would be if memory were no matter."""

    @abstractmethod
    def network(self, dim: int) -> nn.Module:
        """The network on vectors of `dim` numbers, as it is before training."""

    @abstractmethod
    def epoch(self, generator: np.random.Generator) -> Iterator[Batch]:
        """The training examples in batches, in a random order."""

    @abstractmethod
    def losses(self, network: nn.Module, vectors: Vectors, batch: Batch) -> Tensor:
        """[B]: the loss of each example."""

    @abstractmethod
    def measure(self, network: nn.Module, look_up: Callable[[Features], Vectors]) -> float:
        """The metric on the test examples."""

    @abstractmethod
    def baselines(self) -> dict[str, float]:
        """What the metric is without any table of vectors."""

    @property
    def name(self) -> str:
        """Names data and model."""
        return f"{self.dataset}/{self.model}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """Of one trial."""

    value: float
    """The metric."""
    bytes: int
    """Of the tables, by the engine's count: rows and optimizer state."""
    predicted_bytes: int
    """The same by arithmetic."""
    vocabulary_bytes: int
    """Of the lists of ids that own a row or may soon, which aren't among those."""


def trial(task: Task, kind: str, fraction: float, seed: int, settings: Settings) -> Outcome:
    """Trains a model from nothing, with tables of some kind in a share of the full tables' bytes, and measures it."""
    torch.manual_seed(seed)
    generator = np.random.default_rng(seed)
    config, predicted_bytes = configuration(task, kind, fraction, seed, settings)
    tables, network = Tables(config), task.network(config.tables[0].dim)
    optimizer = torch.optim.Adam(network.parameters(), task.network_rate)
    for share_done, batch in _batches(task, generator):
        vectors = tables.look_up(batch.features)
        losses_B = task.losses(network, vectors, batch)
        decay = sum(vector.square().sum() for vector in vectors.values()) * (settings.decay / 2)
        # The tables' rate stays as it is configured; gradients that fade have the same effect on Adagrad.
        ((losses_B.sum() + decay) * (1 - share_done)).backward()
        for group in optimizer.param_groups:
            group["lr"] = task.network_rate * (1 - share_done)
        optimizer.step()
        optimizer.zero_grad()
        tables.update(batch.features, vectors)
    with torch.no_grad():
        value = task.measure(network, tables.look_up)
    return Outcome(
        value=value,
        bytes=tables.bytes(),
        predicted_bytes=predicted_bytes,
        vocabulary_bytes=tables.vocabulary_bytes(),
    )


def configuration(task: Task, kind: str, fraction: float, seed: int, settings: Settings) -> tuple[Config, int]:
    """The tables of one trial, and their bytes by arithmetic."""
    plans = [plan(KINDS[kind], table, fraction) for table in task.tables]
    init = {"kind": "normal", "scale": task.init_scale}
    config = parse_config(
        {
            "collection": {"name": "quality", "seed": seed},
            "optimizer": {"kind": "rowwise_adagrad", "learning_rate": settings.rate},
            "tables": [{**planned.table, "init": init} for planned in plans],
        }
    )
    return config, sum(planned.bytes for planned in plans)


def shuffled(generator: np.random.Generator, places: NDArray[np.int64], size: int) -> list[NDArray[np.int64]]:
    """Batches of about this size."""
    return np.array_split(generator.permutation(places), -(-len(places) // size))


def auc(scores_N: NDArray[np.floating], true_N: NDArray[np.bool_]) -> float:
    """The share of pairs of a true and a false example in which the true one has the higher score; ties count half."""
    _, places_N, counts = np.unique(scores_N, return_inverse=True, return_counts=True)
    ranks_N = (np.cumsum(counts) - (counts - 1) / 2)[places_N]
    trues, falses = int(true_N.sum()), int((~true_N).sum())
    return float((ranks_N[true_N].sum() - trues * (trues + 1) / 2) / (trues * falses))


def _batches(task: Task, generator: np.random.Generator) -> Iterator[tuple[float, Batch]]:
    """All batches of all epochs, each with the share of the training that is done before it."""
    for number in range(task.epochs):
        batches = list(task.epoch(generator))
        for place, batch in enumerate(batches):
            yield (number + place / len(batches)) / task.epochs, batch


__all__ = ["DIM", "Batch", "Features", "Outcome", "Settings", "Task", "Vectors", "auc", "shuffled", "trial"]

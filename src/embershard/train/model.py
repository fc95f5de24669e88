"""What a job trains: a module that makes losses of vectors. Those of the project are in `models`; yours, anywhere.

A model is a `torch.nn.Module` with

    __init__(self, about: About, **options)    options are the job file's [model_options]
    forward(self, inputs: Inputs) -> Tensor    losses [n] of examples, or of positions; the job takes their mean

and, if it likes, what `ChoosesIds`, `ScoresClicks` or `RanksItems` asks for.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from embershard.errors import ConfigError

if TYPE_CHECKING:
    from embershard.config import TableSpec
    from embershard.train.batches import Batch
    from embershard.train.peers import Peers
    from embershard.types import FeatureBatch

MODELS = {
    "dlrm": "embershard.train.models.dlrm:DLRM",
    "two_tower": "embershard.train.models.two_tower:TwoTower",
    "next_item": "embershard.train.models.next_item:NextItem",
}
"""Those that come with the project."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class About:
    """What a model is told when it is made."""

    tables: Mapping[str, TableSpec]
    """{feature: its table}: every feature of the collection."""
    features: Sequence[str]
    """Those that the data has."""
    dense: int
    """F: columns of numbers that the data has."""
    seed: int
    """Of the collection: keys of strings depend on it."""

    def dim(self, feature: str) -> int:
        """D of a feature's vectors.

        Raises:
            ConfigError: there is no such feature.
        """
        if feature not in self.tables:
            raise ConfigError(f"model_options: there is no feature {feature!r}; there are {', '.join(self.tables)}")
        return self.tables[feature].dim


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Inputs:
    """One rank's share of a global batch."""

    batch: Batch
    """As it was read."""
    vectors: Mapping[str, Tensor]
    """{feature: [B, D] if pooled, else [N, D], a vector an id}."""
    peers: Peers
    """The other ranks."""
    step: int
    """How many steps came before: what is drawn at random is to depend on nothing else."""

    @property
    def device(self) -> torch.device:
        """Where vectors are."""
        return self.peers.device

    @property
    def labels_B(self) -> Tensor:
        """float32."""
        assert self.batch.labels_B is not None
        return torch.as_tensor(self.batch.labels_B, device=self.device)

    @property
    def dense_BF(self) -> Tensor | None:
        """float32, if the data has columns of numbers."""
        return None if self.batch.dense_BF is None else torch.as_tensor(self.batch.dense_BF, device=self.device)


@runtime_checkable
class ChoosesIds(Protocol):
    """Looks up something else than all features of a batch."""

    def wanted(self, batch: Batch, step: int, peers: Peers) -> Mapping[str, FeatureBatch]:
        """{feature: ids}, after so many steps; not joint."""


@runtime_checkable
class ScoresClicks(Protocol):
    """Is evaluated by labels of 0 and 1."""

    def scores(self, inputs: Inputs) -> Tensor:
        """Logits [B] of a click."""


@runtime_checkable
class RanksItems(Protocol):
    """Is evaluated by the items that it finds: those whose vectors have the largest product with a query's."""

    query_features: Sequence[str]
    """What `queries` reads."""
    item_features: Sequence[str]
    """What `candidates` reads; the first tells items apart."""

    def queries(self, inputs: Inputs) -> Tensor:
        """[B, E]."""

    def candidates(self, inputs: Inputs) -> Tensor:
        """[I, E]."""


def wanted(model: nn.Module, batch: Batch, step: int, peers: Peers) -> Mapping[str, FeatureBatch]:
    """What a model looks up for a batch."""
    return model.wanted(batch, step, peers) if isinstance(model, ChoosesIds) else batch.features


def make_model(name: str, about: About, options: Mapping[str, Any]) -> nn.Module:
    """The model of a job; `name` is one of `MODELS` or package.module:Class.

    Raises:
        ConfigError: there is no such class, or it doesn't take these options.
    """
    module, _, attribute = MODELS.get(name, name).partition(":")
    if not attribute:
        raise ConfigError(f"model = {name!r}: give {', '.join(MODELS)}, or package.module:Class")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"model = {name!r}: {error}; is the folder of its package in PYTHONPATH?") from error
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise ConfigError(f"model = {name!r}: is no torch.nn.Module")
    try:
        made: nn.Module = found(about, **options)
    except TypeError as error:
        raise ConfigError(f"model = {name!r}: can't be made with these model_options: {error}") from error
    return made

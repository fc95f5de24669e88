"""What a job trains: a module that makes losses of vectors. Those of the project are in `models`; yours, anywhere.

A model is a `torch.nn.Module` with

    __init__(self, about: About, **options)    options are the job file's [model_options]
    forward(self, inputs: Inputs) -> Tensor    losses [n] of examples, or of positions; the job takes their mean

and, if it likes, what `ChoosesIds`, `ScoresClicks` or `RanksItems` asks for.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from embershard.errors import ConfigError, InvalidInput

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

    def given(self, feature: str) -> TableSpec:
        """The table of a feature that the data has.

        Raises:
            ConfigError: it hasn't.
        """
        if feature not in self.features:
            known = ", ".join(self.features)
            raise ConfigError(f"model_options: {feature!r} is no feature of the data, which has {known}")
        return self.tables[feature]


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

    def one_each(self, feature: str) -> Tensor:
        """[B, D]: the vector of each example.

        Raises:
            InvalidInput: its examples have bags, and its table doesn't pool them.
        """
        vectors_BD = self.vectors[feature]
        if len(vectors_BD) != self.batch.examples:
            raise InvalidInput(
                f"feature {feature!r} has bags, {len(vectors_BD):,} ids for {self.batch.examples:,} examples, and the "
                "model wants one vector of each: give its table a pooling"
            )
        return vectors_BD

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
        found = getattr(importlib.import_module(module), attribute, None)
    except (ImportError, ValueError, TypeError) as error:
        raise ConfigError(f"model = {name!r}: {error}; PYTHONPATH must have the folder of its package") from error
    if found is None:
        raise ConfigError(f"model = {name!r}: module {module} has no {attribute}")
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise ConfigError(f"model = {name!r}: is no torch.nn.Module")
    _check_options(name, found, options)
    made: nn.Module = found(about, **options)
    return made


def _check_options(name: str, found: type[nn.Module], options: Mapping[str, Any]) -> None:
    """Raises ConfigError unless a model can be made with these options."""
    signature = inspect.signature(found)
    try:
        signature.bind(None, **options)
    except TypeError as error:
        allowed = [
            f"{key}" + (" (required)" if parameter.default is parameter.empty else f" = {parameter.default!r}")
            for key, parameter in list(signature.parameters.items())[1:]
        ]
        raise ConfigError(
            f"model = {name!r}: {error} among its model_options, which are {', '.join(allowed) or 'none'}"
        ) from error

"""Embedding tables as a training loop uses them: the only module of the benchmark that knows the engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from embershard.engine.local import LocalEngine
from embershard.engine.session import Session
from embershard.engine.world import SoloWorld
from embershard.types import FeatureBatch, FeatureUpdate

if TYPE_CHECKING:
    from torch import Tensor

    from embershard.config import Config

Features = Mapping[str, Any]
"""{feature: ids, or (ids, lengths)}."""


class Tables:
    """The tables of one configuration in this process, as they are before any update."""

    def __init__(self, config: Config) -> None:
        self._engine = LocalEngine(config, SoloWorld())
        self._session = Session(self._engine)

    def look_up(self, features: Features) -> dict[str, Tensor]:
        """The vectors of each feature, as leaves of a new graph: a loss puts their gradients into `.grad`."""
        found = self._session.lookup([FeatureBatch.of(feature, ids) for feature, ids in features.items()])
        return {
            feature: vectors.detach().requires_grad_() for feature, vectors in zip(features, found.vectors, strict=True)
        }

    def update(self, features: Features, vectors: Mapping[str, Tensor]) -> None:
        """One step of the tables' optimizers, by the gradients that have come back to what `look_up` gave."""
        updates = []
        for feature, ids in features.items():
            gradients = vectors[feature].grad
            assert gradients is not None, f"the loss doesn't depend on {feature}"
            updates.append(FeatureUpdate(batch=FeatureBatch.of(feature, ids), gradients=gradients.numpy()))
        self._session.update(updates)

    def bytes(self) -> int:
        """Of rows and optimizer state, as the engine counts them."""
        return sum(self._engine.table_bytes().values())

    def vocabulary_bytes(self) -> int:
        """Of the lists of ids that own a row, or may soon; not a part of `bytes`."""
        return sum(vocabulary.bytes for vocabulary in self._engine.vocabularies.values())

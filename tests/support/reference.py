"""The oracle: every matrix dense and of float64, every rule written as a loop. Slow, and plainly right.

Gradients are autograd's, through the loops. Which ids own a row is told by the real vocabulary, which has an oracle of
its own (`test_vocabulary`); what becomes of their rows is worked out here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from embershard.config import Config, Matrix, QuotientRemainder, TableSpec, VocabularyIds
from embershard.engine.initial import fill_initial
from embershard.ids import Keys, hashed_rows, rows_of
from embershard.rowwise import floats, quantised
from embershard.types import FeatureBatch, FeatureUpdate
from embershard.vocabulary import Sightings, Vocabulary

Array = np.ndarray[Any, Any]
Terms = list[tuple[int, float]]
"""The rows of one id, each with its sign."""


class Reference:
    """A collection in float64; the contributions of several ranks are one step."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.tables = {feature: table for table in config.tables for feature in table.features}
        self.matrices = {matrix.name: matrix for matrix in config.matrices}
        self.weights = {name: self._start(matrix) for name, matrix in self.matrices.items()}
        self.state = {
            name: _zeros(matrix.rows, 1 if self._optimizer(matrix).kind == "rowwise_adagrad" else matrix.dim)
            for name, matrix in self.matrices.items()
        }
        self.vocabularies = {
            table.name: Vocabulary(table) for table in config.tables if isinstance(table.ids, VocabularyIds)
        }

    @property
    def weight(self) -> dict[str, Array]:
        """The rows of each matrix."""
        return {name: weight.numpy() for name, weight in self.weights.items()}

    def size(self, feature: str) -> Array:
        """Numbers as large as those of the feature's answers are, signs and pooling aside."""
        table = self.tables[feature]
        if table.normalise != "none":
            return np.ones(1)
        largest = [
            weight.abs().max().item() for name, weight in self.weights.items() if self.matrices[name].table is table
        ]
        return np.array([np.prod(largest)])

    def sight(self, batches: Sequence[FeatureBatch], now_s: int = 0) -> None:
        """Lookups count as sightings where the configuration says so."""
        for name, vocabulary in self.vocabularies.items():
            if self.config.table(name).counts_lookups:
                named = [batch for batch in batches if self.tables[batch.feature].name == name]
                keys = [rows_of(self.config.table(name), self.config.collection.seed, batch).keys for batch in named]
                if named:
                    vocabulary.step(Sightings.merged([Sightings.of(key) for key in keys if key]), now_s, admit=False)

    def _start(self, matrix: Matrix) -> Tensor:
        rows = torch.empty(matrix.rows, matrix.dim)
        fill_initial(rows, matrix, self.config.collection.seed, 0)
        return (floats(quantised(rows)) if matrix.dtype == "int8" else rows.to(getattr(torch, matrix.dtype))).double()

    def _optimizer(self, matrix: Matrix) -> Any:
        return self.config.optimizer_of(matrix.table)

    def lookup(self, batches: Sequence[FeatureBatch]) -> list[Array]:
        return [self._answer(batch, self.weights).numpy() for batch in batches]

    def update(self, ranks: Sequence[Sequence[FeatureUpdate]], now_s: int = 0) -> None:
        self._admit([update for updates in ranks for update in updates], now_s)
        weights = {name: weight.clone().requires_grad_() for name, weight in self.weights.items()}
        loss = _zeros()
        for update in (update for updates in ranks for update in updates if update.gradients is not None):
            if not self.tables[update.batch.feature].frozen:
                loss = loss + (self._answer(update.batch, weights) * torch.from_numpy(update.gradients).double()).sum()
        if loss.requires_grad:
            gradients = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
            for name, gradient in zip(weights, gradients, strict=True):
                if gradient is not None:
                    self._step(name, gradient)
        for update in (update for updates in ranks for update in updates if update.values is not None):
            table = self.tables[update.batch.feature]
            for at, values in enumerate(update.values):
                ((row, _),) = self._terms(table, update.batch, at) or []
                self.weights[table.name][row] = torch.from_numpy(values).double()

    def _admit(self, updates: Sequence[FeatureUpdate], now_s: int) -> None:
        for name, vocabulary in self.vocabularies.items():
            table, seed = self.config.table(name), self.config.collection.seed
            named = [update for update in updates if self.tables[update.batch.feature].name == name]
            if table.frozen or not named:
                continue
            keys = [(rows_of(table, seed, update.batch).keys, update.gradients is None) for update in named]
            seen = [Sightings.of(key, demanded=demanded) for key, demanded in keys if key is not None]
            if not any(len(of_batch.keys_u) for of_batch in seen):
                continue  # nobody was named, and so no time passes
            step = vocabulary.step(Sightings.merged(seen), now_s, admit=True)
            if isinstance(table.factor, QuotientRemainder):
                continue
            for slot in step.emptied:
                self.weights[name][table.ids.fallback_rows + slot] = 0
                self.state[name][table.ids.fallback_rows + slot] = 0
            fallback = hashed_rows(table, seed, Keys(keys_n=step.admitted.keys_u, names=None))
            for number, slot in enumerate(step.slots):
                start = _zeros(self.matrices[name].dim)
                for k in range(table.hashes):
                    at = number * table.hashes + k
                    sign = 1.0 if fallback.signs_M is None else float(fallback.signs_M[at])
                    start = start + sign * self.weights[name][fallback.rows_M[at]]
                self.weights[name][table.ids.fallback_rows + slot] = start
                self.state[name][table.ids.fallback_rows + slot] = 0

    def _step(self, name: str, gradient: Tensor) -> None:
        spec = self._optimizer(self.matrices[name])
        if spec.kind == "sgd":
            self.weights[name] -= spec.learning_rate * gradient
            return
        square = gradient**2 if spec.kind == "adagrad" else (gradient**2).mean(dim=1, keepdim=True)
        self.state[name] = self.state[name] + square
        self.weights[name] -= spec.learning_rate * gradient / (self.state[name].sqrt() + spec.eps)

    def _answer(self, batch: FeatureBatch, weights: dict[str, Tensor]) -> Tensor:
        table = self.tables[batch.feature]
        zeros = _zeros(table.dim)
        per_id = [self._vector(table, self._terms(table, batch, at), weights) for at in range(len(batch.ids))]
        if table.pooling == "none":
            return torch.stack([zeros if vector is None else vector for vector in per_id] or [zeros])[: len(per_id)]
        lengths = np.ones(len(batch.ids), int) if batch.lengths is None else batch.lengths
        importance = np.ones(len(batch.ids)) if batch.weights is None else batch.weights.astype(np.float64)
        answers, at = [], 0
        for length in lengths:
            bag = [(per_id[i], importance[i]) for i in range(at, at + length) if per_id[i] is not None]
            at += length
            total = sum(weight for _, weight in bag) if table.pooling == "mean" else 1.0
            answers.append(sum((weight / total * vector for vector, weight in bag if total), zeros))
        return torch.stack(answers or [zeros])[: len(answers)]

    def _terms(self, table: TableSpec, batch: FeatureBatch, at: int) -> Terms | None:
        """The rows of one id, or None if it is the padding id."""
        if batch.ids[at] == table.ids.padding:
            return None
        ids = rows_of(
            table, self.config.collection.seed, FeatureBatch(feature=batch.feature, ids=batch.ids[at : at + 1])
        )
        if ids.keys is not None and (slot := int(self.vocabularies[table.name].find(ids.keys)[0])) >= 0:
            return [(table.ids.fallback_rows + slot, 1.0)]
        signs = np.ones(len(ids.rows_M)) if ids.signs_M is None else ids.signs_M
        return [(int(row), float(sign)) for row, sign in zip(ids.rows_M, signs, strict=True)]

    def _vector(self, table: TableSpec, terms: Terms | None, weights: dict[str, Tensor]) -> Tensor | None:
        if terms is None:
            return None
        total = sum(sign * self._row(table, row, weights) for row, sign in terms)
        if table.factor is not None and table.factor.kind == "low_rank":
            total = total @ weights[f"{table.name}:projection"]
        if table.scale == "sqrt_dim":
            total = total * np.sqrt(table.dim)
        if table.normalise == "l2":
            return total / torch.sqrt((total**2).sum() + 1e-12)
        if table.normalise == "layer":
            return (total - total.mean()) / torch.sqrt(((total - total.mean()) ** 2).mean() + 1e-5)
        return total

    def _row(self, table: TableSpec, row: int, weights: dict[str, Tensor]) -> Tensor:
        if not isinstance(table.factor, QuotientRemainder):
            return weights[table.matrices[0].name][row]
        first = weights[f"{table.name}:quotient"][row // table.remainders]
        second = weights[f"{table.name}:remainder"][row % table.remainders]
        match table.factor.combine:
            case "product":
                return first * second
            case "sum":
                return first + second
        return torch.cat([first, second])


def _zeros(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.float64)

"""The oracle: every table a dense float64 matrix, every rule written as a loop. Slow, and plainly right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from embershard.config import Config, TableSpec
from embershard.engine.initial import fill_initial
from embershard.ids import rows_of
from embershard.types import FeatureBatch, FeatureUpdate

Terms = list[tuple[int, float]]
"""One output as a sum: (row, coefficient) for each of its terms."""


class Reference:
    """A collection in float64; the contributions of several ranks are one step."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.tables = {feature: table for table in config.tables for feature in table.features}
        self.weight = {table.name: self._start(table) for table in config.tables}
        self.state = {
            table.name: np.zeros((table.rows, 1 if config.optimizer_of(table).kind == "rowwise_adagrad" else table.dim))
            for table in config.tables
        }

    def _start(self, table: TableSpec) -> np.ndarray[Any, Any]:
        rows = torch.empty(table.rows, table.dim)
        fill_initial(rows, table, self.config.collection.seed, 0)
        return rows.to(getattr(torch, table.dtype)).double().numpy()

    def lookup(self, batches: Sequence[FeatureBatch]) -> list[np.ndarray[Any, Any]]:
        answers = []
        for batch in batches:
            table = self.tables[batch.feature]
            outputs = self._outputs(batch)
            answer = np.zeros((len(outputs), table.dim))
            for output, terms in enumerate(outputs):
                for row, coefficient in terms:
                    answer[output] += coefficient * self.weight[table.name][row]
            answers.append(answer)
        return answers

    def update(self, ranks: Sequence[Sequence[FeatureUpdate]]) -> None:
        sums: dict[str, dict[int, np.ndarray[Any, Any]]] = {}
        for update in (update for updates in ranks for update in updates if update.gradients is not None):
            table = self.tables[update.batch.feature]
            for terms, gradient in zip(self._outputs(update.batch), update.gradients, strict=True):
                for row, coefficient in terms:
                    of_table = sums.setdefault(table.name, {})
                    of_table[row] = of_table.get(row, 0) + coefficient * gradient.astype(np.float64)
        for name, of_table in sums.items():
            for row, gradient in of_table.items():
                self._step(name, row, gradient)
        for update in (update for updates in ranks for update in updates if update.values is not None):
            for row, values in zip(update.batch.ids, update.values, strict=True):
                self.weight[self.tables[update.batch.feature].name][row] = values

    def _step(self, name: str, row: int, gradient: np.ndarray[Any, Any]) -> None:
        spec = self.config.optimizer_of(next(table for table in self.config.tables if table.name == name))
        if spec.kind == "sgd":
            self.weight[name][row] -= spec.learning_rate * gradient
            return
        square = gradient**2 if spec.kind == "adagrad" else np.mean(gradient**2)
        self.state[name][row] += square
        self.weight[name][row] -= spec.learning_rate * gradient / (np.sqrt(self.state[name][row]) + spec.eps)

    def _outputs(self, batch: FeatureBatch) -> list[Terms]:
        table = self.tables[batch.feature]
        per_id = [self._terms(table, batch, at) for at in range(len(batch.ids))]
        if table.pooling == "none":
            return [terms or [] for terms in per_id]
        lengths = np.ones(len(batch.ids), int) if batch.lengths is None else batch.lengths
        weights = np.ones(len(batch.ids)) if batch.weights is None else batch.weights.astype(np.float64)
        outputs, at = [], 0
        for length in lengths:
            bag = [(per_id[i], weights[i]) for i in range(at, at + length) if per_id[i] is not None]
            at += length
            total = sum(weight for _, weight in bag) if table.pooling == "mean" else 1.0
            outputs.append([(row, sign * weight / total) for terms, weight in bag if total for row, sign in terms])
        return outputs

    def _terms(self, table: TableSpec, batch: FeatureBatch, at: int) -> Terms | None:
        """The rows of one id, or None if it is the padding id."""
        if batch.ids[at] == table.ids.padding:
            return None
        one = FeatureBatch(feature=batch.feature, ids=batch.ids[at : at + 1])
        mapped = rows_of(table, self.config.collection.seed, one)
        signs = np.ones_like(mapped.rows_nK) if mapped.signs_nK is None else mapped.signs_nK
        return [(int(row), float(sign)) for row, sign in zip(mapped.rows_nK[0], signs[0], strict=True)]

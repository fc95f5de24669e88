"""Training takes the same road as a service: the same vectors, and the same rows after the same gradients."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.implementation import Implementation
from support.scenario import ID_KINDS, OPTIMIZERS, POOLINGS, everything, random_batch

from embershard.config import Config, QuotientRemainder, VocabularyIds
from embershard.types import FeatureUpdate

Updates = list[list[FeatureUpdate]]


def updates_of_ranks(random: np.random.Generator, config: Config, ranks: int) -> Updates:
    """Of all features, as columns of one data set are: some weighted, in bags or not, alike on all ranks."""
    updates: Updates = [[] for _ in range(ranks)]
    for table in config.tables:
        for feature in table.features:
            bags, listed, weighted = (bool(random.integers(2)) for _ in range(3))
            for rank in range(ranks):
                batch = random_batch(random, config, feature, int(random.integers(0, 6)))
                if table.pooling != "none":
                    count, alike = len(batch.ids), np.ones(len(batch.ids), np.int32)
                    batch = replace(
                        batch,
                        lengths=batch.lengths if bags else alike if listed else None,
                        weights=random.uniform(0.1, 2, count).astype(np.float32) if weighted else None,
                    )
                outputs = len(batch.ids) if table.pooling == "none" else batch.examples
                gradients = random.normal(size=(outputs, table.dim)).astype(np.float32)
                updates[rank].append(FeatureUpdate(batch=batch, gradients=gradients))
    return updates


@pytest.mark.parametrize("ids", ID_KINDS)
def test_training_moves_rows_as_updates_do(implementation: Implementation, ids: str) -> None:
    number = list(ID_KINDS).index(ids)
    # Signed gradients may cancel to a rounding error, in whose direction Adagrad's first step is as long as any.
    optimizer = "sgd" if ID_KINDS[ids].get("signed") else OPTIMIZERS[number % 3]
    for pooling in POOLINGS if implementation.local else POOLINGS[number % 3 :][:1]:
        config = everything(optimizer, pooling, ids)
        random = np.random.default_rng(number)
        steps = [updates_of_ranks(random, config, implementation.size) for _ in range(3)]
        implementation.build(config)
        answers = []
        for updates in steps:
            answers.append(implementation.lookup([[update.batch for update in of_rank] for of_rank in updates]))
            implementation.update(updates)
        expected, owners = implementation.state(), implementation.vocabularies()
        implementation.build(config)
        for updates, answer in zip(steps, answers, strict=True):
            for of_rank, found, asked in zip(updates, implementation.learn(updates), answer, strict=True):
                for update, vectors, alike in zip(of_rank, found, asked, strict=True):
                    if not begins_elsewhere(config, update.batch.feature):
                        np.testing.assert_allclose(vectors, alike, rtol=1e-4, atol=2e-5, err_msg=update.batch.feature)
        for name, rows in implementation.state().items():
            if name.endswith(("projection.sightings", "projection.updates")):
                continue  # every rank names it in a service
            np.testing.assert_allclose(rows, expected[name], rtol=1e-4, atol=2e-5, err_msg=name)
        for of_rank, before in zip(implementation.vocabularies(), owners, strict=True):
            for table, state in of_rank.items():
                for key in ("keys", "slots"):
                    np.testing.assert_array_equal(state[key], before[table][key])


def begins_elsewhere(config: Config, feature: str) -> bool:
    """Whether an id that is given a pair of quotient and remainder has another vector from then on: training gives it
    before it looks up, a service after."""
    table = config.table_of_feature(feature)
    return isinstance(table.ids, VocabularyIds) and isinstance(table.factor, QuotientRemainder)
